"""The models of pages that call a provider: they search for the last word of the prompt, and say what was found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.adapters.provider import Exchange, Play, Provider, function, says, tool_use, writes

__all__ = ["answer", "serve"]


@contextmanager
def serve(play: Play) -> Iterator[str]:
    """Serve models on loopback, and give their address."""
    with Provider() as provider:
        provider.script(play)
        yield provider.url


def answer(exchange: Exchange) -> None:
    """Answer in the protocol that was asked in, and close the connection, as the pages leave their clients open."""
    end_headers = exchange.handler.end_headers

    def end_headers_and_close() -> None:
        exchange.handler.send_header("Connection", "close")
        end_headers()

    exchange.handler.end_headers = end_headers_and_close
    *_, last = exchange.body["messages"]
    found = result_of(last)
    word = str(last["content"]).split()[-1]
    anthropic = exchange.path.endswith("/messages")
    if found is not None:
        text = f"I found {found}."
    elif "response_format" in exchange.body:
        text = json.dumps({"name": word.capitalize()})
    elif "tools" not in exchange.body:
        text = f"{word.capitalize()}."
    else:
        args = {"query": word}
        call: Play = (
            writes("", tool_use("search", args, "c1"))
            if anthropic
            else says(None, function("search", json.dumps(args), "c1"))
        )
        return call(exchange)
    return (writes(text) if anthropic else says(text, usage=None if exchange.streamed else USAGE))(exchange)


USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


def result_of(message: Any) -> str | None:
    if message["role"] == "tool":
        return str(message["content"])
    content = message["content"]
    blocks = content if isinstance(content, list) else []
    return next((block["content"] for block in blocks if block["type"] == "tool_result"), None)
