"""A hook as the mechanism runs it, with everything decided that can be decided before an event comes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, cast

import msgspec

from hookline._hook_checks import tool_matcher
from hookline.hooks import Hook

__all__ = ["Observer", "awaiting", "compile_observer", "is_async_handler", "matcher"]


class Observer(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A hook as the mechanism runs it.

    Attributes:
        id: The hook's id.
        handler: For an async one, a function that surely returns a coroutine.
        is_async: Decided once, when the hook is registered.
        timeout: Seconds; `None` for the dispatcher's.
        matches: Whether an event is for this hook; `None` if every one is.
        recorded: Whether its runs are announced to whoever watches hooks.
    """

    id: str
    handler: Callable[[Any], Any]
    is_async: bool
    timeout: float | None = None
    matches: Callable[[Any], object] | None = None
    recorded: bool = True


def compile_observer(hook: Hook, tenant_id: str = "", *, recorded: bool = True) -> Observer:
    """Decide everything about a hook that can be decided before an event comes."""
    handler = cast("Callable[[Any], Any]", hook.handler)
    is_async = is_async_handler(handler)
    return Observer(
        id=hook.id,
        handler=awaiting(handler) if is_async else handler,
        is_async=is_async,
        timeout=hook.timeout,
        matches=matcher(hook.tool, tenant_id),
        recorded=recorded,
    )


def is_async_handler(handler: Callable[..., object]) -> bool:
    """Whether calling it gives something to await, seen through partials, decorators and callable objects."""
    inner: Any = handler
    while not inspect.iscoroutinefunction(inner):
        if isinstance(inner, functools.partial):
            inner = inner.func
        elif hasattr(inner, "__wrapped__"):
            inner = inner.__wrapped__
        else:
            return inspect.iscoroutinefunction(type(inner).__call__)
    return True


def awaiting(handler: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """An async handler as a function that surely returns a coroutine."""
    if inspect.iscoroutinefunction(handler):
        return handler

    async def adapted(*args: Any) -> Any:
        outcome = handler(*args)
        return await outcome if inspect.isawaitable(outcome) else outcome

    return adapted


def matcher(tool: str | None, tenant_id: str) -> Callable[[Any], object] | None:
    """A test on an event or a call: whether it is of that tenant, and its tool matches the glob."""
    wanted = tool_matcher(tool)
    if wanted is None and not tenant_id:
        return None

    def matches(event: Any) -> bool:
        if tenant_id and event.tenant_id != tenant_id:
            return False
        return wanted is None or bool(wanted(f"{event.identifier}/{event.api_name}"))

    return matches
