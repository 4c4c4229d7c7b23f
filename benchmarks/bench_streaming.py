"""Text of a run while it is written: what hookline takes for each piece, beyond the model and the reader themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from benchmarks.bench_runtime import make_plain
from benchmarks.harness import Row, interleave, statement
from hookline import Agent, HookDispatcher, Hooks, ModelCall, ModelResponse, exec_agent, stream_agent
from hookline.events import EVENTS

PIECES = 2000
MOST_NS = 3000
"""The goal: our own time for each piece of text, where no interceptor keeps it back."""


class Writer:
    """Writes a number of pieces of text."""

    name = "writer"
    provider = "benchmark"

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces
        self.answer = ModelResponse(content="word " * pieces)

    async def respond(self, call: ModelCall) -> ModelResponse:
        return self.answer

    async def stream(self, call: ModelCall) -> AsyncIterator[str | ModelResponse]:
        for _ in range(self.pieces):
            yield "word "
        yield self.answer


async def by_hand(model: Writer, take: Callable[[str], object]) -> None:
    async for piece in model.stream(ModelCall(messages=[])):
        if isinstance(piece, str):
            take(piece)


async def iterated(agent: Agent, dispatcher: HookDispatcher) -> None:
    async with stream_agent(agent, "go", dispatcher=dispatcher) as text:
        async for _piece in text:
            pass


async def bench(rounds: int) -> list[Row]:
    observers, guard = Hooks("observers"), Hooks("guard")
    for event in EVENTS.values():
        observers.on(event)(make_plain())
    guard.after(ModelCall)(lambda call, result: None)
    given: dict[str, list[Hooks]] = {"observers=0": [], "observers=16": [observers], "kept back for a guard": [guard]}
    short, long = (Agent(id="writer", model=Writer(pieces)) for pieces in (1, PIECES))
    code = "await exec_agent(agent, 'go', hooks=hooks, dispatcher=dispatcher, on_token=take)"
    async with HookDispatcher() as dispatcher:
        names: dict[str, Any] = {"exec_agent": exec_agent, "dispatcher": dispatcher, "take": take}
        cases = {}
        for name, hooks in given.items():
            cases[f"{name}, 1 piece"] = statement(code, unroll=1, agent=short, hooks=hooks, **names)
            cases[f"{name}, all"] = statement(code, unroll=1, agent=long, hooks=hooks, **names)
        for name, agent in (("iterator, 1 piece", short), ("iterator, all", long)):
            cases[name] = statement(
                "await iterated(agent, dispatcher)", unroll=1, iterated=iterated, agent=agent, dispatcher=dispatcher
            )
        cases["by hand, all"] = statement(
            "await by_hand(model, take)", unroll=1, by_hand=by_hand, model=long.model, take=take
        )
        samples = await interleave(cases, rounds)
    samples.derive("async for by hand, per piece", lambda whole: whole / PIECES, "by hand, all")
    rows = [samples.row("async for by hand, per piece")]
    for name in [*given, "iterator"]:
        samples.derive(
            f"own time per piece [{name}]",
            lambda whole, one, hand: (whole - one - hand) / PIECES,
            f"{name}, all",
            f"{name}, 1 piece",
            "by hand, all",
        )
        rows.append(
            samples.row(f"own time per piece [{name}]", at_most=MOST_NS if name.startswith("observers") else None)
        )
    return rows


def take(piece: str) -> None:
    pass
