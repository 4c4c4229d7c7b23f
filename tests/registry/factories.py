"""Handlers that definitions of these tests name, as a user's module has them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from subprocess import getoutput
from typing import Any, Unpack

from hookline.builtin import BundleOptions
from hookline.calls import Deny, ToolCall, ToolResult
from hookline.events import AfterToolCall
from hookline.hooks import Hooks

__all__ = ["check_output", "counting", "late", "say", "two_hooks", "unlike"]

MADE: list[dict[str, Any]] = []
SEEN: list[Any] = []
check_output = subprocess.check_output
hidden_from_all = getoutput


def say(*, text: str = "no", times: int = 1) -> Callable[[ToolCall], Deny]:
    """Refuse every call with a text."""
    MADE.append({"text": text})
    answer = text * times
    return lambda call: Deny(answer)


def counting(*, most: int) -> Callable[[ToolCall], Deny | None]:
    """Refuse all calls but the first ones."""
    seen: list[ToolCall] = []

    def judge(call: ToolCall) -> Deny | None:
        seen.append(call)
        return Deny("too many") if len(seen) > most else None

    return judge


def seeing() -> Callable[..., None]:
    return lambda *what: SEEN.append(what)


def unlike(*, word: str) -> Callable[[ToolCall, ToolResult], ToolResult]:
    """Put a word into the place of every result."""
    return lambda call, result: ToolResult(content=word)


def late() -> Callable[[ToolCall], Any]:
    """Never come to an end."""
    import anyio

    async def wait(call: ToolCall) -> None:
        await anyio.sleep_forever()

    return wait


def breaking(*, at: str) -> Callable[[AfterToolCall], None]:
    """Fail on the calls of one tool."""

    def hear(event: AfterToolCall) -> None:
        if event.tool_name == at:
            raise ValueError(f"no {at}")

    return hear


def blocking() -> Callable[[ToolCall], None]:
    """Hold the thread for a while."""
    return lambda call: time.sleep(1)


def two_hooks(*, word: str, **options: Unpack[BundleOptions]) -> Hooks:
    """Two hooks that stand at different points."""
    hooks = Hooks(**options)
    hooks.guard(ToolCall)(lambda call: Deny(word) if call.tool_name == word else None)
    hooks.after(ToolCall, priority=1000 - hooks.priority)(lambda call, result: None)
    return hooks


def broken(*, word: str = "") -> None:
    raise RuntimeError(f"cannot be made of {word!r}")


async def asynchronous() -> None:
    return None


def nothing() -> None:
    return None


number = 7

JUDGING: list[Any] = []
"""An event that `slow` sets when it begins to judge, and one that it waits for."""


def slow() -> Callable[[ToolCall], Any]:
    """Judge until it is told to end."""

    async def judge(call: ToolCall) -> None:
        JUDGING[0].set()
        await JUDGING[1].wait()

    return judge


def wrapping(*, word: str = "old") -> Callable[[ToolCall, Any], Any]:
    """Put a word before every result."""

    async def wrap(call: ToolCall, call_next: Any) -> ToolResult:
        result = await call_next(call)
        return ToolResult(content=f"{word} {result.content}")

    return wrap
