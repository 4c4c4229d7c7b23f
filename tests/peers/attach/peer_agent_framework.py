"""Attach hookline to the tests of Agent Framework: each run of an agent has a `HooklineMiddleware`, before its others."""

from __future__ import annotations

from typing import Any

from agent_framework import AgentMiddlewareLayer
from peer_hooks import hooks_that_do_nothing

from hookline.adapters.agent_framework import HooklineMiddleware

own = AgentMiddlewareLayer.run


def _run(self: Any, *given: Any, middleware: Any = None, **options: Any) -> Any:
    others = [] if middleware is None else list(middleware) if isinstance(middleware, list | tuple) else [middleware]
    return own(self, *given, middleware=[HooklineMiddleware(hooks_that_do_nothing()), *others], **options)


AgentMiddlewareLayer.run = _run  # type: ignore[method-assign]
