"""The law of an agent's life: which phase may follow which, and that nothing else ever does."""

from __future__ import annotations

import pickle
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import Hooks
from hookline.errors import HooklineError, HookUsageError, PhaseTransitionError
from hookline.phases import TRANSITIONS, Phase, PhaseMachine
from tests.tables import for_each

from .samples import announced, machine_in, noting, path_to

pytestmark = pytest.mark.anyio

CONTRACT = {
    "uninitialized": "bootstrapping shutting_down error",
    "bootstrapping": "idle shutting_down error",
    "idle": "processing_user_input shutting_down error",
    "processing_user_input": "awaiting_llm_response idle shutting_down error",
    "awaiting_llm_response": "analyzing_llm_response idle shutting_down error",
    "analyzing_llm_response": "awaiting_tool_approval executing_tool processing_user_input idle shutting_down error",
    "awaiting_tool_approval": "executing_tool tool_denied idle shutting_down error",
    "tool_denied": "processing_user_input idle shutting_down error",
    "executing_tool": "processing_tool_result processing_user_input idle shutting_down error",
    "processing_tool_result": "awaiting_llm_response processing_user_input idle shutting_down error",
    "shutting_down": "shutdown_complete error",
    "shutdown_complete": "uninitialized",
    "error": "uninitialized",
}

AUTOBYTEUS = {
    "uninitialized": "shutdown_complete error",
    "bootstrapping": "uninitialized",
    "idle": "bootstrapping processing_user_input analyzing_llm_response processing_tool_result",
    "processing_user_input": "idle analyzing_llm_response processing_tool_result executing_tool tool_denied",
    "awaiting_llm_response": "processing_user_input processing_tool_result",
    "analyzing_llm_response": "awaiting_llm_response",
    "awaiting_tool_approval": "analyzing_llm_response",
    "executing_tool": "awaiting_tool_approval analyzing_llm_response",
    "tool_denied": "awaiting_tool_approval",
    "processing_tool_result": "executing_tool",
    "shutdown_complete": "shutting_down",
}
"""Its declared transitions, target ← sources, without those from nearly everywhere (error and shutting_down)."""

DECLARED = [(source, target) for source in Phase for target in Phase if target in TRANSITIONS[source]]
UNDECLARED = [
    (source, target)
    for source in Phase
    for target in Phase
    if target is not source and target not in TRANSITIONS[source]
]


async def test_the_table_is_the_contracts_and_the_way_back_to_a_question() -> None:
    expected = {Phase(source): {Phase(name) for name in targets.split()} for source, targets in CONTRACT.items()}
    expected[Phase.IDLE].add(Phase.AWAITING_TOOL_APPROVAL)

    assert expected == TRANSITIONS


async def test_every_transition_that_autobyteus_declares_is_legal() -> None:
    for target, sources in AUTOBYTEUS.items():
        for source in sources.split():
            assert Phase(target) in TRANSITIONS[Phase(source)]


async def test_no_phase_follows_itself_and_every_phase_can_be_reached() -> None:
    for phase in Phase:
        assert phase not in TRANSITIONS[phase]
        assert len(path_to(phase)) <= 8


async def test_a_phase_says_what_it_means() -> None:
    assert [phase for phase in Phase if phase.is_initializing] == [Phase.BOOTSTRAPPING]
    assert [phase for phase in Phase if phase.is_terminal] == [Phase.SHUTDOWN_COMPLETE, Phase.ERROR]
    assert [phase.value for phase in Phase if phase.is_processing] == [
        "processing_user_input",
        "awaiting_llm_response",
        "analyzing_llm_response",
        "awaiting_tool_approval",
        "tool_denied",
        "executing_tool",
        "processing_tool_result",
    ]


async def test_a_machine_starts_uninitialized() -> None:
    machine = PhaseMachine("agent")

    assert machine.phase is Phase.UNINITIALIZED
    assert (machine.agent_id, machine.operation_id) == ("agent", "")
    assert "uninitialized" in repr(machine)


@for_each("source, target", DECLARED)
async def test_every_declared_transition_can_be_made(source: Phase, target: Phase) -> None:
    machine = await machine_in(source)

    await machine.move(target)

    assert machine.phase is target


@for_each("source, target", UNDECLARED)
async def test_an_undeclared_transition_is_refused_and_changes_nothing(source: Phase, target: Phase) -> None:
    log: list[Any] = []
    hooks = Hooks("h")
    hooks.on_phase(None, None)(noting(log))
    machine = await machine_in(source)

    with announced() as moves, machine.hooked([hooks]), pytest.raises(PhaseTransitionError) as caught:
        await machine.move(target, reason="because")

    assert machine.phase is source
    assert log == moves == []
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.agent_id, error.source, error.target) == ("agent", source, target)
    assert error.allowed == sorted(TRANSITIONS[source])
    assert str(error) == str(caught.value)
    for word in ("'agent'", f"{source.value!r}", f"{target.value!r}", *TRANSITIONS[source]):
        assert word in str(error)
    assert isinstance(error, HooklineError)


@for_each("phase", Phase)
async def test_a_move_to_the_present_phase_does_nothing(phase: Phase) -> None:
    log: list[Any] = []
    hooks = Hooks("h")
    hooks.on_phase(None, None)(noting(log))
    machine = await machine_in(phase)

    with announced() as moves, machine.hooked([hooks]):
        await machine.move(phase)
        await machine.move(phase.value)

    assert machine.phase is phase
    assert log == moves == []


async def test_a_phase_may_be_named_by_its_value() -> None:
    log: list[Any] = []
    hooks = Hooks("h")
    hooks.on_phase(Phase.UNINITIALIZED, Phase.BOOTSTRAPPING)(noting(log))
    machine = PhaseMachine("agent", [hooks])

    await machine.move("bootstrapping")

    assert machine.phase is Phase.BOOTSTRAPPING
    assert type(log[0].target) is Phase
    with pytest.raises(PhaseTransitionError):
        await machine.move("tool_denied")


@for_each("target", ["resting", "IDLE", "", None, 3, [], Phase])
async def test_what_is_no_phase_is_refused_in_words(target: Any) -> None:
    machine = await machine_in(Phase.BOOTSTRAPPING)

    with announced() as moves, pytest.raises(HookUsageError) as caught:
        await machine.move(target)

    assert machine.phase is Phase.BOOTSTRAPPING
    assert moves == []
    assert repr(target) in str(caught.value)
    assert "processing_user_input" in str(caught.value)


async def test_the_phase_is_changed_by_moves_only() -> None:
    machine = PhaseMachine("agent")

    with pytest.raises(AttributeError):
        machine.phase = Phase.IDLE  # type: ignore[misc]


@given(targets=st.lists(st.sampled_from(Phase), max_size=60), backend=st.sampled_from(["asyncio", "trio"]))
def test_a_random_walk_never_leaves_the_law(targets: list[Phase], backend: str) -> None:
    async def main() -> None:
        machine, phase, expected = PhaseMachine("agent"), Phase.UNINITIALIZED, []
        with announced(machine) as moves:
            for target in targets:
                if target is phase:
                    await machine.move(target)
                elif target in TRANSITIONS[phase]:
                    await machine.move(target)
                    expected.append((phase, target))
                    phase = target
                else:
                    with pytest.raises(PhaseTransitionError):
                        await machine.move(target)
                assert machine.phase is phase

        assert [(move.source, move.target) for move in moves] == expected

    anyio.run(main, backend=backend)
