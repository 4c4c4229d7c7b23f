"""Hold that hooks which judge text in parts give away nothing that they did not judge, in random chunkings.

    python -m benchmarks.chunkings [runs] [seed]

Each run splits a random text at random places, and streams it, with stalls, to a reader past one of three hooks: one
that denies a phrase, one that rewrites it, and one that denies text of a random length. Some also judge after a moment,
while no text comes. The text is that of a run, of an own loop with an async and with a sync client, and of the agents
of those frameworks that are installed, in turn: Pydantic AI, LangChain and Google ADK. It counts the characters that a
reader got although the hook would have withheld them, and the answers that are not what the hook makes of the text.
"""

from __future__ import annotations

import functools
import json
import logging
import random
import sys
import warnings
from argparse import ArgumentParser
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from importlib.util import find_spec
from time import perf_counter, sleep
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
from msgspec.structs import replace

from hookline import Agent, Deny, Hooks, ModelCall, ModelResponse, TextParts, exec_agent
from hookline.adapters import hooked
from hookline.errors import RunStopped

RUNS = 10_000
PHRASE = "4711-XY"
STALL = 0.001
"""Seconds that a model sends nothing at each stall."""
WORDS = ("a ", "word. ", "4711", "-XY", PHRASE, "\n", "4", "é", "11-X", "…")


def stalls(pieces: Sequence[object], at: int) -> bool:
    """Return whether a model stalls before a piece; it does so at two places of most answers."""
    return at % 5 == len(pieces) % 3


async def write(pieces: list[str]) -> AsyncIterator[str]:
    """Yield the pieces of an answer, with stalls."""
    for at, piece in enumerate(pieces):
        if stalls(pieces, at):
            await anyio.sleep(STALL)
        yield piece


class Streamed:
    """A model that streams its answer in given pieces."""

    name = provider = "streamed"

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces

    async def respond(self, call: ModelCall) -> ModelResponse:
        return ModelResponse(content="".join(self.pieces))

    async def stream(self, call: ModelCall) -> AsyncIterator[str | ModelResponse]:
        async for piece in write(self.pieces):
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
        async for piece in write(pieces):
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


def langchain_agent(pieces: list[str], hooks: Hooks) -> Any:
    """Return an agent of LangChain whose model streams these pieces."""
    from langchain.agents import create_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessageChunk
    from langchain_core.outputs import ChatGenerationChunk

    from hookline.adapters.langchain import HooklineMiddleware

    class Writing(GenericFakeChatModel):
        async def _astream(self, *given: Any, **options: Any) -> AsyncIterator[ChatGenerationChunk]:
            async for piece in write(pieces):
                yield ChatGenerationChunk(message=AIMessageChunk(content=piece))

    return hooked(create_agent(Writing(messages=iter(())), [], middleware=[HooklineMiddleware()]), hooks=[hooks])


async def read_langchain(pieces: list[str], hooks: Hooks) -> Answer:
    """Read the answer of an agent of LangChain."""
    from langchain_core.messages import AIMessage, AIMessageChunk

    agent, got, output = langchain_agent(pieces, hooks), list[str](), ""
    try:
        async for mode, found in agent.astream({"messages": [("user", "go")]}, stream_mode=["messages", "values"]):
            if mode == "values":
                output = found["messages"][-1].text
            elif isinstance(found[0], AIMessageChunk) or not isinstance(found[0], AIMessage):
                got.append(found[0].text)
    except RunStopped:
        return Answer("".join(got), "", denied=True)
    return Answer("".join(got), output, denied=False)


async def read_langchain_events(pieces: list[str], hooks: Hooks) -> Answer:
    """Read the answer of an agent of LangChain by the events of its messages."""
    agent, got, output = langchain_agent(pieces, hooks), list[str](), ""
    warnings.filterwarnings("ignore", ".*v3 streaming protocol")  # again, since LangChain adds filters of its own
    try:
        async for event in await agent.astream_events({"messages": [("user", "go")]}, version="v3"):
            data = event["params"]["data"]
            if event["method"] == "values":
                output = data["messages"][-1].text
            elif event["method"] == "messages" and isinstance(data[0], dict):
                got.append(data[0].get("delta", {}).get("text", ""))
    except RunStopped:
        return Answer("".join(got), "", denied=True)
    return Answer("".join(got), output, denied=False)


