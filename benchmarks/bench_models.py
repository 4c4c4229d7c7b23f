"""A run with a real HTTP server for a provider: what the adapter adds to the same requests, made by hand.

By hand means the same model class of Pydantic AI, asked with its `request` or `request_stream`, the same two requests
and the same tool in between. The server is a process of its own, so that its work is not part of what is measured.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import httpx2
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition

from benchmarks.harness import Row, interleave, statement
from hookline import Agent, HookDispatcher, ModelCall, ToolRequest, Usage, exec_agent, tool
from hookline import ModelResponse as Answer
from hookline.adapters.models import PydanticModel

TOKENS = 64
GOAL = 1.10
STREAMED = f", streamed [tokens={TOKENS}]"
HAND = "the two requests by hand"
HAND_STREAMED = HAND + STREAMED
RUN_BY_HAND = "exec_agent [a model written by hand]"
RUN_OF_OURS = "exec_agent [PydanticModel]"


@tool
async def search(query: str) -> str:
    """Search the web."""
    return query


async def bench(rounds: int) -> list[Row]:
    with serving() as url:
        async with httpx2.AsyncClient(verify=False) as client, HookDispatcher() as dispatcher:
            wire = OpenAIChatModel("gpt-4o", provider=OpenAIProvider(base_url=url, api_key="none", http_client=client))
            adapted, by_hand = agent_of(PydanticModel(wire)), agent_of(ByHand(wire))
            tokens: list[str] = []
            for agent in (adapted, by_hand):
                result = await exec_agent(agent, "How many?", on_token=tokens.append)
                assert (result.output, result.tool_calls) == ("token " * TOKENS, 1), result
            assert len(tokens) == 2 * TOKENS
            assert result.output == await requests(wire) == await streamed_requests(wire)
            cases = {
                HAND: statement("await requests(wire)", unroll=1, requests=requests, wire=wire),
                HAND_STREAMED: statement("await requests(wire)", unroll=1, requests=streamed_requests, wire=wire),
            }
            for name, agent in ((RUN_OF_OURS, adapted), (RUN_BY_HAND, by_hand)):
                cases[name] = run_of(agent, dispatcher, None)
                cases[name + STREAMED] = run_of(agent, dispatcher, take)
            samples = await interleave(cases, 4 * rounds, times=8)
    rows = []
    for hand, further in ((HAND, ""), (HAND_STREAMED, STREAMED)):
        rows += [
            samples.row(hand),
            samples.row(RUN_BY_HAND + further, hand),
            samples.row(RUN_OF_OURS + further, hand),
            samples.row(RUN_OF_OURS + further, RUN_BY_HAND + further, at_most=GOAL),
        ]
    return rows


def agent_of(model) -> Agent:
    return Agent(id="searcher", model=model, tools=[search], instructions="Be brief.")


def run_of(agent: Agent, dispatcher: HookDispatcher, on_token):
    return statement(
        "await exec_agent(agent, 'How many?', dispatcher=dispatcher, on_token=on_token)",
        unroll=1,
        exec_agent=exec_agent,
        agent=agent,
        dispatcher=dispatcher,
        on_token=on_token,
    )


def take(text: str) -> None:
    pass


OFFERED = ModelRequestParameters(
    function_tools=[
        ToolDefinition(name="search", description=search.description, parameters_json_schema=dict(search.schema))
    ]
)


def beginning() -> list[ModelMessage]:
    return [ModelRequest([SystemPromptPart("Be brief."), UserPromptPart("How many?")])]


async def answered(messages: list[ModelMessage], response: ModelResponse) -> None:
    """Run the tool that was asked for, and put its result behind the answer."""
    (call,) = (part for part in response.parts if isinstance(part, ToolCallPart))
    result = await search(**call.args_as_dict())
    messages += [response, ModelRequest([ToolReturnPart(call.tool_name, result, call.tool_call_id)])]


async def requests(wire: OpenAIChatModel) -> str:
    messages = beginning()
    await answered(messages, await wire.request(messages, None, OFFERED))
    return text_of(await wire.request(messages, None, OFFERED))


async def streamed_requests(wire: OpenAIChatModel) -> str:
    messages = beginning()
    await answered(messages, await read(wire, messages))
    return text_of(await read(wire, messages))


async def read(wire: OpenAIChatModel, messages: list[ModelMessage]) -> ModelResponse:
    async with wire.request_stream(messages, None, OFFERED) as stream:
        async for event in stream:
            text = delta_of(event)
            if text:
                take(text)
        return stream.get()


def delta_of(event: object) -> str:
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return event.delta.content_delta
    return event.part.content if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart) else ""


def text_of(response: ModelResponse) -> str:
    return "".join(part.content for part in response.parts if isinstance(part, TextPart))


class ByHand:
    """The least that makes a model of Pydantic AI one of a run: no timeouts, errors, prices, ids or names of tools."""

    name = "by hand"
    provider = "openai"

    def __init__(self, wire: OpenAIChatModel) -> None:
        self.wire = wire

    async def respond(self, call: ModelCall) -> Answer:
        return answer(await self.wire.request(told(call), None, OFFERED))

    async def stream(self, call: ModelCall) -> AsyncIterator[str | Answer]:
        async with self.wire.request_stream(told(call), None, OFFERED) as stream:
            async for event in stream:
                text = delta_of(event)
                if text:
                    yield text
            yield answer(stream.get())


def told(call: ModelCall) -> list[ModelMessage]:
    messages = beginning()
    for message in call.messages[2:]:
        if message.role == "assistant":
            calls = [ToolCallPart(each.tool_name, each.args, each.tool_call_id) for each in message.tool_calls]
            messages.append(ModelResponse(calls))
        else:
            messages.append(ModelRequest([ToolReturnPart("search", message.content, message.tool_call_id)]))
    return messages


def answer(response: ModelResponse) -> Answer:
    calls = [
        ToolRequest(tool_name=part.tool_name, args=part.args, tool_call_id=part.tool_call_id)
        for part in response.parts
        if isinstance(part, ToolCallPart)
    ]
    usage = Usage(input_tokens=response.usage.input_tokens, output_tokens=response.usage.output_tokens)
    return Answer(content=text_of(response), tool_calls=calls, usage=usage)


@contextmanager
def serving() -> Iterator[str]:
    """A provider in another process; its base URL."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/v1"
    finally:
        process.terminate()
        process.join()


