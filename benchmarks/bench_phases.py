"""A move of `PhaseMachine` from phase to phase, in bare awaited calls."""

from __future__ import annotations

import asyncio

from benchmarks.harness import Row, Samples, Timer, interleave, statement
from hookline import Hooks
from hookline.phases import Phase, PhaseMachine
from hookline.signals import phase_changed

BARE = "bare awaited call"
GOAL = 160
"""8 µs where a bare awaited call takes 50 ns."""


async def bench(rounds: int) -> list[Row]:
    return [*await hooked(rounds), *await announced(rounds)]


async def hooked(rounds: int) -> list[Row]:
    """With hooks for every move, and with hooks for other moves."""
    cases = {
        "a move [hooks=0]": await moved([]),
        "a move [hooks=0, 100 of other moves]": await moved([make_plain() for _ in range(100)], target=Phase.ERROR),
    }
    for count in (1, 10):
        cases[f"a move [hooks={count}, plain]"] = await moved([make_plain() for _ in range(count)])
        cases[f"a move [hooks={count}, async]"] = await moved([make_async() for _ in range(count)])
        cases[f"a move [hooks={count}, async, suspends]"] = await moved([make_async(suspends=True)] * count)
    return rows(await samples_of(cases, rounds), cases)


async def announced(rounds: int) -> list[Row]:
    """With one receiver of `phase_changed`, which every move of the other group is spared."""

    def hear(sender: object, transition: object) -> None:
        pass

    cases = {f"a move [hooks={count}, async, announced]": await moved([make_async()] * count) for count in (0, 1, 10)}
    with phase_changed.connected_to(hear):
        samples = await samples_of(cases, rounds)
    return rows(samples, cases)[1:]


async def moved(handlers: list, target: Phase | None = None) -> Timer:
    """A timer of two moves, there and back, of a machine with these hooks."""
    bundle = Hooks("bundle")
    for handler in handlers:
        bundle.on_phase(None, target)(handler)
    machine = PhaseMachine("agent", [bundle])
    for phase in (Phase.BOOTSTRAPPING, Phase.IDLE):
        await machine.move(phase)
    return statement(
        "await machine.move(there); await machine.move(back)",
        machine=machine,
        there=Phase.PROCESSING_USER_INPUT,
        back=Phase.IDLE,
    )


async def samples_of(cases: dict[str, Timer], rounds: int) -> Samples:
    samples = await interleave({BARE: statement("await nothing()", nothing=nothing), **cases}, rounds)
    for case in cases:
        samples.derive(case, lambda both: both / 2, case)
    return samples


def rows(samples: Samples, cases: dict[str, Timer]) -> list[Row]:
    goals = {f"a move [hooks=10, {kind}]": GOAL for kind in ("plain", "async")}
    return [samples.row(BARE), *(samples.row(case, BARE, at_most=goals.get(case)) for case in cases)]


async def nothing() -> None:
    pass


def make_plain():
    def handler(transition: object) -> None:
        pass

    return handler


def make_async(*, suspends: bool = False):
    async def handler(transition: object) -> None:
        pass

    async def suspending(transition: object) -> None:
        await asyncio.sleep(0)

    return suspending if suspends else handler
