"""Hold that hooks which judge text in parts give away nothing that they did not judge, in random chunkings.

    python -m benchmarks.chunkings [runs] [seed]

Each run splits a random text at random places, and streams it to a reader past one of three hooks: one that denies a
phrase, one that rewrites it, and one that denies text of a random length. It counts the characters that a reader got
although the hook would have withheld them, and the answers that are not what the hook makes of the whole text.
"""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Any

import anyio
from msgspec.structs import replace

from hookline import Agent, Deny, Hooks, ModelCall, ModelResponse, OperationResult, TextParts, exec_agent

RUNS = 10_000
PHRASE = "4711-XY"
WORDS = ("a ", "word. ", "4711", "-XY", PHRASE, "\n", "4", "é", "11-X", "…")


class Streamed:
    """A model that streams its answer in given pieces."""

    name = provider = "streamed"

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces

    async def respond(self, call: ModelCall) -> ModelResponse:
        return ModelResponse(content="".join(self.pieces))

    async def stream(self, call: ModelCall) -> AsyncIterator[str | ModelResponse]:
        for piece in self.pieces:
            yield piece
        yield ModelResponse(content="".join(self.pieces))


def split(text: str, chance: random.Random) -> list[str]:
    """Return the pieces of a text that is cut at random places."""
    cuts = sorted(chance.sample(range(len(text) + 1), min(len(text), chance.randrange(12))))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


async def read(pieces: list[str], judge: Any, parts: TextParts) -> tuple[str, OperationResult]:
    """Return what a reader got of an answer, and the result of the run."""
    hooks, got = Hooks("judge"), list[str]()

    @hooks.after(ModelCall, parts=parts)
    def look(call: ModelCall, response: ModelResponse) -> Any:
        return judge(response)

    result = await exec_agent(Agent(id="a", model=Streamed(pieces)), "go", hooks=[hooks], on_token=got.append)
    return "".join(got), result


async def check(number: int, chance: random.Random) -> tuple[int, int]:
    """Run one chunking; return the characters that were given away unjudged, and whether the answer is wrong."""
    text = "".join(chance.choices(WORDS, k=chance.randrange(14)))
    pieces, most = split(text, chance), chance.randrange(1, 20)
    parts = TextParts(hold=len(PHRASE) - 1 + chance.randrange(8), max_chars=most)
    if number % 3 == 0:
        got, result = await read(pieces, lambda r: Deny("phrase") if PHRASE in r.content else None, parts)
        may = text.partition(PHRASE)[0]
        whole = PHRASE not in text
    elif number % 3 == 1:
        got, result = await read(pieces, lambda r: replace(r, content=r.content.replace(PHRASE, "***")), parts)
        may = text.replace(PHRASE, "***")
        whole = True
    else:
        most_chars = chance.randrange(60)
        got, result = await read(pieces, lambda r: Deny("long") if len(r.content) > most_chars else None, parts)
        may = text[:most_chars]
        whole = len(text) <= most_chars
    common = next((at for at, (one, other) in enumerate(zip(got, may, strict=False)) if one != other), len(may))
    leaked = max(0, len(got) - common)
    wrong = (result.denied is None) != whole or (whole and not got == result.output == may)
    return leaked, int(wrong)


async def main(runs: int, seed: int) -> int:
    """Run all chunkings; return the exit code."""
    chance, leaks, wrong, began = random.Random(seed), 0, 0, perf_counter()
    for number in range(runs):
        leaked, mistaken = await check(number, chance)
        leaks, wrong = leaks + leaked, wrong + mistaken
    seconds = perf_counter() - began
    print(
        f"{runs} chunkings, seed {seed}: {leaks} characters given away unjudged, {wrong} wrong answers; {seconds:.0f} s"
    )
    return int(bool(leaks or wrong))


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    sys.exit(anyio.run(main, *(given + [RUNS, random.randrange(10**6)][len(given) :])))
