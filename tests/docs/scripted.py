"""Models of all frameworks that play one script, and a server, for pages that show the name of a real one.

A page marks the block: `<!-- offline: "openai:gpt-5" is scripted.pydantic_ai() -->`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

CITIES = ("Oslo", "Paris")
ANSWER = "It is sunny in Oslo. I do not know about Paris."


def pydantic_ai() -> Any:
    from pydantic_ai import ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    def play(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked = sum(isinstance(message, ModelResponse) for message in messages)
        if asked == len(CITIES):
            return ModelResponse(parts=[TextPart(ANSWER)])
        return ModelResponse(parts=[ToolCallPart("get_weather", {"city": CITIES[asked]})])

    return FunctionModel(play)


def openai_agents() -> Any:
    from agents import set_tracing_disabled
    from agents.testing import ScriptedModel, assistant_message, function_call

    set_tracing_disabled(True)  # without a key the SDK logs that it cannot send its trace
    calls = [[function_call("get_weather", {"city": city}, call_id=city)] for city in CITIES]
    return ScriptedModel([*calls, [assistant_message(ANSWER)]])


def langchain() -> Any:
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    class Scripted(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **options: Any) -> Any:
            return self

    calls = [{"name": "get_weather", "args": {"city": city}, "id": city} for city in CITIES]
    return Scripted(messages=iter([*(AIMessage("", tool_calls=[call]) for call in calls), AIMessage(ANSWER)]))


def strands() -> Any:
    from strands.models.model import Model

    class Scripted(Model):
        def update_config(self, **config: Any) -> None: ...

        def get_config(self) -> dict[str, str]:
            return {"model_id": "scripted"}

        async def structured_output(self, *args: Any, **given: Any) -> Any:
            yield {}

        async def stream(self, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **given: Any) -> Any:
            asked = sum("toolResult" in block for message in messages for block in message["content"])
            yield {"messageStart": {"role": "assistant"}}
            if asked < len(CITIES):
                use = {"name": "get_weather", "toolUseId": f"c{asked}"}
                yield {"contentBlockStart": {"start": {"toolUse": use}}}
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps({"city": CITIES[asked]})}}}}
            else:
                yield {"contentBlockDelta": {"delta": {"text": ANSWER}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use" if asked < len(CITIES) else "end_turn"}}

    return Scripted()


def agent_framework() -> Any:
    from agent_framework import (
        BaseChatClient,
        ChatMiddlewareLayer,
        ChatResponse,
        Content,
        FunctionInvocationLayer,
        Message,
    )

    class Scripted(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
        def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **given: Any) -> Any:
            contents = [content for message in messages for content in message.contents]
            asked = sum(content.type == "function_result" for content in contents)

            async def whole() -> ChatResponse:
                if asked == len(CITIES):
                    return ChatResponse(messages=[Message("assistant", [ANSWER])])
                arguments = json.dumps({"city": CITIES[asked]})
                call = Content.from_function_call(call_id=f"c{asked}", name="get_weather", arguments=arguments)
                return ChatResponse(messages=[Message("assistant", [call])])

            return whole()

    return Scripted()


def google_adk() -> Any:
    from google.adk.models.base_llm import BaseLlm
    from google.adk.models.llm_response import LlmResponse
    from google.genai import types

    class Scripted(BaseLlm):
        model: str = "scripted"

        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            parts = [part for each in llm_request.contents for part in each.parts or []]
            asked = sum(part.function_response is not None for part in parts)
            if asked < len(CITIES):
                call = types.FunctionCall(id=f"c{asked}", name="get_weather", args={"city": CITIES[asked]})
                part = types.Part(function_call=call)
            else:
                part = types.Part(text=ANSWER)
            yield LlmResponse(content=types.Content(role="model", parts=[part]))

    return Scripted()


def call_fastmcp(server: Any) -> None:
    """Be the client of a server."""
    from fastmcp import Client

    async def call() -> None:
        async with Client(server) as client:
            for city in CITIES:
                await client.call_tool("get_weather", {"city": city}, raise_on_error=False)

    asyncio.run(call())


def anthropic() -> Any:
    import httpx2
    from anthropic import Anthropic

    def play(request: httpx2.Request) -> httpx2.Response:
        asked = sum(message["role"] == "assistant" for message in json.loads(request.content)["messages"])
        use = {"type": "tool_use", "id": f"c{asked}", "name": "get_weather", "input": {"city": CITIES[asked % 2]}}
        calls = asked < len(CITIES)
        answer = {
            "id": "msg",
            "type": "message",
            "role": "assistant",
            "model": "scripted",
            "content": [use if calls else {"type": "text", "text": ANSWER}],
            "stop_reason": "tool_use" if calls else "end_turn",
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        return httpx2.Response(200, json=answer)

    return Anthropic(api_key="key", http_client=httpx2.Client(transport=httpx2.MockTransport(play)))


def claude_code() -> Any:
    from hookline import ModelResponse, ToolRequest
    from hookline.evals.adapter_contract import Scene
    from tests.adapters.claude_agent_sdk.cli import FakeCli

    calls = [ToolRequest("get_weather", {"city": city}, tool_call_id=city) for city in CITIES]
    turns = [*(ModelResponse(tool_calls=[call]) for call in calls), ModelResponse(content=ANSWER)]
    return FakeCli(Scene(turns=turns))


def nats_server() -> str:
    """Start a NATS server, which ends with the process, and return its URL."""
    import atexit
    import tempfile
    from pathlib import Path

    from tests.nats_servers import NatsServer

    folder = tempfile.TemporaryDirectory()
    server = NatsServer(Path(folder.name))
    server.start()
    atexit.register(folder.cleanup)
    atexit.register(server.kill)
    return server.url
