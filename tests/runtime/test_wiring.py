"""No dead points: every kind of hook at every point of a run fires exactly as often as it should, on every path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from hookline import (
    Agent,
    AgentResult,
    Approve,
    Ask,
    BeforeToolCall,
    Continue,
    Deny,
    HookDispatcher,
    Hooks,
    Reject,
    Respond,
    StepResult,
    ToolCall,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.errors import HookDenied
from tests.tables import for_each

from .interception import (
    POINTS,
    Answering,
    Counts,
    JsonStore,
    Probe,
    World,
    after,
    around,
    before,
    full,
    guard,
    no_result,
    pay,
    paying,
    session_of,
)
from .scenes import agent_of, ask, call, calls, raw_call, says

pytestmark = pytest.mark.anyio

EVERY = list(POINTS)
INNERMOST = 900


async def in_session(world: World, probe: Probe, *more: Any) -> Any:
    async with session_of(world.agent, hooks=[probe.hooks, *more]) as session:
        return await session.run("go", operation_id="op")


async def stopped(world: World, probe: Probe, how: str) -> Any:
    """Run it until it hangs somewhere, then stop it."""
    result = None
    scope = anyio.CancelScope()
    async with session_of(world.agent, hooks=[probe.hooks]) as session, anyio.create_task_group() as group:

        async def run() -> None:
            nonlocal result
            with scope:
                result = await session.run("go")

        group.start_soon(run)
        await world.begun.wait()
        if how == "cancel":
            scope.cancel()
        else:
            assert session.interrupt()
    return result


def assert_counts(probe: Probe, expected: dict[str, Counts]) -> None:
    assert {point: probe.counts(point) for point in EVERY} == {point: expected.get(point, {}) for point in EVERY}


# The paths on which everything goes on.

NORMAL = {
    "AgentCall": full(1),
    "StepCall": full(2),
    "ModelCall": full(2),
    "ToolCall": full(1),
    "SubAgentCall": full(1),
    "CompactCall": full(1),
    "MemoryCall": full(1),
}


async def test_no_hook_is_dead_in_a_task_that_passes_every_point() -> None:
    world, probe = World(), Probe()

    result = await in_session(world, probe)

    assert result.reason == "done"
    assert_counts(probe, NORMAL)


async def test_no_hook_is_dead_in_a_plain_run() -> None:
    world, probe = World(), Probe()

    await exec_agent(world.agent, "go", hooks=[probe.hooks])

    assert_counts(probe, {**NORMAL, "MemoryCall": {}})


@pytest.mark.parametrize("place", ["agent", "run"])
async def test_no_hook_is_dead_wherever_it_was_given(place: str) -> None:
    probe = Probe()
    world = World(hooks=[probe.hooks] if place == "agent" else [])

    async with session_of(world.agent) as session:
        await session.run("go", hooks=[probe.hooks] if place == "run" else [])

    assert_counts(probe, NORMAL)


async def test_before_and_after_of_one_call_share_one_metadata_at_every_point() -> None:
    world, probe = World(parallel=2), Probe()

    await in_session(world, probe)

    for point in EVERY:
        given: dict[int, set[str]] = {}
        for name, kind, made, _ in probe.seen:
            if name == point:
                given.setdefault(id(made.metadata), set()).add(kind)
        assert all(kinds == {"before", "guard", "in", "after", "out"} for kinds in given.values()), point
        assert len(given) == probe.counts(point)["before"]


async def test_every_call_says_which_operation_and_which_tenant_it_is_for() -> None:
    world, probe = World(), Probe()

    async with session_of(world.agent, hooks=[probe.hooks], tenant_id="acme") as session:
        await session.run("go", operation_id="op")

    assert {(made.operation_id, made.tenant_id) for _, _, made, _ in probe.seen} == {("op", "acme")}


async def test_parallel_tool_calls_and_sub_agents_pass_each_on_its_own() -> None:
    world, probe = World(parallel=3, children=2), Probe()

    await in_session(world, probe)

    assert_counts(probe, {**NORMAL, "ToolCall": full(3), "SubAgentCall": full(2)})
    assert {made.tool_call_id for made, _ in probe.of("ToolCall", "after")} == {"t0", "t1", "t2"}


@for_each("calling", [call("raising"), call("unknown"), raw_call("fine", "{broken"), call("fine", x=1)])
async def test_a_tool_error_reaches_every_hook_of_the_tool_call(calling: Any) -> None:
    probe = Probe()

    async def raising() -> str:
        raise KeyError("boom")

    async def fine() -> str:
        return "fine"

    agent = agent_of(calls(calling), says(), tools=[raising, fine])

    result = await exec_agent(agent, "go", hooks=[probe.hooks])

    assert result.reason == "done"
    assert_counts(probe, {"AgentCall": full(), "StepCall": full(2), "ModelCall": full(2), "ToolCall": full()})
    ((_, seen),) = probe.of("ToolCall", "after")
    assert not seen.success
    assert seen.error_type


async def test_a_sub_agent_that_fails_reaches_every_hook_of_its_call() -> None:
    world, probe = World(), Probe()
    world.fail = "child"

    result = await in_session(world, probe)

    assert result.reason == "done"
    assert_counts(probe, NORMAL)
    ((_, seen),) = probe.of("SubAgentCall", "after")
    assert seen.reason == "error"


async def test_a_run_that_reaches_its_last_step_is_seen_to_its_end() -> None:
    world, probe = World(max_steps=1), Probe()

    result = await in_session(world, probe)

    assert result.reason == "max_steps"
    assert_counts(
        probe,
        {**NORMAL, "StepCall": full(1), "ModelCall": full(1), "CompactCall": {}},
    )
    ((_, seen),) = probe.of("AgentCall", "after")
    assert seen.reason == "max_steps"


async def test_each_continuation_passes_every_hook_and_the_last_end_is_observed_too() -> None:
    probe = Probe()
    go_on = after(POINTS["AgentCall"], lambda made, result: Continue("more"))
    agent = agent_of(says("one"), says("two"), says("three"), max_continues=2)

    await exec_agent(agent, "go", hooks=[probe.hooks, go_on])

    assert_counts(probe, {"AgentCall": full(3), "StepCall": full(3), "ModelCall": full(3)})
    assert [result.output for _, result in probe.of("AgentCall", "after")] == ["one", "two", "three"]


# Sub-agents.


async def test_hooks_of_a_parent_do_not_see_what_its_sub_agent_does() -> None:
    world, probe = World(), Probe()

    await exec_agent(world.agent, "go", hooks=[probe.hooks], operation_id="parent")

    assert {made.operation_id for _, _, made, _ in probe.seen} == {"parent"}


async def test_hooks_of_a_sub_agent_see_what_it_does_and_nothing_of_its_parent() -> None:
    probe = Probe()
    world = World(child_hooks=[probe.hooks])

    await in_session(
        world,
        Probe(),
    )

    assert_counts(probe, {"AgentCall": full(), "StepCall": full(), "ModelCall": full()})
    assert "op" not in {made.operation_id for _, _, made, _ in probe.seen}


async def test_a_bundle_that_inherits_goes_along_into_the_sub_agent_once() -> None:
    probe = Probe(inherit=True)
    world = World(child_hooks=[probe.hooks])

    await in_session(world, probe)

    assert_counts(
        probe,
        {**NORMAL, "AgentCall": full(2), "StepCall": full(3), "ModelCall": full(3)},
    )


# Errors, interrupts and cancellations: no result, no `after`, but a way out for who is already in.


async def test_a_model_error_leaves_no_after_and_shows_itself_on_the_way_out() -> None:
    world, probe = World(), Probe()
    world.fail = "model"

    result = await in_session(world, probe)

    assert result.reason == "error"
    for point in ("AgentCall", "StepCall", "ModelCall"):
        assert probe.counts(point) == no_result()
        assert str(probe.of(point, "out")[0][1]) == "model broke"
    for point in ("ToolCall", "SubAgentCall", "CompactCall"):
        assert probe.counts(point) == {}


async def test_a_conversation_is_kept_after_a_task_that_failed_too() -> None:
    """`MemoryCall`: "a write to memory: a session's history, after each of its tasks"."""
    world, probe = World(), Probe()
    world.fail = "model"

    await in_session(world, probe)

    assert probe.counts("MemoryCall") == full(1)


async def test_a_compaction_that_fails_leaves_no_after_and_harms_nobody() -> None:
    world, probe = World(), Probe()
    world.fail = "summary"

    result = await in_session(world, probe)

    assert result.reason == "done"
    assert_counts(probe, {**NORMAL, "CompactCall": no_result()})
    assert isinstance(probe.of("CompactCall", "out")[0][1], RuntimeError)


STOPPED = {
    "model": {"AgentCall": no_result(), "StepCall": no_result(), "ModelCall": no_result(), "MemoryCall": full()},
    "tool": {
        "AgentCall": no_result(),
        "StepCall": no_result(),
        "ModelCall": full(),
        "ToolCall": no_result(),
        "MemoryCall": full(),
    },
    "child": {
        "AgentCall": no_result(),
        "StepCall": no_result(),
        "ModelCall": full(),
        "SubAgentCall": no_result(),
        "MemoryCall": full(),
    },
    "summary": {
        "AgentCall": no_result(),
        "StepCall": {"before": 2, "guard": 2, "in": 2, "after": 1, "out": 2},
        "ModelCall": full(),
        "ToolCall": full(),
        "SubAgentCall": full(),
        "CompactCall": no_result(),
        "MemoryCall": full(),
    },
}


@for_each("how", ["interrupt", "cancel"])
@for_each("place", list(STOPPED))
async def test_a_run_that_is_stopped_leaves_no_after_where_there_is_no_result(place: str, how: str) -> None:
    world = World(parallel=place != "child", children=place != "tool")
    probe = Probe()
    world.hang = place

    result = await stopped(world, probe, how)

    assert (result is None) == (how == "cancel")
    assert_counts(probe, STOPPED[place])


# Denials and answers at each point.

AFTER_A_DENIAL: dict[str, dict[str, Counts]] = {
    "AgentCall": {"MemoryCall": full()},
    "StepCall": {"AgentCall": full(), "MemoryCall": full()},
    "ModelCall": {"AgentCall": full(), "StepCall": full(), "MemoryCall": full()},
    "ToolCall": NORMAL,
    "SubAgentCall": NORMAL,
    "CompactCall": NORMAL,
    "MemoryCall": NORMAL,
}
"""What the other points see when one is denied."""

ANSWERS: dict[str, Any] = {
    "AgentCall": AgentResult(output="answered"),
    "StepCall": StepResult(should_continue=False, content="answered"),
    "ModelCall": "answered",
    "ToolCall": "answered",
    "SubAgentCall": "answered",
    "CompactCall": "summed up",
    "MemoryCall": {"stored": True},
}


async def denying_around(made: Any, call_next: Any) -> Any:
    return Deny("no")


async def refusing_after_all(made: Any, call_next: Any) -> Any:
    await call_next(made)
    return Deny("no")


def raising(*given: Any) -> Any:
    raise ValueError("broken hook")


DENIALS: dict[str, tuple[Callable[[type[Any]], Any], Counts]] = {
    "a guard denies": (lambda p: guard(p, lambda c: Deny("no"), priority=INNERMOST), no_result()),
    "a guard raises": (lambda p: guard(p, raising, priority=INNERMOST), no_result()),
    "a before denies": (
        lambda p: before(p, lambda c: Deny("no"), priority=INNERMOST),
        {"before": 1, "in": 1, "out": 1},
    ),
    "an around denies": (lambda p: around(p, denying_around, priority=INNERMOST), {"before": 1, "in": 1, "out": 1}),
    "an around denies afterwards": (lambda p: around(p, refusing_after_all, priority=INNERMOST), no_result()),
    "an after denies": (lambda p: after(p, lambda c, r: Deny("no"), priority=INNERMOST), no_result()),
    "an after raises": (lambda p: after(p, raising, priority=INNERMOST), no_result()),
}


@for_each("how", list(DENIALS))
@for_each("point", EVERY)
async def test_a_denial_at_any_point_runs_no_after_there_and_everything_around_it(point: str, how: str) -> None:
    make, there = DENIALS[how]
    probe, world = Probe(), World()

    await in_session(world, probe, make(POINTS[point]))

    expected = {**AFTER_A_DENIAL[point], point: there}
    if point in ("StepCall", "ModelCall") and "after" in how:
        # It has happened: what lies inside was seen.
        for inner in ("ModelCall", "ToolCall", "SubAgentCall"):
            if POINTS[inner] is not POINTS[point] and point == "StepCall":
                expected[inner] = full()
    if point == "AgentCall" and "after" in how:
        expected = {**NORMAL, point: there}
    assert_counts(probe, expected)
    assert all(isinstance(error, HookDenied) for _, error in probe.of(point, "out"))


async def test_a_denial_by_the_outermost_hook_starts_no_other() -> None:
    probe, world = Probe(), World()

    result = await in_session(world, probe, before(POINTS["AgentCall"], lambda c: Deny("no"), priority=0))

    assert result.reason == "interrupted"
    assert_counts(probe, {"MemoryCall": full()})
    assert world.ran == []


@for_each("how", ["before", "around"])
@for_each("point", EVERY)
async def test_an_answer_at_any_point_is_seen_on_the_way_out_and_judged_by_no_guard(point: str, how: str) -> None:
    async def answering(made: Any, call_next: Any) -> Any:
        return Respond(ANSWERS[point])

    probe, world = Probe(), World()
    hook = (
        before(POINTS[point], lambda c: Respond(ANSWERS[point]), priority=INNERMOST)
        if how == "before"
        else around(POINTS[point], answering, priority=INNERMOST)
    )

    result = await in_session(world, probe, hook)

    assert result.reason == "done"
    there = {"before": 1, "in": 1, "after": 1, "out": 1}
    assert_counts(probe, {**AFTER_A_DENIAL[point], point: there})


# Pause and resume: before and after once over both, guards in each segment. The arounds of a run stand around each
# segment of it; those of a tool call do not run again once a person has approved the call.

OVER_A_PAUSE: Counts = {"before": 1, "guard": 2, "in": 2, "after": 1, "out": 2}
APPROVED: Counts = {**OVER_A_PAUSE, "in": 1, "out": 1}


def asks(made: Any) -> Ask:
    return Ask("may it?")


@for_each("who", ["guard", "tool", "before", "around"])
@for_each("anew", [False, True])
async def test_over_a_pause_and_a_resume_rewriters_run_once_and_guards_judge_twice(who: str, anew: bool) -> None:
    async def asking(made: Any, call_next: Any) -> Any:
        return Ask("may it?")

    async def letting(made: Any, call_next: Any) -> Any:
        return await call_next(made)

    hooks: dict[str, list[Any]] = {
        "guard": [guard(ToolCall, asks)],
        "tool": [],
        "before": [before(ToolCall, asks, priority=INNERMOST)],
        "around": [around(ToolCall, asking, priority=INNERMOST)],
    }
    probe, paid, store = Probe(), [], JsonStore()
    agent = paying(paid, calls(pay()), says(), needs_approval=who == "tool")

    paused = await exec_agent(agent, "go", hooks=[probe.hooks, *hooks[who]], operation_id="op", store=store)
    assert paused.reason == "waiting_for_human"
    assert probe.counts("AgentCall") == no_result()
    assert probe.of("AgentCall", "out")[0][1].reason == "waiting_for_human"
    if anew:
        agent = paying(paid, says(), needs_approval=who == "tool")
    rest = [around(ToolCall, letting, priority=INNERMOST)] if who == "around" else hooks[who]
    result = await resume_agent(agent, "op", [Approve("p1")], hooks=[probe.hooks, *rest], store=store)

    assert result.reason == "done"
    assert paid == [5]
    expected = APPROVED if who in ("guard", "tool") else {**APPROVED, "guard": 1}
    assert_counts(
        probe,
        {"AgentCall": OVER_A_PAUSE, "StepCall": full(3), "ModelCall": full(2), "ToolCall": expected},
    )


async def test_a_hook_that_nobody_waits_for_runs_once_over_a_pause_and_a_resume_too() -> None:
    seen: list[str] = []
    hooks = [
        before(POINTS["AgentCall"], lambda c: seen.append("before agent"), wait=False),
        after(POINTS["AgentCall"], lambda c, r: seen.append("after agent"), wait=False),
        before(ToolCall, lambda c: seen.append("before tool"), wait=False),
        after(ToolCall, lambda c, r: seen.append("after tool"), wait=False),
        guard(ToolCall, asks),
    ]
    agent, store = paying([], calls(pay()), says()), JsonStore()

    await exec_agent(agent, "go", hooks=hooks, operation_id="op", store=store)
    await resume_agent(agent, "op", [Approve("p1")], hooks=hooks, store=store)

    assert sorted(seen) == ["after agent", "after tool", "before agent", "before tool"]


async def test_a_refused_call_is_judged_no_more_and_its_run_has_an_end() -> None:
    probe, paid, store = Probe(), [], JsonStore()
    agent = paying(paid, calls(pay()), needs_approval=True)

    await exec_agent(agent, "go", hooks=[probe.hooks], operation_id="op", store=store)
    await resume_agent(agent, "op", [Reject("p1", "no")], hooks=[probe.hooks], store=store)

    assert paid == []
    assert_counts(
        probe,
        {"AgentCall": OVER_A_PAUSE, "StepCall": full(2), "ModelCall": full(1), "ToolCall": no_result()},
    )


async def test_decisions_one_by_one_run_the_hooks_of_each_call_once() -> None:
    probe, paid, store = Probe(), [], JsonStore()
    agent = paying(paid, calls(pay(1, "a"), pay(2, "b")), says(), needs_approval=True)
    given: dict[str, Any] = {"hooks": [probe.hooks], "store": store}

    await exec_agent(agent, "go", operation_id="op", **given)
    await resume_agent(agent, "op", [Approve("b")], **given)
    assert probe.counts("ToolCall") == no_result(2)
    await resume_agent(agent, "op", [Approve("a")], **given)

    assert sorted(paid) == [1, 2]
    assert probe.counts("ToolCall") == {"before": 2, "guard": 4, "in": 2, "after": 2, "out": 2}
    assert probe.counts("AgentCall") == {"before": 1, "guard": 3, "in": 3, "after": 1, "out": 3}


async def test_a_pause_in_a_session_is_remembered_once_at_its_end() -> None:
    probe, paid = Probe(), []
    agent = paying(paid, calls(pay()), says(), needs_approval=True)

    async with session_of(agent, hooks=[probe.hooks]) as session:
        await session.run("go")
        assert probe.counts("MemoryCall") == {}
        await session.resume([Approve("p1")])

    assert probe.counts("MemoryCall") == full()


# Nothing is left behind, whatever the path.


@for_each("point", EVERY)
async def test_nothing_is_left_of_a_run_that_was_denied(point: str) -> None:
    world = World(hooks=[guard(POINTS[point], lambda c: Deny("no"))])

    async with HookDispatcher() as dispatcher:
        await exec_agent(world.agent, "go", dispatcher=dispatcher)

        assert not dispatcher.operations


async def test_hooks_of_parallel_calls_are_not_made_to_wait_for_one_another() -> None:
    together = anyio.Event()
    inside: list[str] = []

    async def meeting(made: ToolCall, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        inside.append(made.tool_call_id)
        if len(inside) == 2:
            together.set()
        await together.wait()
        return await call_next(made)

    world = World(parallel=2, hooks=[around(ToolCall, meeting)])

    with anyio.fail_after(5):
        result = await exec_agent(world.agent, "go")

    assert result.reason == "done"


async def test_a_call_of_a_sub_agent_is_no_tool_call_for_hooks() -> None:
    probe = Probe()
    child = Agent(id="helper", model=Answering(_hello))
    agent = agent_of(calls(ask("helper")), says(), sub_agents=[child])

    await exec_agent(agent, "go", hooks=[probe.hooks])

    assert probe.counts("ToolCall") == {}
    assert probe.counts("SubAgentCall") == full()


async def _hello(made: Any) -> Any:
    return says("hello")


async def test_a_tool_that_a_hook_mocks_still_passes_every_interceptor() -> None:
    probe, mocks, ran = Probe(), Hooks("mocks"), []

    @tool
    async def look() -> str:
        ran.append(1)
        return "looked"

    @mocks.on(BeforeToolCall)
    def fake(event: BeforeToolCall) -> None:
        event.mock("faked")

    await exec_agent(agent_of(calls(call("look")), says(), tools=[look]), "go", hooks=[probe.hooks, mocks])

    assert ran == []
    assert probe.counts("ToolCall") == full()
    assert probe.of("ToolCall", "after")[0][1].content == "faked"
