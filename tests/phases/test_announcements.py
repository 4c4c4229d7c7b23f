"""`signals.phase_changed`: every move is announced once, after its hooks, in the order in which phases were entered."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from dispatcher.samples import connected, for_ever, soon, turns
from hypothesis import given
from hypothesis import strategies as st

from hookline import Hooks
from hookline.errors import PhaseTransitionError
from hookline.phases import TRANSITIONS, Phase, PhaseMachine, PhaseTransition
from hookline.signals import phase_changed

from .samples import announced, machine_in, noting, pair

pytestmark = pytest.mark.anyio

START = (Phase.UNINITIALIZED, Phase.BOOTSTRAPPING)
READY = (Phase.BOOTSTRAPPING, Phase.IDLE)
FAILED = (Phase.IDLE, Phase.ERROR)


def on(moved: tuple[Phase, Phase], *handlers: Any, timeout: float | None = None) -> Hooks:
    """Handlers for one move."""
    hooks = Hooks("h")
    for handler in handlers:
        hooks.on_phase(*moved, timeout=timeout)(handler)
    return hooks


async def test_a_move_is_announced_once_after_all_of_its_hooks() -> None:
    log: list[Any] = []

    def hear(sender: object, transition: PhaseTransition) -> None:
        log.append((sender, transition))

    machine = PhaseMachine("agent", [on(START, noting(log, "plain"), noting(log, "async", is_async=True))])

    with connected(phase_changed, hear):
        await machine.move(Phase.BOOTSTRAPPING, reason="go")

    assert log[:2] == ["plain", "async"]
    ((sender, transition),) = log[2:]
    assert sender is machine
    assert pair(transition) == START
    assert (transition.agent_id, transition.reason) == ("agent", "go")


async def test_hooks_and_receivers_are_shown_the_same_transition() -> None:
    log: list[PhaseTransition] = []
    machine = PhaseMachine("agent", [on(START, noting(log))])

    with announced() as moves:
        await machine.move(Phase.BOOTSTRAPPING)

    assert moves[0] is log[0]


async def test_a_receiver_that_raises_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def broken(sender: object, transition: PhaseTransition) -> None:
        raise ValueError("broken receiver")

    machine = PhaseMachine("agent")

    with connected(phase_changed, broken), announced() as moves:
        await machine.move(Phase.BOOTSTRAPPING)
        await machine.move(Phase.IDLE)

    assert [pair(move) for move in moves] == [START, READY]
    assert len(caplog.records) == 2


async def test_a_reentrant_move_is_announced_after_the_move_that_caused_it() -> None:
    log: list[Any] = []

    async def go_on(transition: PhaseTransition) -> None:
        await turns(1)
        await machine.move(Phase.IDLE)
        log.append("moved")

    machine = PhaseMachine("agent", [on(START, go_on, noting(log, "rest")), on(READY, noting(log, "inner"))])

    with announced() as moves:
        await machine.move(Phase.BOOTSTRAPPING)
        assert machine.phase is Phase.IDLE

    assert log == ["inner", "moved", "rest"]
    assert [pair(move) for move in moves] == [START, READY]


async def test_a_chain_of_reentrant_moves_leaves_no_stale_announcement_last() -> None:
    def move_on(target: Phase) -> Any:
        async def handler(transition: PhaseTransition) -> None:
            await machine.move(target)

        return handler

    machine = PhaseMachine("agent", [on(START, move_on(Phase.IDLE)), on(READY, move_on(Phase.ERROR)), on(FAILED, move_on(Phase.UNINITIALIZED))])  # fmt: skip

    with announced() as moves:
        await machine.move(Phase.BOOTSTRAPPING)

    assert [pair(move) for move in moves] == [START, READY, FAILED, (Phase.ERROR, Phase.UNINITIALIZED)]
    assert machine.phase is moves[-1].target


async def test_a_move_in_another_task_waits_for_its_turn_to_be_announced() -> None:
    entered, release = anyio.Event(), anyio.Event()
    log: list[str] = []

    async def wait(transition: PhaseTransition) -> None:
        entered.set()
        await release.wait()

    machine = PhaseMachine("agent", [on(START, wait), on(READY, noting(log, "at once"))])

    with announced() as moves:
        async with soon(), anyio.create_task_group() as group:
            group.start_soon(machine.move, Phase.BOOTSTRAPPING)
            await entered.wait()
            await machine.move(Phase.IDLE)
            assert machine.phase is Phase.IDLE
            assert log == ["at once"]
            assert moves == []
            release.set()

    assert [pair(move) for move in moves] == [START, READY]


async def test_a_refused_move_leaves_the_announcements_of_others_alone() -> None:
    async def leap(transition: PhaseTransition) -> None:
        with pytest.raises(PhaseTransitionError):
            await machine.move(Phase.TOOL_DENIED)

    machine = PhaseMachine("agent", [on(START, leap)])

    with announced() as moves:
        await machine.move(Phase.BOOTSTRAPPING)

    assert [pair(move) for move in moves] == [START]


async def test_a_move_that_a_receiver_makes_is_announced_to_everybody_in_its_turn() -> None:
    heard: dict[str, list[Any]] = {"first": [], "second": []}

    def hear(name: str) -> Any:
        def receiver(sender: object, transition: PhaseTransition) -> None:
            heard[name].append(pair(transition))
            if machine.phase is Phase.BOOTSTRAPPING:
                with pytest.raises(StopIteration):  # as an eager task would take its first step
                    machine.move(Phase.IDLE).__await__().__next__()

        return receiver

    machine = PhaseMachine("agent")

    with connected(phase_changed, hear("first")), connected(phase_changed, hear("second")):
        await machine.move(Phase.BOOTSTRAPPING)

    assert heard == {"first": [START, READY], "second": [START, READY]}


async def test_who_begins_to_listen_inside_of_a_hook_hears_of_that_move_and_those_it_caused() -> None:
    heard: list[Any] = []

    def hear(sender: object, transition: PhaseTransition) -> None:
        heard.append(pair(transition))

    async def go_on(transition: PhaseTransition) -> None:
        await machine.move(Phase.IDLE)
        phase_changed.connect(hear)

    machine = PhaseMachine("agent", [on(START, go_on)])
    try:
        await machine.move(Phase.BOOTSTRAPPING)
    finally:
        phase_changed.disconnect(hear)

    assert heard == [START, READY]


# --- cancellation


@pytest.mark.parametrize("timeout", [None, math.inf])
async def test_a_move_cancelled_inside_a_hook_is_still_announced(timeout: float | None) -> None:
    log: list[str] = []
    entered = anyio.Event()

    async def hang(transition: PhaseTransition) -> None:
        entered.set()
        await for_ever()

    machine = PhaseMachine("agent", [on(START, hang, noting(log, "next"), timeout=timeout)])

    async def agent() -> None:
        await machine.move(Phase.BOOTSTRAPPING)
        log.append("went on")

    with announced() as moves:
        async with soon(), anyio.create_task_group() as group:
            group.start_soon(agent)
            await entered.wait()
            group.cancel_scope.cancel()

    assert [pair(move) for move in moves] == [START]
    assert machine.phase is Phase.BOOTSTRAPPING
    assert log == []

    await machine.move(Phase.IDLE)
    assert machine.phase is Phase.IDLE


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("swallows", [False, True, "raises"], ids=["passes on", "swallows", "raises another"])
async def test_the_task_of_a_move_is_cancelled_whatever_its_hook_makes_of_it(swallows: Any) -> None:
    log: list[str] = []
    entered = asyncio.Event()

    async def hang(transition: PhaseTransition) -> None:
        entered.set()
        try:
            await for_ever()
        except asyncio.CancelledError:
            if swallows == "raises":
                raise ValueError("instead") from None
            if not swallows:
                raise

    machine = PhaseMachine("agent", [on(START, hang, noting(log, "next"))])

    with announced() as moves:
        async with soon():
            task = asyncio.ensure_future(machine.move(Phase.BOOTSTRAPPING))
            await entered.wait()
            task.cancel()
            await asyncio.wait([task])

    assert task.cancelled()
    assert log == []
    assert [pair(move) for move in moves] == [START]


async def test_reentrant_moves_that_are_cancelled_are_all_announced_in_causal_order() -> None:
    entered = anyio.Event()

    async def go_on(transition: PhaseTransition) -> None:
        await machine.move(Phase.IDLE)

    async def hang(transition: PhaseTransition) -> None:
        entered.set()
        await for_ever()

    machine = PhaseMachine("agent", [on(START, go_on), on(READY, hang)])

    with announced() as moves:
        async with soon(), anyio.create_task_group() as group:
            group.start_soon(machine.move, Phase.BOOTSTRAPPING)
            await entered.wait()
            group.cancel_scope.cancel()

    assert [pair(move) for move in moves] == [START, READY]


async def test_a_hook_whose_time_passes_inside_of_its_own_move_is_over_and_both_are_announced() -> None:
    log: list[str] = []

    async def go_on(transition: PhaseTransition) -> None:
        await machine.move(Phase.IDLE)

    async def hang(transition: PhaseTransition) -> None:
        await for_ever()

    machine = PhaseMachine(
        "agent",
        [on(START, go_on, timeout=0.25), on(START, noting(log, "next")), on(READY, hang, noting(log, "not run"))],
    )

    with announced() as moves:
        async with soon():
            await machine.move(Phase.BOOTSTRAPPING)
            await turns(2)

    assert log == ["next"]
    assert [pair(move) for move in moves] == [START, READY]


async def test_a_move_that_is_never_finished_is_announced_when_it_is_thrown_away() -> None:
    async def hang(transition: PhaseTransition) -> None:
        await anyio.lowlevel.checkpoint()

    machine = PhaseMachine("agent", [on(START, hang, timeout=math.inf)])
    coroutine = machine.move(Phase.BOOTSTRAPPING)

    with announced() as moves:
        coroutine.send(None)
        coroutine.close()

    assert [pair(move) for move in moves] == [START]


# --- any program


PROGRAM = st.lists(st.tuples(st.sampled_from(["move", "illegal", "suspend", "raise", "nothing"]), st.integers(0, 5)), max_size=25)  # fmt: skip


@given(
    program=PROGRAM,
    tasks=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    backend=st.sampled_from(["asyncio", "trio"]),
)
def test_announcements_are_causal_in_any_program(
    program: list[tuple[str, int]], tasks: list[int], backend: str
) -> None:
    async def main() -> None:
        entered: list[PhaseTransition] = []
        over: list[PhaseTransition] = []
        heard: list[PhaseTransition] = []
        rest = iter(program)

        def allowed(number: int) -> Phase:
            targets = sorted(TRANSITIONS[machine.phase])
            return targets[number % len(targets)]

        async def act(transition: PhaseTransition) -> None:
            for what, number in rest:
                if what == "move":
                    await machine.move(allowed(number))
                elif what == "illegal":
                    await machine.move(Phase.BOOTSTRAPPING if machine.phase is Phase.ERROR else Phase.SHUTDOWN_COMPLETE)
                elif what == "suspend":
                    await turns(number)
                elif what == "raise":
                    raise ValueError(number)
                else:
                    return

        def hear(sender: object, transition: PhaseTransition) -> None:
            heard.append(transition)
            assert transition in over

        hooks = Hooks("h")
        hooks.on_phase(None, None)(entered.append)  # the first hook of a move runs before anybody else can move
        hooks.on_phase(None, None)(act)
        hooks.on_phase(None, None)(act)
        hooks.on_phase(None, None)(over.append)
        machine = PhaseMachine("agent", [hooks])

        async def agent(number: int) -> None:
            await turns(number)
            await machine.move(allowed(number))

        with connected(phase_changed, hear):
            async with soon(), anyio.create_task_group() as group:
                for number in tasks:
                    group.start_soon(agent, number)

        assert heard == entered
        phases = [Phase.UNINITIALIZED, *(transition.target for transition in heard)]
        assert [transition.source for transition in heard] == phases[:-1]
        assert machine.phase is phases[-1]
        assert len(heard) >= len(tasks)

    logging.disable(logging.CRITICAL)
    try:
        anyio.run(main, backend=backend)
    finally:
        logging.disable(logging.NOTSET)


async def test_machines_do_not_wait_for_one_another() -> None:
    entered, release = anyio.Event(), anyio.Event()

    async def wait(transition: PhaseTransition) -> None:
        if transition.agent_id == "slow":
            entered.set()
            await release.wait()

    hooks = on(START, wait)
    slow, quick = PhaseMachine("slow", [hooks]), PhaseMachine("quick", [hooks])

    with announced() as moves:
        async with soon(), anyio.create_task_group() as group:
            group.start_soon(slow.move, Phase.BOOTSTRAPPING)
            await entered.wait()
            await quick.move(Phase.BOOTSTRAPPING)
            assert [move.agent_id for move in moves] == ["quick"]
            release.set()

    assert [move.agent_id for move in moves] == ["quick", "slow"]


async def test_nobody_listening_hears_nothing_later() -> None:
    machine = await machine_in(Phase.IDLE)

    with announced() as moves:
        await machine.move(Phase.ERROR)

    assert [pair(move) for move in moves] == [FAILED]
