"""A run goes on with every interceptor that it was given before, or it does not go on."""

from __future__ import annotations

import copy
import logging
import pickle
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import (
    Agent,
    AgentSession,
    Approve,
    Ask,
    BeforeToolCall,
    Deny,
    Hook,
    Hooks,
    InMemoryStore,
    Interceptor,
    ModelResponse,
    OperationResult,
    Reject,
    ScriptedModel,
    StepCall,
    ToolCall,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.errors import HooklineError, MissingHooksError, OperationError
from hookline.hooks import AnyHook
from hookline.otel import TracingHooks
from hookline.runtime import (
    KINDS,
    AdapterRun,
    Capabilities,
    InterceptorKey,
    OperationState,
    recover_agent,
)
from hookline.runtime._hooks_at_resume import all_interceptor_keys, check_interceptors, interceptor_keys
from tests.tables import for_each

from .durable import Died, Disk, DyingStore
from .interception import JsonStore
from .scenes import Recorder, ask, call, calls, says

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("allowed", [False, True], ids=["not allowed", "allowed"])


def nothing(made: Any) -> None:
    """A guard that lets everything pass."""


def guarding(name: str, *, inherit: bool = False) -> Hooks:
    hooks = Hooks(name, inherit=inherit)
    hooks.guard(ToolCall, id=f"{name}.guard")(nothing)
    return hooks


def twin() -> Interceptor:
    return Interceptor(id="twin", call=ToolCall, kind="guard", handler=nothing)


class Shop:
    """A run with interceptors from everywhere, paused or dead in one process, and what goes on with it in another.

    Attributes:
        given: The hooks of the run, by the names of the cases.
        own: The agent's own.
    """

    def __init__(self, who: str) -> None:
        self.who, self.disk, self.paid, self.store = who, Disk(), list[int](), DyingStore(Disk())
        self.own: list[AnyHook] = [guarding("own")]
        self.given: dict[str, AnyHook] = {
            "passed": guarding("passed", inherit=who == "sub-agent"),
            "inherited": guarding("inherited", inherit=True),
            "twin": twin(),
            "other twin": twin(),
        }

    def agent(self, own: Sequence[AnyHook]) -> Agent:
        asks = self.who in ("resume", "session", "foreign")

        @tool(in_thread=False, needs_approval=asks)
        async def pay(amount: int) -> str:
            if not asks:
                self.store._die()
            self.paid.append(amount)
            return f"paid {amount}"

        def answer(made: Any) -> ModelResponse:
            told = [message.content for message in made.messages if message.role == "tool"]
            return says(told[-1]) if told else calls(call("pay", "p1", amount=5))

        worker = Agent(id="shop", model=ScriptedModel(answer), tools=[pay], hooks=own)
        if self.who != "sub-agent":
            return worker

        def order(made: Any) -> ModelResponse:
            told = [message.content for message in made.messages if message.role == "tool"]
            return says(told[-1]) if told else calls(ask("shop", "c1"))

        return Agent(id="boss", model=ScriptedModel(order), sub_agents=[worker])

    async def start(self) -> None:
        """Run until a person is asked, or until the process dies."""
        self.store = DyingStore(self.disk)
        hooks = list(self.given.values())
        if self.who == "foreign":
            async with AdapterRun(
                [*self.own, *hooks], LOOP, agent_id="shop", operation_id="op", store=self.store
            ) as run:
                run.begin_step()
                run.pause()
        elif self.who in ("resume", "session"):
            result = await exec_agent(self.agent(self.own), "go", hooks=hooks, operation_id="op", store=self.store)
            assert result.reason == "waiting_for_human"
        else:
            with pytest.raises(Died):
                await exec_agent(self.agent(self.own), "go", hooks=hooks, operation_id="op", store=self.store)

    async def go_on(
        self, *, own: Sequence[AnyHook], hooks: Sequence[AnyHook], allow_missing_hooks: bool = False
    ) -> OperationResult | None:
        """Go on in another process."""
        self.store = store = DyingStore(self.disk)
        agent, further = self.agent(own), {"allow_missing_hooks": allow_missing_hooks}
        if self.who == "resume":
            return await resume_agent(agent, "op", [Approve("p1")], hooks=hooks, store=store, **further)
        if self.who == "session":
            async with AgentSession(agent, hooks=hooks, store=store) as session:
                session.pending = "op"
                try:
                    return await session.resume([Approve("p1")], **further)
                finally:
                    assert session.phase == "idle"
        if self.who == "foreign":
            given = {"agent_id": "shop", "operation_id": "op", "store": store, **further}
            async with AdapterRun([*own, *hooks], LOOP, **given) as run:  # type: ignore[arg-type]
                run.decided([Approve("p1")])
            return None
        return await recover_agent(agent, "op", hooks=hooks, store=store, **further)


LOOP = Capabilities(framework="a loop", calls={ToolCall: KINDS}, asks=True)
WHO = ("resume", "session", "recover", "sub-agent", "foreign")
CASES: dict[str, tuple[str, ...]] = {
    "own": ("own.guard",),
    "passed": ("passed.guard",),
    "inherited": ("inherited.guard",),
    "twin": ("twin",),
}
"""What is left out, and the ids that are missing then. Of the two twins one stays."""


@BOTH
@for_each("case", CASES)
@for_each("who", WHO)
async def test_whoever_goes_on_without_an_interceptor_is_refused_unless_that_is_allowed(
    who: str, case: str, allowed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    shop, recorder = Shop(who), Recorder()
    await shop.start()
    before_it, written = copy.deepcopy(shop.disk.__dict__), dict(shop.disk.states)
    left = {name: hook for name, hook in shop.given.items() if name != case}
    fewer: dict[str, Any] = {
        "own": [] if case == "own" else shop.own,
        "hooks": [*left.values(), recorder.hooks],
    }

    if allowed:
        result = await shop.go_on(**fewer, allow_missing_hooks=True)

        assert result is None or result.reason == "done"
        warnings = [record for record in caplog.records if "continues without" in record.message]
        names = [record.args[0] for record in warnings if isinstance(record.args, tuple)]
        assert names
        assert len(set(names)) == len(names)  # one for each operation: a sub-agent is one of its own
        assert all(each.levelno == logging.WARNING and CASES[case][0] in each.message for each in warnings)
        return
    with pytest.raises(MissingHooksError) as caught:
        await shop.go_on(**fewer)

    assert [hook_id for hook_id, _, _ in caught.value.missing] == list(CASES[case])
    assert (shop.disk.states, shop.disk.events) == (written, before_it["events"])
    assert (shop.paid, recorder.events) == ([], [])
    result = await shop.go_on(own=shop.own, hooks=[*shop.given.values()])  # the same decision, with the hooks
    assert result is None or result.reason == "done"
    assert shop.paid == ([5] if who in ("resume", "session") else [])


async def test_the_error_is_no_operation_error_and_says_what_happened_why_and_what_to_do() -> None:
    error = MissingHooksError("op", [("rules.no_wire", "guard", "ToolCall")])

    assert isinstance(error, HooklineError)
    assert not isinstance(error, OperationError)
    for words in ("'op'", "'rules.no_wire' (guard ToolCall)", "not resumed", "hooks=[...]", "allow_missing_hooks=True"):
        assert words in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.missing, again.operation_id) == (str(error), error.missing, "op")


async def test_a_message_names_the_first_of_very_many() -> None:
    error = MissingHooksError("op", [(f"hook{nth}", "guard", "ToolCall") for nth in range(10_000)])

    assert "and 9980 more" in str(error)
    assert len(str(error)) < 2000


# What the list holds.


async def stored(*hooks: AnyHook, agent_hooks: Sequence[AnyHook] = (), tenant_id: str = "") -> list[InterceptorKey]:
    """The list of an operation that waits."""
    store = JsonStore()
    agent = Agent(id="a", model=ScriptedModel([calls(call("pay", "p1"))]), tools=[needing()], hooks=agent_hooks)
    await exec_agent(agent, "go", hooks=hooks, operation_id="op", store=store, tenant_id=tenant_id)
    state = await store.load("op")
    assert state is not None
    assert state.interceptors is not None
    return state.interceptors


def needing() -> Any:
    @tool(in_thread=False, needs_approval=True)
    async def pay() -> str:
        return "paid"

    return pay


async def test_the_state_lists_the_interceptors_of_the_agent_and_of_the_run_and_no_other_hook() -> None:
    mixed = Hooks("mixed")
    mixed.on(BeforeToolCall)(nothing)
    mixed.on_phase(None, None)(nothing)
    mixed.around(StepCall, id="step")(lambda made, call_next: call_next(made))
    mixed.after(ToolCall, id="later", wait=False)(lambda made, result: None)
    definition = guarding("definition")
    definition.from_definition = True
    control = Hook(id="control", type=BeforeToolCall, webhook={"url": "local://x", "control": True})
    observer = Hook(id="observer", type=BeforeToolCall, handler=nothing)

    listed = await stored(
        mixed, twin(), twin(), definition, control, observer, TracingHooks(), agent_hooks=[guarding("own")]
    )

    assert listed == [
        ("own.guard", "guard", "ToolCall"),
        ("step", "around", "StepCall"),
        ("later", "after", "ToolCall"),
        ("twin", "guard", "ToolCall"),
        ("twin", "guard", "ToolCall"),
    ]


async def test_the_list_follows_a_bundle_that_grows_and_serves_several_tenants() -> None:
    rules = Hooks("rules", tenant_id="acme")
    rules.guard(ToolCall, id="first")(nothing)
    assert [key.id for key in await stored(rules, tenant_id="acme")] == ["first"]

    rules.guard(ToolCall, id="second")(nothing)

    assert [key.id for key in await stored(rules, tenant_id="other")] == []
    assert [key.id for key in await stored(rules, tenant_id="acme")] == ["first", "second"]


async def test_interceptors_of_other_tenants_never_ran_and_are_not_missed() -> None:
    hooks = [Hooks(tenant or "all", tenant_id=tenant) for tenant in ("", "acme", "other")]
    for each in hooks:
        each.guard(ToolCall, id=each.id)(nothing)

    assert [key.id for key in await stored(*hooks, tenant_id="acme")] == ["all", "acme"]


@for_each("changed", [("guard", ToolCall, "twin"), ("before", StepCall, "twin"), ("before", ToolCall, "t")])
async def test_an_interceptor_of_another_kind_call_or_id_does_not_stand_in(changed: tuple[Any, type[Any], str]) -> None:
    kind, point, name = changed
    state = OperationState(operation_id="op", agent_id="a", interceptors=[InterceptorKey("twin", "before", "ToolCall")])

    with pytest.raises(MissingHooksError):
        check_interceptors(state, [Interceptor(id=name, call=point, kind=kind, handler=nothing)], allow_missing=False)


async def test_a_hook_of_a_stored_definition_does_not_stand_in_for_one_that_was_given() -> None:
    state = OperationState(operation_id="op", agent_id="a", interceptors=interceptor_keys([guarding("rules")], ""))
    definition = guarding("rules")
    definition.from_definition = True

    with pytest.raises(MissingHooksError):
        check_interceptors(state, [definition], allow_missing=False)


async def test_a_hook_that_a_resume_adds_belongs_to_the_operation_from_then_on() -> None:
    shop, more = Shop("resume"), guarding("more")
    shop.given = {}

    async def waits(*hooks: AnyHook, **further: Any) -> OperationResult:
        return await resume_agent(paying_twice(), "op", [Approve(f"p{nth}")], store=shop.store, hooks=hooks, **further)

    await exec_agent(paying_twice(), "go", operation_id="op", store=shop.store)
    nth = 0
    assert (await waits(more)).reason == "waiting_for_human"
    nth = 1
    with pytest.raises(MissingHooksError) as caught:
        await waits()
    assert caught.value.missing == [("more.guard", "guard", "ToolCall")]
    assert (await waits(more)).reason == "done"


async def test_leave_to_go_on_without_a_hook_is_for_one_segment() -> None:
    store, rules = JsonStore(), guarding("rules")
    await exec_agent(paying_twice(), "go", hooks=[rules], operation_id="op", store=store)
    await resume_agent(paying_twice(), "op", [Approve("p0")], store=store, allow_missing_hooks=True)

    with pytest.raises(MissingHooksError):
        await resume_agent(paying_twice(), "op", [Approve("p1")], store=store)

    assert (await resume_agent(paying_twice(), "op", [Approve("p1")], store=store, hooks=[rules])).reason == "done"


@pytest.mark.parametrize("store", [InMemoryStore, lambda: DyingStore(Disk())], ids=["volatile", "durable"])
async def test_a_call_that_a_missing_hook_asked_about_counts_once_and_keeps_its_index(store: Any) -> None:
    kept, seen, asking = store(), Recorder(), Hooks()

    @asking.guard(ToolCall)
    def ask_first(_: ToolCall) -> Ask:
        return Ask("May it?")

    def paying() -> Agent:
        @tool
        async def pay() -> str:
            return "paid"

        model = ScriptedModel(lambda made: says() if made.messages[-1].role == "tool" else calls(*both))
        return Agent(id="payer", model=model, tools=[pay])

    both = [call("pay", "p0"), call("pay", "p1")]
    await exec_agent(paying(), "go", operation_id="op", store=kept, hooks=[asking])
    result = await resume_agent(
        paying(),
        "op",
        [Approve("p0"), Approve("p1")],
        store=kept,
        hooks=[seen.hooks],
        allow_missing_hooks=True,
    )

    assert sorted(event.call_index for event in seen.of(BeforeToolCall, "op")) == [1, 2]
    assert (result.reason, result.tool_calls) == ("done", 2)


def paying_twice() -> Agent:
    """Asks twice, one after the other."""

    @tool(in_thread=False, needs_approval=True)
    async def pay() -> str:
        return "paid"

    def answer(made: Any) -> ModelResponse:
        told = [message for message in made.messages if message.role == "tool"]
        return says("done") if len(told) == 2 else calls(call("pay", f"p{len(told)}"))

    return Agent(id="payer", model=ScriptedModel(answer), tools=[pay])


async def test_the_program_of_the_finding_is_refused() -> None:
    """A wire that a guard forbids was made, since the guard was forgotten on resume."""
    wired: list[str] = []
    rules = Hooks("rules")
    rules.guard(ToolCall, tool="*/pay", id="rules.ask")(lambda made: Ask("pay?"))
    rules.guard(ToolCall, tool="*/wire", id="rules.no_wire")(lambda made: Deny("no wires"))

    @tool(in_thread=False)
    async def pay() -> str:
        return "paid"

    @tool(in_thread=False)
    async def wire() -> str:
        wired.append("wired")
        return "wired"

    turns = [calls(call("pay", "p")), calls(call("wire", "w")), says()]
    agent, store = Agent(id="a", model=ScriptedModel(turns), tools=[pay, wire]), InMemoryStore()
    await exec_agent(agent, "go", operation_id="o", store=store, hooks=[rules])

    with pytest.raises(MissingHooksError):
        await resume_agent(agent, "o", [Approve("p")], store=store)

    assert (await resume_agent(agent, "o", [Approve("p")], store=store, hooks=[rules])).reason == "done"
    assert wired == []


@for_each("allowed", ["false", "true", 1, None, [0]])
async def test_only_true_allows_to_go_on_without_hooks(allowed: Any) -> None:
    """A guard is not left out because of what a configuration was read as."""
    shop = Shop("resume")
    await shop.start()

    with pytest.raises(MissingHooksError):
        await shop.go_on(own=shop.own, hooks=[], allow_missing_hooks=allowed)


@pytest.mark.parametrize("decision", [Reject("p1"), Reject("p1", and_continue=True)])
async def test_a_rejection_needs_the_hooks_too(decision: Reject) -> None:
    shop = Shop("resume")
    await shop.start()

    with pytest.raises(MissingHooksError):
        await resume_agent(shop.agent(shop.own), "op", [decision], store=DyingStore(shop.disk))


async def test_an_operation_that_is_abandoned_needs_no_hooks() -> None:
    shop = Shop("recover")
    await shop.start()

    result = await recover_agent(shop.agent([]), "op", store=DyingStore(shop.disk), abandon=True)

    assert result.reason == "interrupted"


# Sessions.


async def test_a_session_gives_the_hooks_of_its_paused_task_again_by_itself() -> None:
    judged: list[str] = []
    rules, recorder, late = Hooks("rules"), Recorder(inherit=False), Hooks("late")
    rules.guard(ToolCall)(lambda made: judged.append(made.tool_call_id))
    late.guard(ToolCall)(lambda made: judged.append(f"late {made.tool_call_id}"))
    async with AgentSession(paying_twice(), store=InMemoryStore()) as session:
        await session.run("go", hooks=[rules, recorder.hooks])
        await session.resume([Approve("p0")], hooks=[late, rules])
        judged.clear()

        result = await session.resume([Approve("p1")])

        assert result.reason == "done"
        assert judged == ["p1", "late p1"]
        assert [event.reason for event in recorder.events if event.hook_type == "onComplete"][-1] == "done"
        judged.clear()
        await session.run("again")
        assert judged == []  # the next task has hooks of its own


async def test_a_resume_that_is_refused_leaves_the_session_waiting() -> None:
    shop = Shop("session")
    await shop.start()
    async with AgentSession(shop.agent(shop.own), store=DyingStore(shop.disk)) as session:
        session.pending = "op"
        with pytest.raises(MissingHooksError):
            await session.resume([Approve("p1")])

        assert (session.pending, session.phase) == ("op", "idle")
        assert (await session.resume([Approve("p1")], hooks=[*shop.given.values()])).reason == "done"


# Sub-agents.


async def test_a_sub_agent_that_waits_needs_what_its_caller_handed_on() -> None:
    store, handed = JsonStore(), guarding("handed", inherit=True)
    child = Agent(id="helper", model=ScriptedModel([calls(call("pay", "p1"))]), tools=[needing()])
    boss = Agent(id="boss", model=ScriptedModel([calls(ask("helper")), says()]), sub_agents=[child], hooks=[handed])
    recorder = Recorder()
    await exec_agent(boss, "go", store=store, operation_id="op", hooks=[recorder.hooks])
    child_id = next(name for name in recorder.by_operation() if name != "op")
    later = Agent(id="helper", model=ScriptedModel([says("paid")]), tools=[needing()])

    with pytest.raises(MissingHooksError) as caught:
        await resume_agent(later, child_id, [Approve("p1")], store=store)

    assert caught.value.missing == [("handed.guard", "guard", "ToolCall")]
    result = await resume_agent(later, child_id, [Approve("p1")], store=store, hooks=[handed])
    assert result.output == "paid"


async def test_of_a_sub_agent_the_error_names_its_own_operation() -> None:
    shop = Shop("sub-agent")
    await shop.start()
    [child_id] = [name for name in shop.disk.states if name != "op"]

    with pytest.raises(MissingHooksError) as caught:
        await shop.go_on(own=[], hooks=[*shop.given.values()])

    assert caught.value.operation_id == child_id


# States of earlier versions.


@pytest.mark.parametrize("framework", ["", "a loop"])
async def test_a_state_without_the_list_goes_on_with_one_warning_and_has_a_list_from_then_on(
    framework: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, rules = JsonStore(), guarding("rules")
    if framework:
        async with AdapterRun([rules], LOOP, operation_id="op", store=store) as run:
            run.begin_step()
            run.pause()
    else:
        await exec_agent(paying_twice(), "go", hooks=[rules], operation_id="op", store=store)
    state = await store.load("op")
    assert state is not None
    older = msgspec.structs.replace(state, interceptors=None, format=2, version=state.version + 1)
    await store.save(older, expected_version=state.version)

    if framework:
        async with AdapterRun([rules], LOOP, operation_id="op", store=store) as run:
            run.pause()
    else:
        await resume_agent(paying_twice(), "op", [Approve("p0")], store=store, hooks=[rules])

    assert [record.levelname for record in caplog.records if "did not list" in record.message] == ["WARNING"]
    caplog.clear()
    state = await store.load("op")
    assert state is not None
    assert state.interceptors == [("rules.guard", "guard", "ToolCall")]


# Other frameworks.


async def test_a_sub_run_of_another_framework_may_miss_what_its_caller_may() -> None:
    store, rules = InMemoryStore(), guarding("rules")
    async with AdapterRun([rules], LOOP, operation_id="child", store=store) as run:
        run.begin_step()
        run.pause()

    async with (
        AdapterRun([], LOOP, store=store, allow_missing_hooks=True) as parent,
        AdapterRun([], LOOP, operation_id="child", store=store, parent=parent) as run,
    ):
        run.decided([Approve("p1")])

    assert (await store.load("child")).status == "done"  # type: ignore[union-attr]


# The law.

keys = st.tuples(st.sampled_from("ab"), st.sampled_from(["guard", "before"]), st.sampled_from([ToolCall, StepCall]))


def interceptors(of: Sequence[tuple[str, str, type[Any]]]) -> list[Interceptor]:
    return [Interceptor(id=name, kind=kind, call=point, handler=nothing) for name, kind, point in of]  # type: ignore[arg-type]


def bundled(of: Sequence[Interceptor], cut: int) -> list[AnyHook]:
    """The same interceptors, some of them in a bundle."""
    bundle = Hooks("bundle")
    bundle.interceptors = tuple(of[:cut])
    return [bundle, *of[cut:]]


@given(had=st.lists(keys, max_size=6), has=st.lists(keys, max_size=6), cut=st.integers(0, 6), data=st.data())
def test_what_is_missing_is_the_difference_of_two_multisets_whatever_the_order_and_the_bundles(
    had: list[Any], has: list[Any], cut: int, data: st.DataObject
) -> None:
    state = OperationState(operation_id="op", agent_id="a", interceptors=interceptor_keys(interceptors(had), ""))
    shuffled = bundled(interceptors(data.draw(st.permutations(has))), cut)
    wanted = Counter((name, kind, point.__name__) for name, kind, point in had)
    there = Counter((name, kind, point.__name__) for name, kind, point in has)

    try:
        check_interceptors(state, shuffled, allow_missing=False)
        missing: Counter[Any] = Counter()
    except MissingHooksError as error:
        missing = Counter(error.missing)

    assert missing == wanted - there
    assert Counter(all_interceptor_keys(state, shuffled)) == wanted | there


async def test_nothing_is_compared_before_the_operation_is_found_and_nothing_is_claimed_before_it_is_compared() -> None:
    """Whoever is refused has read the store, and written nothing."""
    shop = Shop("resume")
    await shop.start()
    store = DyingStore(shop.disk, dies_at=1)  # at its first write

    with pytest.raises(MissingHooksError):
        await resume_agent(shop.agent([]), "op", [Approve("p1")], store=store)

    assert (store.writes, store.dead) == (0, False)
