"""Hooks that judge calls only as far as a test lets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

from hookline import Deny, ToolCall

MODULE = "tests.server.gated_hooks"
allowed = 0
"""How many calls may be judged."""
judged = 0


def allow(calls: int) -> None:
    """Let so many calls be judged from now on."""
    global allowed, judged
    allowed, judged = calls, 0


def gated() -> Callable[[ToolCall], Any]:
    """Deny each call, once it may be judged."""

    async def deny(call: ToolCall) -> Deny:
        global judged
        while judged >= allowed:
            await anyio.sleep(0.01)
        judged += 1
        return Deny("no")

    return deny
