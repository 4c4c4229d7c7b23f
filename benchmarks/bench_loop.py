"""A hand-written loop on the OpenAI client: bare, and wrapped with sixteen observers and one guard.

The server is scripted, and in another process on loopback. What is measured is the CPU time of this process, since most
of the time of a run is spent on waiting for the network.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from time import process_time_ns
from typing import Any

import httpx2
from openai import AsyncOpenAI, OpenAI

from benchmarks.harness import Row, Samples
from hookline import Hooks, ToolCall
from hookline.events import EVENTS
from hookline.loop import wrap

RATIO = 1.20
LEAST_ROUNDS = 50
RUNS_PER_SAMPLE = 5

SPECS: Any = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
        },
    }
]


def completion(message: dict[str, Any], reason: str) -> bytes:
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    choice = {"index": 0, "finish_reason": reason, "message": {"role": "assistant", "content": None, **message}}
    whole = {"id": "c", "object": "chat.completion", "created": 0, "model": "gpt-5", "usage": usage}
    body = json.dumps({**whole, "choices": [choice]}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
ASKS, DONE = completion({"tool_calls": [CALL]}, "tool_calls"), completion({"content": "done"}, "stop")


class Model(asyncio.Protocol):
    """A connection to a model that asks for one tool call, and is done when it has the result."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while (end := self._rest.find(b"\r\n\r\n")) >= 0:
            length = int(self._rest[:end].lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
            if len(self._rest) < end + 4 + length:
                return
            body, self._rest = self._rest[end + 4 : end + 4 + length], self._rest[end + 4 + length :]
            self._transport.write(DONE if b'"tool_call_id"' in body else ASKS)


async def serve(told: Connection) -> None:
    server = await asyncio.get_running_loop().create_server(Model, "127.0.0.1", 0)
    told.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def run_server(told: Connection) -> None:
    asyncio.run(serve(told))


@contextmanager
def served() -> Iterator[str]:
    """Serve the model in a process of its own, and give its address."""
    spawning = multiprocessing.get_context("spawn")
    here, there = spawning.Pipe()
    process = spawning.Process(target=run_server, args=(there,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}/v1"
    finally:
        process.terminate()
        process.join()


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def add_here(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def make_hooks() -> Hooks:
    """Sixteen observers and one guard, which do nothing."""
    hooks = Hooks("hooks")
    for event in EVENTS.values():
        hooks.on(event, id=f"on {event.__name__}")(lambda event: None)
    hooks.guard(ToolCall)(lambda call: None)
    return hooks


async def run_bare(client: AsyncOpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "go"}]
    while True:
        response = await client.chat.completions.create(model="gpt-5", messages=messages, tools=SPECS)
        message = response.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return
        for call in message.tool_calls:
            content = str(await add(**json.loads(call.function.arguments)))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


async def run_wrapped(client: AsyncOpenAI, hooks: list[Hooks], tools: list[Any]) -> None:
    messages: list[Any] = [{"role": "user", "content": "go"}]
    async with wrap(client, hooks=hooks, tools=tools) as run:
        while True:
            response = await run.client.chat.completions.create(model="gpt-5", messages=messages, tools=SPECS)
            message = response.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return
            messages += await run.call_tools(response)


def run_bare_sync(client: OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "go"}]
    while True:
        response = client.chat.completions.create(model="gpt-5", messages=messages, tools=SPECS)
        message = response.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return
        for call in message.tool_calls:
            content = str(add_here(**json.loads(call.function.arguments)))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


def run_wrapped_sync(client: OpenAI, hooks: list[Hooks], tools: list[Any]) -> None:
    messages: list[Any] = [{"role": "user", "content": "go"}]
    with wrap(client, hooks=hooks, tools=tools) as run:
        while True:
            response = run.client.chat.completions.create(model="gpt-5", messages=messages, tools=SPECS)
            message = response.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return
            messages += run.call_tools(response)


async def bench(rounds: int) -> list[Row]:
    hooks = make_hooks()
    with served() as url:
        async with AsyncOpenAI(base_url=url, api_key="key", http_client=httpx2.AsyncClient()) as client:
            samples = await interleave(
                {
                    "async [bare]": lambda: run_bare(client),
                    "async [hooks=0]": lambda: run_wrapped(client, [], [add]),
                    "async [hooks=17]": lambda: run_wrapped(client, [hooks], [add]),
                },
                max(rounds, LEAST_ROUNDS),
            )
        with OpenAI(base_url=url, api_key="key", http_client=httpx2.Client()) as sync_client:
            sync_samples = await asyncio.to_thread(
                interleave_sync,
                {
                    "sync [bare]": lambda: run_bare_sync(sync_client),
                    "sync [hooks=0]": lambda: run_wrapped_sync(sync_client, [], {"add": add_here}),
                    "sync [hooks=17]": lambda: run_wrapped_sync(sync_client, [hooks], {"add": add_here}),
                },
                max(rounds, LEAST_ROUNDS),
            )
    return [
        samples.row("async [bare]"),
        samples.row("async [hooks=0]", "async [bare]"),
        samples.row("async [hooks=17]", "async [bare]", at_most=RATIO),
        sync_samples.row("sync [bare]"),
        sync_samples.row("sync [hooks=0]", "sync [bare]"),
        sync_samples.row("sync [hooks=17]", "sync [bare]", at_most=RATIO),
    ]


def turns(names: list[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Every name once per round, each round in another order, after a round that only warms up."""
    for number in range(rounds + 1):
        random.shuffle(names)
        for name in names:
            gc.collect()
            yield number, name


async def interleave(cases: dict[str, Callable[[], Awaitable[None]]], rounds: int) -> Samples:
    """Run the cases in turn, and take the CPU time of this process."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    for number, name in turns(list(cases), rounds):
        started = process_time_ns()
        for _ in range(RUNS_PER_SAMPLE):
            await cases[name]()
        if number:
            found[name].append((process_time_ns() - started) / RUNS_PER_SAMPLE)
    return Samples(found)


def interleave_sync(cases: dict[str, Callable[[], None]], rounds: int) -> Samples:
    """As `interleave`, in a thread that has no event loop."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    for number, name in turns(list(cases), rounds):
        started = process_time_ns()
        for _ in range(RUNS_PER_SAMPLE):
            cases[name]()
        if number:
            found[name].append((process_time_ns() - started) / RUNS_PER_SAMPLE)
    return Samples(found)
