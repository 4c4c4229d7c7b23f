"""What went wrong in the phase hooks of AutoByteUs, and does not here."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest
from interceptors.calls import turns
from phases.samples import Pair, PhaseHookOf, announced, machine_in, noting, pair
from runtime.interception import noting_phases, pay, paying, session_of
from runtime.scenes import agent_of, ask, call, calls, says

from hookline import AfterStep, Hooks, ModelCall, ToolCall, exec_agent, tool
from hookline.errors import PhaseTransitionError
from hookline.phases import TRANSITIONS, Phase, PhaseHook, PhaseMachine, PhaseTransition
from tests.tables import for_each

pytestmark = pytest.mark.anyio

START: Pair = (Phase.UNINITIALIZED, Phase.BOOTSTRAPPING)
READY: Pair = (Phase.BOOTSTRAPPING, Phase.IDLE)


def on(where: tuple[Phase | None, Phase | None], *handlers: Any, **options: Any) -> Hooks:
    hooks = Hooks("phases")
    for handler in handlers:
        hooks.on_phase(*where, **options)(handler)
    return hooks


async def test_no_order_can_be_set_that_nothing_reads() -> None:
    """AutoByteUs 1: `get_order` and `is_mandatory` could be set, and nothing read them."""
    ran: list[int] = []
    hooks = on(START, *(lambda move, n=n: ran.append(n) for n in (3, 1, 2)))
    for dead in ("order", "priority", "mandatory"):
        with pytest.raises(TypeError, match=dead):
            hooks.on_phase(*START, **{dead: 1})

    await PhaseMachine("a", [hooks, on(START, lambda move: ran.append(0))]).move(Phase.BOOTSTRAPPING)

    assert ran == [3, 1, 2, 0]
    assert not {name for name in vars(PhaseHook) if "order" in name or "mandatory" in name}


@for_each("source", Phase)
async def test_no_phase_is_entered_that_the_table_does_not_allow(source: Phase) -> None:
    """AutoByteUs 2: the table of transitions was documentation; most moves checked nothing."""
    ran: list[Pair] = []
    machine = await machine_in(source, hooks=[on((None, None), lambda move: ran.append(pair(move)))])
    ran.clear()

    for target in Phase:
        if target is not source and target not in TRANSITIONS[source]:
            with pytest.raises(PhaseTransitionError):
                await machine.move(target)

    assert (machine.phase, ran) == (source, [])


async def test_a_move_inside_of_a_hook_leaves_no_stale_notification_last() -> None:
    """AutoByteUs 3: a move inside of a hook broke the order, and the last notification was stale."""

    async def goes_on(move: PhaseTransition) -> None:
        await machine.move(Phase.IDLE)

    machine = PhaseMachine("a", [on(START, goes_on)])
    with announced(machine) as moves:
        await machine.move(Phase.BOOTSTRAPPING)

    assert [pair(move) for move in moves] == [START, READY]
    assert moves[-1].target is machine.phase


async def test_a_hung_hook_does_not_stop_the_agent() -> None:
    """AutoByteUs 4: there was no timeout, so that one hung hook stopped the agent."""
    ran: list[str] = []

    async def hangs(move: PhaseTransition) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ran.append("stopped")

    hooks = [on(START, hangs, timeout=0.01), on(START, lambda move: ran.append("next"))]
    machine = PhaseMachine("a", hooks)
    with anyio.fail_after(5), announced(machine) as moves:
        await machine.move(Phase.BOOTSTRAPPING)

    assert (machine.phase, len(moves), ran) == (Phase.BOOTSTRAPPING, 1, ["stopped", "next"])


async def test_any_to_error_does_not_take_eleven_hooks_without_data() -> None:
    """AutoByteUs 5: hooks got no data and had no wildcards; no veto either, which is what interceptors are for."""
    seen: list[PhaseTransition] = []
    living = [phase for phase in Phase if not phase.is_terminal]
    hooks = on((None, Phase.ERROR), seen.append)
    for phase in living:
        machine = await machine_in(phase, hooks=[hooks], operation_id="op")
        await machine.move(Phase.ERROR, reason="no line")

    assert len(living) == 11
    assert [(m.agent_id, m.operation_id, m.source, m.target, m.reason) for m in seen] == [
        ("agent", "op", phase, Phase.ERROR, "no line") for phase in living
    ]


async def test_a_move_that_was_cancelled_in_a_hook_does_not_go_unannounced() -> None:
    """AutoByteUs 6: the phase was changed before the hooks, so that a cancellation left it unannounced."""
    begun = anyio.Event()

    async def hangs(move: PhaseTransition) -> None:
        begun.set()
        await anyio.sleep_forever()

    machine = PhaseMachine("a", [on(START, hangs)])
    with announced(machine) as moves:
        async with anyio.create_task_group() as group:
            group.start_soon(machine.move, Phase.BOOTSTRAPPING)
            await begun.wait()
            group.cancel_scope.cancel()

    assert ([pair(move) for move in moves], machine.phase) == ([START], Phase.BOOTSTRAPPING)


async def test_hooks_shared_by_agents_on_other_threads_and_loops_do_not_meet(anyio_backend: str) -> None:
    """AutoByteUs 7: instances were shared by agents on different threads and loops."""
    seen: dict[str, list[Any]] = {"a": [], "b": []}
    meeting = threading.Barrier(2, timeout=5)

    async def note(move: PhaseTransition) -> None:
        meeting.wait()  # both are in the middle of the same hook
        await turns()
        seen[move.agent_id].append((threading.get_ident(), pair(move)))

    shared = [on((None, None), note), PhaseHookOf(None, None, note)]
    async with anyio.create_task_group() as group:
        for name in seen:
            live = partial(anyio.run, PhaseMachine(name, shared).move, Phase.BOOTSTRAPPING, backend=anyio_backend)
            group.start_soon(anyio.to_thread.run_sync, live)

    assert [[where for _, where in moves] for moves in seen.values()] == [[START] * 2] * 2
    assert len({thread for moves in seen.values() for thread, _ in moves}) == 2


async def test_a_hook_class_that_is_only_defined_does_not_leak_into_any_agent() -> None:
    """AutoByteUs 8: a metaclass filled a global singleton at import; names collided, constructors took no arguments."""
    ran: list[str] = []

    class Defined(PhaseHook):
        source_phase, target_phase = START

        async def execute(self, context: PhaseTransition) -> None:
            ran.append("leaked")

    same_name = [PhaseHookOf(*START, noting(ran, word, is_async=True)) for word in ("one", "two")]
    await PhaseMachine("none").move(Phase.BOOTSTRAPPING)
    await PhaseMachine("both", same_name).move(Phase.BOOTSTRAPPING)

    assert ran == ["one", "two"]


async def test_a_move_does_not_build_strings_for_a_log_that_nobody_reads(caplog: pytest.LogCaptureFixture) -> None:
    """AutoByteUs 9: strings for the log were built on every transition."""
    built: list[str] = []

    class Counted(str):
        __slots__ = ()

        def __format__(self, spec: str) -> str:
            built.append(spec)
            return ""

        __str__ = __repr__ = lambda self: self.__format__("")

    caplog.set_level(logging.DEBUG, "hookline")
    machine = PhaseMachine(Counted("a"), [on((None, None), lambda move: None)], operation_id=Counted("op"))
    await machine.move(Phase.BOOTSTRAPPING, reason=Counted("why"))
    assert (built, caplog.records) == ([], [])
    assert str(Counted("counted")) == "", "it counts"


async def test_agents_that_work_for_another_are_not_without_hooks() -> None:
    """AutoByteUs 10: teams had no hooks. Sub-agents have them; what has no phases here is a plain run, theirs too."""
    seen: list[Any] = []
    hooks = Hooks("h", inherit=True)
    hooks.on(AfterStep)(lambda event: seen.append(event.agent_id))
    hooks.before(ModelCall)(lambda call: seen.append(call.operation_id == "op"))
    child = agent_of(says("helped"), id="helper")

    await exec_agent(
        agent_of(calls(ask("helper")), says(), id="lead", sub_agents=[child]), "go", hooks=[hooks], operation_id="op"
    )

    assert seen == [True, False, "helper", "lead", True, "lead"]


async def test_parallel_tool_calls_do_not_fire_only_once() -> None:
    """AutoByteUs replacement: parallel calls fired once, instead of once for each call."""
    seen: list[str] = []
    hooks = Hooks("h")
    hooks.before(ToolCall)(lambda call: seen.append(f"before {call.tool_call_id}"))
    hooks.after(ToolCall)(lambda call, result: seen.append(f"after {call.tool_call_id}"))

    await exec_agent(paying([], calls(*(pay(call_id=f"p{n}") for n in range(3))), says()), "go", hooks=[hooks])

    assert sorted(seen) == [f"{word} p{n}" for word in ("after", "before") for n in range(3)]


@pytest.mark.parametrize("target", [Phase.SHUTTING_DOWN, Phase.ERROR])
async def test_the_end_of_an_agent_that_executes_a_tool_is_not_lost(target: Phase) -> None:
    """AutoByteUs replacement: executing_tool → shutting_down or error lost the event of the shutdown."""
    heard: list[Phase] = []
    machine = await machine_in(Phase.EXECUTING_TOOL, hooks=[on((None, target), lambda move: heard.append(move.source))])
    with announced(machine) as moves:
        await machine.move(target)

    assert (heard, [move.target for move in moves]) == ([Phase.EXECUTING_TOOL], [target])


async def test_a_session_that_is_left_while_a_tool_runs_does_not_lose_its_shutdown() -> None:
    """AutoByteUs replacement: the same, of a whole agent."""
    moves: list[str] = []
    running = anyio.Event()

    @tool
    async def hangs() -> None:
        running.set()
        await anyio.sleep_forever()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            agent = agent_of(calls(call("hangs")), tools=[hangs], hooks=[noting_phases(moves)])
            async with session_of(agent) as session:
                group.start_soon(session.run, "go")
                await running.wait()
                assert session.phase is Phase.EXECUTING_TOOL

    assert moves[-2:] == ["idle>shutting_down", "shutting_down>shutdown_complete"]


async def test_a_hook_after_a_tool_does_not_come_before_the_result_is_there() -> None:
    """AutoByteUs replacement: the hook after a tool fired before the result carried data."""
    seen: list[str] = []
    hooks = Hooks("h")
    hooks.after(ToolCall)(lambda call, result: seen.append(result.content))

    await exec_agent(paying([], calls(pay(5)), says()), "go", hooks=[hooks])

    assert seen == ["paid 5"]
