"""The protocols of the clients, as a loop and as a scripted provider speak them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import httpx2
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI

from hookline import ModelResponse
from tests.adapters.provider import (
    Exchange,
    Play,
    call_item,
    function,
    message_item,
    responds,
    says,
    tool_use,
    writes,
)

__all__ = ["CHAT", "DIALECTS", "MESSAGES", "RESPONSES", "Dialect", "refuse"]


class Dialect(Protocol):
    """One protocol.

    Attributes:
        name: Its name.
    """

    name: str

    def client(self, url: str, *, sync: bool = False) -> Any: ...

    def method(self, client: Any) -> Callable[..., Any]:
        """The method of the client that asks the model."""
        ...

    def request(self, model: str, messages: Sequence[Any], tools: Sequence[Any]) -> dict[str, Any]:
        """The arguments of that method."""
        ...

    def tools(self, run: Any) -> list[Any]:
        """The schemas of the run's tools."""
        ...

    def entries(self, response: Any) -> list[Any]:
        """What people add to their messages after an answer."""
        ...

    def text(self, response: Any) -> str: ...

    def calls(self, response: Any) -> list[Any]: ...

    def call_name(self, call: Any) -> str: ...

    def call_id(self, call: Any) -> str: ...

    def call_args(self, call: Any) -> Any: ...

    def result(self, call: Any, content: str) -> Any:
        """The result of a call that the loop has made by itself."""
        ...

    def results(self, entries: Sequence[Any]) -> list[str]:
        """The texts of the results in a conversation, in order."""
        ...

    def says(self, answer: ModelResponse, **further: Any) -> Play:
        """The provider gives an answer."""
        ...

    def shown(self, body: Any) -> list[tuple[str, str]]:
        """Role and text of the messages in a request; a result of a tool has the role `tool`."""
        ...


def http_client(*, sync: bool) -> Any:
    """A client without certificates, which take longer to load than most tests to run."""
    return httpx2.Client(verify=False) if sync else httpx2.AsyncClient(verify=False)


class Chat:
    name = "chat"

    def client(self, url: str, *, sync: bool = False) -> Any:
        return (OpenAI if sync else AsyncOpenAI)(
            base_url=url, api_key="key", max_retries=0, http_client=http_client(sync=sync)
        )

    def method(self, client: Any) -> Callable[..., Any]:
        return client.chat.completions.create

    def request(self, model: str, messages: Sequence[Any], tools: Sequence[Any]) -> dict[str, Any]:
        return {"model": model, "messages": messages, **({"tools": tools} if tools else {})}

    def tools(self, run: Any) -> list[Any]:
        return run.tools

    def entries(self, response: Any) -> list[Any]:
        return [response.choices[0].message]

    def text(self, response: Any) -> str:
        return response.choices[0].message.content or ""

    def calls(self, response: Any) -> list[Any]:
        return response.choices[0].message.tool_calls or []

    def call_name(self, call: Any) -> str:
        return call.function.name

    def call_id(self, call: Any) -> str:
        return call.id

    def call_args(self, call: Any) -> Any:
        return json.loads(call.function.arguments)

    def result(self, call: Any, content: str) -> Any:
        return {"role": "tool", "tool_call_id": call.id, "content": content}

    def results(self, entries: Sequence[Any]) -> list[str]:
        return [each["content"] for each in entries if isinstance(each, dict) and each["role"] == "tool"]

    def says(self, answer: ModelResponse, **further: Any) -> Play:
        calls = [function(call.tool_name, json.dumps(dict(call.args)), call.tool_call_id) for call in answer.tool_calls]
        return says(answer.content or None, *calls, **further)

    def shown(self, body: Any) -> list[tuple[str, str]]:
        return [(each["role"], each["content"] or "") for each in body["messages"]]


