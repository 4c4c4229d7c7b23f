"""A hook as the mechanism runs it, with everything decided that can be decided before an event comes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, cast

import msgspec

from hookline._hook_checks import tool_matcher
from hookline.hooks import Hook

__all__ = ["Observer", "compile_observer"]


class Observer(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A hook as the mechanism runs it.

    Attributes:
        id: The hook's id.
        handler: For an async one, a function that surely returns a coroutine.
        is_async: Decided once, when the hook is registered.
        timeout: Seconds; `None` for the dispatcher's.
        matches: Whether an event is for this hook; `None` if every one is.
    """

    id: str
    handler: Callable[[Any], Any]
    is_async: bool
    timeout: float | None = None
    matches: Callable[[Any], object] | None = None


def compile_observer(hook: Hook, tenant_id: str = "") -> Observer:
    """Decide everything about a hook that can be decided before an event comes."""
    handler = cast("Callable[[Any], Any]", hook.handler)
    is_async = _is_async(handler)
    if is_async and not inspect.iscoroutinefunction(handler):
        handler = _awaiting(handler)
    return Observer(
        id=hook.id,
        handler=handler,
        is_async=is_async,
        timeout=hook.timeout,
        matches=_matcher(hook.tool, tenant_id),
    )


def _is_async(handler: Callable[..., object]) -> bool:
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


def _awaiting(handler: Callable[[Any], Any]) -> Callable[[Any], Coroutine[Any, Any, Any]]:
    async def adapted(event: Any) -> None:
        outcome = handler(event)
        if inspect.isawaitable(outcome):
            await outcome

    return adapted


def _matcher(tool: str | None, tenant_id: str) -> Callable[[Any], object] | None:
    wanted = tool_matcher(tool)
    if wanted is None and not tenant_id:
        return None

    def matches(event: Any) -> bool:
        if tenant_id and event.tenant_id != tenant_id:
            return False
        return wanted is None or bool(wanted(f"{event.identifier}/{event.api_name}"))

    return matches