class LoopProvider:
    """A provider that streams an answer by the protocol of chat completions, in bytes that are cut at random places."""

    def __init__(self) -> None:
        import httpx2
        from openai import AsyncOpenAI, OpenAI

        provider, self.chunks = self, list[bytes]()

        class Body(httpx2.AsyncByteStream, httpx2.SyncByteStream):
            def __iter__(self) -> Iterator[bytes]:
                for at, chunk in enumerate(provider.chunks):
                    if stalls(provider.chunks, at):
                        sleep(STALL)
                    yield chunk

            async def __aiter__(self) -> AsyncIterator[bytes]:
                for at, chunk in enumerate(provider.chunks):
                    if stalls(provider.chunks, at):
                        await anyio.sleep(STALL)
                    yield chunk

        def answer(request: Any) -> Any:
            return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Body())

        transport = httpx2.MockTransport(answer)
        self.client = AsyncOpenAI(api_key="none", http_client=httpx2.AsyncClient(transport=transport))
        self.sync_client = OpenAI(api_key="none", http_client=httpx2.Client(transport=transport))

    def write(self, pieces: list[str], chance: random.Random) -> None:
        """Take the pieces of the next answer."""
        deltas: list[Any] = [*({"content": piece} for piece in pieces), {}]
        events = [
            {
                "id": "c",
                "object": "chat.completion.chunk",
                "created": 1,
                "model": "m",
                "choices": [{"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}],
            }
            for delta in deltas
        ]
        data = b"".join(b"data: " + json.dumps(each, ensure_ascii=False).encode() + b"\n\n" for each in events)
        data += b"data: [DONE]\n\n"
        cuts = sorted(chance.sample(range(1, len(data)), chance.randrange(40)))
        self.chunks = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


provider = functools.cache(LoopProvider)
QUESTION: Any = {"model": "m", "messages": [{"role": "user", "content": "go"}], "stream": True}


async def read_own_loop(pieces: list[str], hooks: Hooks) -> Answer:
    """Read the answer of a loop with an async client."""
    from hookline.loop import wrap

    provider().write(pieces, random.Random("|".join(pieces)))
    got: list[str] = []
    try:
        async with wrap(provider().client, hooks=[hooks]) as run:
            async for event in await run.client.chat.completions.create(**QUESTION):
                got.append(event.choices[0].delta.content or "")  # noqa: PERF401  # what was read before a denial counts
            answer: Any = run.response
    except RunStopped:
        return Answer("".join(got), "", denied=True)
    return Answer("".join(got), answer.choices[0].message.content, denied=False)


async def read_sync_loop(pieces: list[str], hooks: Hooks) -> Answer:
    """Read the answer of a loop with a sync client."""
    return await anyio.to_thread.run_sync(read_in_thread, pieces, hooks)


def read_in_thread(pieces: list[str], hooks: Hooks) -> Answer:
    """Read the answer of a loop with a sync client in the present thread."""
    from hookline.loop import wrap

    provider().write(pieces, random.Random("|".join(pieces)))
    got: list[str] = []
    try:
        with wrap(provider().sync_client, hooks=[hooks]) as run:
            for event in run.client.chat.completions.create(**QUESTION):
                got.append(event.choices[0].delta.content or "")  # noqa: PERF401  # what was read before a denial counts
            answer: Any = run.response
    except RunStopped:
        return Answer("".join(got), "", denied=True)
    return Answer("".join(got), answer.choices[0].message.content, denied=False)


async def read_google_adk(pieces: list[str], hooks: Hooks) -> Answer:
    """Read the answer of an agent of Google ADK."""
    from google.adk.agents import LlmAgent
    from google.adk.agents.run_config import RunConfig, StreamingMode
    from google.adk.models import BaseLlm, LlmResponse
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    def content(text: str) -> Any:
        return types.Content(role="model", parts=[types.Part(text=text)])

    class Writing(BaseLlm):
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            async for piece in write(pieces):
                yield LlmResponse(partial=True, content=content(piece))
            yield LlmResponse(content=content("".join(pieces)))

    runner = InMemoryRunner(agent=LlmAgent(name="a", model=Writing(model="writing")), app_name="app")
    await runner.session_service.create_session(app_name="app", user_id="ann", session_id="s")
    given: Any = {
        "user_id": "ann",
        "session_id": "s",
        "new_message": types.Content(role="user", parts=[types.Part(text="go")]),
        "run_config": RunConfig(streaming_mode=StreamingMode.SSE),
    }
    got, output = list[str](), ""
    try:
        async for event in hooked(runner, hooks=[hooks]).run_async(**given):
            text = "".join(part.text or "" for part in (event.content.parts if event.content is not None else ()))
            if event.partial:
                got.append(text)
            else:
                output = text or output
    except RunStopped:
        return Answer("".join(got), "", denied=True)
    read = "".join(got)
    # The last event has the whole answer again, with what no partial event had.
    return Answer(output if output.startswith(read) else read, output, denied=False)


Reader = Callable[[list[str], Hooks], Awaitable[Answer]]
OF_PACKAGES: dict[str, tuple[Reader, ...]] = {
    "openai": (read_own_loop, read_sync_loop),
    "pydantic_ai": (read_pydantic_ai,),
    "langchain": (read_langchain, read_langchain_events),
    "google.adk": (read_google_adk,),
}
"""The readers that need a package."""


def is_installed(package: str) -> bool:
    """Return whether a package can be imported."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # it is in one that is missing
        return False


READERS: tuple[Reader, ...] = (
    read_run,
    *(reader for package, readers in OF_PACKAGES.items() if is_installed(package) for reader in readers),
)


async def check(number: int, chance: random.Random) -> tuple[int, int]:
    """Run one chunking; return the characters that were given away unjudged, and whether the answer is wrong."""
    text = "".join(chance.choices(WORDS, k=chance.randrange(14)))
    pieces, most = split(text, chance), chance.randrange(1, 20)
    reader = READERS[number // 3 % len(READERS)] if text else read_run  # frameworks refuse an empty answer

    async def read(pieces: list[str], judge: Any, parts: TextParts) -> Answer:
        return await reader(pieces, judging(judge, parts))

    seconds = chance.choice([None, None, 0.0005])
    parts = TextParts(hold=len(PHRASE) - 1 + chance.randrange(8), max_chars=most, max_seconds=seconds)
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
    logging.getLogger("google_adk").setLevel(logging.ERROR)
    missing = [package for package in OF_PACKAGES if not is_installed(package)]
    print(f"read by {', '.join(reader.__name__.removeprefix('read_') for reader in READERS)}", flush=True)
    if missing:
        print(f"not installed here, so not read by: {', '.join(missing)}")
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
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=int, nargs="?", default=RUNS, help="number of answers (%(default)s)")
    parser.add_argument(
        "seed", type=int, nargs="?", default=random.randrange(10**6), help="seed of the splits (random)"
    )
    given = parser.parse_args()
    sys.exit(anyio.run(main, given.runs, given.seed))
