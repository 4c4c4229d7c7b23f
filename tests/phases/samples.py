"""Ways through the life of an agent, and hooks that note what they see."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from dispatcher.samples import connected, turns

from hookline.phases import TRANSITIONS, Phase, PhaseHook, PhaseMachine, PhaseTransition
from hookline.signals import phase_changed

Pair = tuple[Phase, Phase]


def pair(transition: PhaseTransition) -> Pair:
    """Which move it was."""
    return transition.source, transition.target


def path_to(phase: Phase) -> list[Phase]:
    """The shortest way from the beginning of a life to a phase."""
    ways: deque[list[Phase]] = deque([[Phase.UNINITIALIZED]])
    while ways:
        way = ways.popleft()
        if way[-1] is phase:
            return way[1:]
        ways.extend([*way, target] for target in Phase if target in TRANSITIONS[way[-1]] and target not in way)
    raise AssertionError(f"{phase} cannot be reached")


async def machine_in(phase: Phase, **options: Any) -> PhaseMachine:
    """A machine without hooks that is in a phase."""
    machine = PhaseMachine("agent", **options)
    for step in path_to(phase):
        await machine.move(step)
    return machine


def noting(log: list[Any], note: object = None, *, is_async: bool = False) -> Any:
    """A handler that appends to a log: the note or, without one, the transition."""

    def handler(transition: PhaseTransition) -> None:
        log.append(transition if note is None else note)

    async def later(transition: PhaseTransition) -> None:
        await turns(2)
        handler(transition)

    return later if is_async else handler


class PhaseHookOf(PhaseHook):
    """A hook as a class that awaits one function."""

    source_phase: Phase | None = None
    target_phase: Phase | None = None

    def __init__(
        self, source: Phase | None, target: Phase | None, then: Callable[[PhaseTransition], Awaitable[None]]
    ) -> None:
        self.source_phase = source
        self.target_phase = target
        self.then = then

    async def execute(self, context: PhaseTransition) -> None:
        await self.then(context)


@contextlib.contextmanager
def announced(machine: PhaseMachine | None = None) -> Iterator[list[PhaseTransition]]:
    """Every move announced meanwhile, of one machine or of all."""
    moves: list[PhaseTransition] = []

    def keep(sender: object, transition: PhaseTransition) -> None:
        if machine is None or sender is machine:
            moves.append(transition)

    with connected(phase_changed, keep):
        yield moves
