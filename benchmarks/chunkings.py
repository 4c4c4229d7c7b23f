"""Hold that hooks which judge text in parts give away nothing that they did not judge, in random chunkings.

    python -m benchmarks.chunkings [runs] [seed]

Each run splits a random text at random places, and streams it to a reader past one of three hooks: one that denies a
phrase, one that rewrites it, and one that denies text of a random length. The text is that of a run, of an agent of
Pydantic AI, or of an agent of LangChain, in turn. It counts the characters that a reader got although the hook would
have withheld them, and the answers that are not what the hook makes of the whole text.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Any, NamedTuple

import anyio
from msgspec.structs import replace

from hookline import Agent, Deny, Hooks, ModelCall, ModelResponse, TextParts, exec_agent
from hookline.adapters import hooked
from hookline.errors import RunStopped

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


class Answer(NamedTuple):
    """What a reader got of an answer, and what the run says of it.

    Attributes:
        text: The text that the reader got.
        output: The output of the run.
        denied: Whether the answer was denied.
    """

    text: str
    output: str
    denied: bool


def judging(judge: Any, parts: TextParts) -> Hooks:
    """Return a bundle with one hook that judges parts."""
    hooks = Hooks("judge")

    @hooks.after(ModelCall, parts=parts)
    def look(call: ModelCall, response: ModelResponse) -> Any:
        return judge(response)

    return hooks


async def read_run(pieces: list[str], hooks: Hooks) -> Answer:
    """Read the answer of a run."""
    got: list[str] = []
    result = await exec_agent(Agent(id="a", model=Streamed(pieces)), "go", hooks=[hooks], on_token=got.append)
    return Answer("".join(got), result.output, result.denied is not None)


async def read_pydantic_ai(pieces: list[str], hooks: Hooks) -> Answer:
    """Read the answer of an agent of Pydantic AI."""
    from pydantic_ai import Agent as TheirAgent
    from pydantic_ai.models.function import FunctionModel

    async def stream(messages: Any, info: Any) -> AsyncIterator[str]:
        for piece in pieces:
            yield piece

    got: list[str] = []
    try:
        async with hooked(TheirAgent(FunctionModel(stream_function=stream)), hooks=[hooks]).run_stream("go") as run:
            async for text in run.stream_text(delta=True, debounce_by=None):
                got.append(text)  # noqa: PERF401  # what was read before a denial counts
            output = str(await run.get_output())
    except RunStopped:
        return Answer("".join(got), "", denied=True)
    return Answer("".join(got), output, denied=False)


async def read_langchain(pieces: list[str], hooks: Hooks) -> Answer:
    """Read the answer of an agent of LangChain."""
    from langchain.agents import create_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage, AIMessageChunk
    from langchain_core.outputs import ChatGenerationChunk

    from hookline.adapters.langchain import HooklineMiddleware

    class Writing(GenericFakeChatModel):
        async def _astream(self, *given: Any, **options: Any) -> AsyncIterator[ChatGenerationChunk]:
            for piece in pieces:
                yield ChatGenerationChunk(message=AIMessageChunk(content=piece))

    got: list[str] = []
    agent = hooked(create_agent(Writing(messages=iter(())), [], middleware=[HooklineMiddleware()]), hooks=[hooks])
    output = ""
    try:
        async for mode, found in agent.astream({"messages": [("user", "go")]}, stream_mode=["messages", "values"]):
            if mode == "values":
                output = found["messages"][-1].text
            elif isinstance(found[0], AIMessageChunk) or not isinstance(found[0], AIMessage):
                got.append(found[0].text)
    except RunStopped:
        return Answer("".join(got), "", denied=True)
    return Answer("".join(got), output, denied=False)


READERS = (read_run, read_pydantic_ai, read_langchain)


async def check(number: int, chance: random.Random) -> tuple[int, int]:
    """Run one chunking; return the characters that were given away unjudged, and whether the answer is wrong."""
    text = "".join(chance.choices(WORDS, k=chance.randrange(14)))
    pieces, most = split(text, chance), chance.randrange(1, 20)
    reader = READERS[number // 3 % len(READERS)] if text else read_run  # frameworks refuse an empty answer

    async def read(pieces: list[str], judge: Any, parts: TextParts) -> Answer:
        return await reader(pieces, judging(judge, parts))

    parts = TextParts(hold=len(PHRASE) - 1 + chance.randrange(8), max_chars=most)
    if number % 3 == 0:
        result = await read(pieces, lambda r: Deny("phrase") if PHRASE in r.content else None, parts)
        may = text.partition(PHRASE)[0]
        whole = PHRASE not in text
    elif number % 3 == 1:
        result = await read(pieces, lambda r: replace(r, content=r.content.replace(PHRASE, "***")), parts)
        may = text.replace(PHRASE, "***")
        whole = True
    else:
        most_chars = chance.randrange(60)
        result = await read(pieces, lambda r: Deny("long") if len(r.content) > most_chars else None, parts)
        may = text[:most_chars]
        whole = len(text) <= most_chars
    got = result.text
    common = next((at for at, (one, other) in enumerate(zip(got, may, strict=False)) if one != other), len(may))
    leaked = max(0, len(got) - common)
    wrong = result.denied is whole or (whole and not got == result.output == may)
    return leaked, int(wrong)


async def main(runs: int, seed: int) -> int:
    """Run all chunkings; return the exit code."""
    logging.getLogger("langchain_core.callbacks.manager").setLevel(logging.ERROR)  # it logs each denial
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
