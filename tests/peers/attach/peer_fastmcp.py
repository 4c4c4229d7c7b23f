"""Attach hookline to the tests of FastMCP: every server has a `HooklineMiddleware`, outside of its other middleware."""

from __future__ import annotations

from typing import Any

from fastmcp import FastMCP
from peer_hooks import hooks_that_do_nothing

from hookline import ToolCall
from hookline.adapters.fastmcp import HooklineMiddleware

own = FastMCP.__init__
TOOL_EVENTS = ("beforeToolCall", "afterToolCall", "onToolCallError")
"""What a server can drive; a hook for anything else would be told of in the log, which tests of the log count."""


def _init(self: FastMCP, *given: Any, **options: Any) -> None:
    own(self, *given, **options)
    self.middleware.insert(0, HooklineMiddleware(hooks=hooks_that_do_nothing(TOOL_EVENTS, (ToolCall,))))


FastMCP.__init__ = _init  # type: ignore[method-assign]
