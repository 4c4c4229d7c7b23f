"""The protocols of the clients, as a loop and as a scripted provider speak them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import httpx2
from openai import AsyncOpenAI, OpenAI

from hookline import ModelResponse
from tests.adapters.provider import Exchange, Play, function, says

__all__ = ["CHAT", "DIALECTS", "Dialect"]


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


CHAT = Chat()
DIALECTS: list[Dialect] = [CHAT]


def refuse(exchange: Exchange) -> None:
    exchange.send_json(400, {"error": {"message": "the script is over", "type": "invalid_request_error"}})
