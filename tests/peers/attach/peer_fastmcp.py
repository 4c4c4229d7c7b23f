"""Attach hookline to the tests of FastMCP: every server has a `HooklineMiddleware`, outside of its other middleware."""

from __future__ import annotations

from typing import Any

from fastmcp import FastMCP
from peer_hooks import hooks_that_do_nothing

from hookline.adapters.fastmcp import HooklineMiddleware

own = FastMCP.__init__


def _init(self: FastMCP, *given: Any, **options: Any) -> None:
    own(self, *given, **options)
    self.middleware.insert(0, HooklineMiddleware(hooks=hooks_that_do_nothing(), best_effort=True))


FastMCP.__init__ = _init  # type: ignore[method-assign]
