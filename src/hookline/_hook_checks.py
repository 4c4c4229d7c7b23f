"""What is refused when a hook is registered, each with what is wrong and how to fix it."""

import fnmatch
import inspect
import logging
import math
import re
from collections.abc import Callable
from functools import lru_cache

from hookline.errors import HookDefinitionError

__all__ = [
    "check_id",
    "check_priority",
    "check_signature",
    "check_tenant",
    "check_timeout",
    "check_tool",
    "name_of",
    "shown",
    "tool_matcher",
]

logger = logging.getLogger("hookline")


def shown(value: object) -> str:
    """What somebody gave, for an error: never long, and never an error of its own."""
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 200 else f"{text[:199]}…"


def check_id(id: object, where: str) -> None:  # noqa: A002
    """Refuse an id that is no text."""
    if not isinstance(id, str) or not id:
        raise HookDefinitionError(where, f"`id` is a non-empty string; got {id!r}")


def check_priority(priority: object, where: str) -> None:
    """Refuse a priority that is out of range."""
    if not isinstance(priority, int) or isinstance(priority, bool) or not 0 <= priority <= 1000:
        raise HookDefinitionError(
            where, f"`priority` is a whole number from 0 (outermost) to 1000 (innermost); got {priority!r}"
        )


def check_tenant(tenant_id: object, where: str) -> None:
    """Refuse a tenant that is no text."""
    if not isinstance(tenant_id, str):
        raise HookDefinitionError(where, f"`tenant_id` is a string; got {tenant_id!r}")


def check_timeout(timeout: object, where: str) -> None:
    """Refuse a timeout that is no positive number of seconds.

    Raises:
        HookDefinitionError: If it is neither `None` nor a positive number.
    """
    if timeout is None:
        return
    try:
        seconds = float(timeout) if isinstance(timeout, int | float) and not isinstance(timeout, bool) else math.nan
    except OverflowError:
        seconds = math.nan
    if not seconds > 0:
        raise HookDefinitionError(
            where, f"`timeout` is a positive number of seconds, math.inf or None; got {timeout!r}"
        )


@lru_cache(1000)
def tool_matcher(pattern: str | None) -> Callable[[str], object] | None:
    """A test on `identifier/api_name` for a glob; `None` when every tool matches."""
    if pattern is None or pattern == "*":
        return None
    if not any(char in pattern for char in "*?["):
        return pattern.__eq__
    return re.compile(fnmatch.translate(pattern)).match


def check_tool(tool: object, name: str, *, has_tool: bool, where: str) -> None:
    """Refuse a filter that could never match.

    Args:
        tool: The glob.
        name: The event or call that it filters.
        has_tool: Whether that has a tool at all.
        where: How the error names the hook.
    """
    if not isinstance(tool, str) or not tool:
        raise HookDefinitionError(where, f"`tool` is a glob over 'identifier/api_name'; got {tool!r}")
    if not has_tool:
        raise HookDefinitionError(where, f"{name} has no tool, so `tool={tool!r}` could never match; leave it out")
    if "/" not in tool and not any(char in tool for char in "*?["):
        logger.warning(
            "%s: tool=%r matches no tool, since it is compared with 'identifier/api_name'; did you mean '*/%s'?",
            where,
            tool,
            tool,
        )


def check_signature(handler: object, arguments: str, where: str) -> None:
    """Refuse a handler that cannot be called with what it will be called with.

    Args:
        handler: What was given.
        arguments: What it is called with, in words: `"the event"`, `"the call and the result"`.
        where: How the error names the hook.
    """
    if not callable(handler):
        raise HookDefinitionError(where, f"`handler` must be callable; got {handler!r}")
    inner = inspect.unwrap(handler)
    inner = getattr(inner, "func", inner)
    for body in (inner, type(inner).__call__):
        if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            raise HookDefinitionError(
                where, "`handler` is a generator function, whose body would never run; remove `yield`"
            )
    try:
        signature = inspect.signature(handler, follow_wrapped=False)
    except (TypeError, ValueError):
        return  # a builtin that does not say what it takes
    try:
        signature.bind(*arguments.split(" and "))
    except TypeError as error:
        raise HookDefinitionError(where, f"`handler` is called with {arguments}, but {error}") from None


def name_of(handler: object) -> str:
    """What a handler calls itself."""
    inner = inspect.unwrap(handler) if callable(handler) else handler
    inner = getattr(inner, "func", inner)
    return getattr(inner, "__name__", type(inner).__name__)