class Responses:
    name = "responses"

    def client(self, url: str, *, sync: bool = False) -> Any:
        return CHAT.client(url, sync=sync)

    def method(self, client: Any) -> Callable[..., Any]:
        return client.responses.create

    def request(self, model: str, messages: Sequence[Any], tools: Sequence[Any]) -> dict[str, Any]:
        return {"model": model, "input": messages, **({"tools": tools} if tools else {})}

    def tools(self, run: Any) -> list[Any]:
        return run.response_tools

    def entries(self, response: Any) -> list[Any]:
        return response.output

    def text(self, response: Any) -> str:
        return response.output_text

    def calls(self, response: Any) -> list[Any]:
        return [item for item in response.output if item.type == "function_call"]

    def call_name(self, call: Any) -> str:
        return call.name

    def call_id(self, call: Any) -> str:
        return call.call_id

    def call_args(self, call: Any) -> Any:
        return json.loads(call.arguments)

    def result(self, call: Any, content: str) -> Any:
        return {"type": "function_call_output", "call_id": call.call_id, "output": content}

    def results(self, entries: Sequence[Any]) -> list[str]:
        return [each["output"] for each in entries if isinstance(each, dict) and "output" in each]

    def says(self, answer: ModelResponse, **further: Any) -> Play:
        items = [message_item(answer.content)] if answer.content else []
        calls = [
            call_item(call.tool_name, json.dumps(dict(call.args)), call.tool_call_id) for call in answer.tool_calls
        ]
        return responds(*items, *calls, **{"pieces": [answer.content], **further})

    def shown(self, body: Any) -> list[tuple[str, str]]:
        given = body["input"]
        found = [("user", given)] if isinstance(given, str) else [self._shown(item) for item in given]
        return [each for at, each in enumerate(found) if each[0] != "assistant" or found[at - 1][0] != "assistant"]

    def _shown(self, item: Any) -> tuple[str, str]:
        if item.get("type") == "function_call_output":
            return "tool", item["output"]
        if item.get("type") == "function_call":
            return "assistant", ""
        content = item["content"]
        return item["role"], content if isinstance(content, str) else "".join(part["text"] for part in content)


class Messages:
    name = "messages"

    def client(self, url: str, *, sync: bool = False) -> Any:
        return (Anthropic if sync else AsyncAnthropic)(
            base_url=url.removesuffix("/v1"), api_key="key", max_retries=0, http_client=http_client(sync=sync)
        )

    def method(self, client: Any) -> Callable[..., Any]:
        return client.messages.create

    def request(self, model: str, messages: Sequence[Any], tools: Sequence[Any]) -> dict[str, Any]:
        return {"model": model, "max_tokens": 100, "messages": messages, **({"tools": tools} if tools else {})}

    def tools(self, run: Any) -> list[Any]:
        return run.tools

    def entries(self, response: Any) -> list[Any]:
        return [{"role": "assistant", "content": response.content}]

    def text(self, response: Any) -> str:
        return "".join(block.text for block in response.content if block.type == "text")

    def calls(self, response: Any) -> list[Any]:
        return [block for block in response.content if block.type == "tool_use"]

    def call_name(self, call: Any) -> str:
        return call.name

    def call_id(self, call: Any) -> str:
        return call.id

    def call_args(self, call: Any) -> Any:
        return call.input

    def result(self, call: Any, content: str) -> Any:
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": content}]}

    def results(self, entries: Sequence[Any]) -> list[str]:
        blocks = [block for each in entries if isinstance(each["content"], list) for block in each["content"]]
        return [block["content"] for block in blocks if isinstance(block, dict) and block["type"] == "tool_result"]

    def says(self, answer: ModelResponse, **further: Any) -> Play:
        calls = [tool_use(call.tool_name, dict(call.args), call.tool_call_id) for call in answer.tool_calls]
        return writes(answer.content, *calls, **further)

    def shown(self, body: Any) -> list[tuple[str, str]]:
        return [shown for each in body["messages"] for shown in self._shown(each)]

    def _shown(self, entry: Any) -> list[tuple[str, str]]:
        content = entry["content"]
        if isinstance(content, str):
            return [(entry["role"], content)]
        results = [("tool", block["content"]) for block in content if block["type"] == "tool_result"]
        return results or [(entry["role"], "".join(block.get("text", "") for block in content))]


CHAT, RESPONSES, MESSAGES = Chat(), Responses(), Messages()
DIALECTS: list[Dialect] = [CHAT, RESPONSES, MESSAGES]


def refuse(exchange: Exchange) -> None:
    exchange.send_json(400, {"error": {"message": "the script is over", "type": "invalid_request_error"}})