def serve(told: Connection) -> None:
    async def forever() -> None:
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        told.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(forever())


async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection: the tool first, and text once its result is there."""
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        length = next(line for line in head.lower().splitlines() if line.startswith(b"content-length:"))
        body = json.loads(await reader.readexactly(int(length.partition(b":")[2])))
        asks = body["messages"][-1]["role"] != "tool"
        if not body["stream"]:
            text = json.dumps(whole(asks)).encode()
            writer.write(
                f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n".encode()
            )
            writer.write(text)
            continue
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for event in [*map(json.dumps, chunks(asks)), "[DONE]"]:
            data = f"data: {event}\n\n".encode()
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")


CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"query": "hooks"}'}}
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
COMMON = {"id": "chatcmpl-1", "created": 1_750_000_000, "model": "gpt-4o"}


def whole(asks: bool) -> object:
    message = {"role": "assistant", **({"tool_calls": [CALL]} if asks else {"content": "token " * TOKENS})}
    choice = {
        "index": 0,
        "finish_reason": "tool_calls" if asks else "stop",
        "message": {"role": "assistant", **message},
    }
    return {**COMMON, "object": "chat.completion", "choices": [choice], "usage": USAGE}


def chunks(asks: bool) -> list[object]:
    deltas: list[object] = [{"role": "assistant"}]
    deltas += [{"tool_calls": [{"index": 0, **CALL}]}] if asks else [{"content": "token "}] * TOKENS
    choices = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
    choices.append([{"index": 0, "delta": {}, "finish_reason": "tool_calls" if asks else "stop"}])
    told = {**COMMON, "object": "chat.completion.chunk"}
    return [*({**told, "choices": choice} for choice in choices), {**told, "choices": [], "usage": USAGE}]
