"""What a user registers: `Hook`, the plain record, and `Hooks`, the named bundle with its decorators."""

import fnmatch
import inspect
import logging
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from hookline.errors import HookDefinitionError
from hookline.events import EVENTS, TOOL_EVENTS, Event, HookType

__all__ = ["Hook", "Hooks"]

logger = logging.getLogger("hookline")

E = TypeVar("E", bound=Event)
R = TypeVar("R")
EventClass: TypeAlias = type[Event]


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """One observer: a handler and when to call it. `Hooks.on` makes these.

    Attributes:
        id: Name of the hook in logs and records; need not be unique.
        type: The event: its class, or its wire name.
        handler: `(event) -> None`, plain or async. Its return value is ignored.
        tool: Glob over `identifier/api_name` (`"*/search"`); `None` for every tool. Tool events only.
        timeout: Seconds an async handler may take; `None` for the dispatcher's `hook_timeout`, `math.inf` for no limit.
        webhook: Where to deliver the event instead. Needs a delivery, which this version does not have.
    """

    id: str
    type: HookType | EventClass
    handler: Callable[[Any], object] | None = None
    tool: str | None = None
    timeout: float | None = None
    webhook: dict[str, Any] | None = None

    @property
    def event(self) -> EventClass:
        """The event's class."""
        return EVENTS[HookType(self.type)] if isinstance(self.type, str) else self.type


class Hooks:
    """A named, reusable bundle of hooks.

    Hooks are added with the decorators; a bundle may be given to any number of runs, agents and dispatchers, and is
    compiled once for all of them. What is added after it was registered counts from its next registration on.

    Args:
        id: Name of the bundle; part of its hooks' default ids.
        priority: Place of its interceptors, 0 (outermost) to 1000.
        tenant_id: Only for events of this tenant; `""` for every tenant.
        inherit: Whether the bundle goes along into the operations of sub-agents.

    Raises:
        HookDefinitionError: If an argument makes no sense.
    """

    def __init__(self, id: str, *, priority: int = 100, tenant_id: str = "", inherit: bool = False) -> None:  # noqa: A002
        if not isinstance(id, str) or not id:
            raise HookDefinitionError("Hooks", f"`id` is a non-empty string; got {id!r}")
        if not isinstance(priority, int) or isinstance(priority, bool) or not 0 <= priority <= 1000:
            raise HookDefinitionError(f"Hooks {id!r}", f"`priority` is a whole number from 0 to 1000; got {priority!r}")
        if not isinstance(tenant_id, str):
            raise HookDefinitionError(f"Hooks {id!r}", f"`tenant_id` is a string; got {tenant_id!r}")
        self.id = id
        self.priority = priority
        self.tenant_id = tenant_id
        self.inherit = inherit
        self.observers: tuple[Hook, ...] = ()
        self.lane = object()
        """Key of the bundle's lanes. Not the bundle itself, so that what is compiled from it does not refer to it."""
        # Filled by the dispatcher. It sits here, not in a table of the dispatcher, so that it dies with the bundle.
        self._compiled: Any = None

    def __repr__(self) -> str:
        return f"Hooks({self.id!r}, observers={len(self.observers)})"

    def on(
        self,
        event: type[E],
        *,
        tool: str | None = None,
        timeout: float | None = None,
        id: str | None = None,  # noqa: A002
    ) -> Callable[[Callable[[E], R]], Callable[[E], R]]:
        """Call the decorated function whenever an event of this class happens.

        A plain function runs at once, inside the agent's step, and must be quick. An async one is queued, and the
        agent never waits for it.

        Args:
            event: One of the sixteen event classes.
            tool: Glob over `identifier/api_name`, for tool events only; `*` also matches `/`.
            timeout: Seconds an async handler may take; `None` for the dispatcher's `hook_timeout`, `math.inf` for
                no limit.
            id: The hook's id; `"<bundle>.<function>"` unless given.

        Returns:
            A decorator that returns the function unchanged.

        Raises:
            HookDefinitionError: If the event, the filter, the timeout or the function cannot work.
        """

        def register(handler: Callable[[E], R]) -> Callable[[E], R]:
            name = id if id is not None else f"{self.id}.{_name_of(handler)}"
            hook = Hook(id=name, type=cast(EventClass, event), handler=handler, tool=tool, timeout=timeout)
            check_hook(hook, f"Hook {name!r} of {self.id!r}")
            self.observers = (*self.observers, hook)
            self._compiled = None
            return handler

        return register


def check_hook(hook: Hook, where: str) -> None:
    """Refuse a hook that could never work.

    Args:
        hook: The hook.
        where: How the error names it.

    Raises:
        HookDefinitionError: With what is wrong and how to fix it.
    """
    if not isinstance(hook.id, str) or not hook.id:
        raise HookDefinitionError(where, f"`id` is a non-empty string; got {hook.id!r}")
    _check_event(hook, where)
    if hook.webhook is not None:
        raise HookDefinitionError(
            where, "this version of hookline has no delivery for `webhook`; give the hook a `handler` that sends it"
        )
    if hook.handler is None:
        raise HookDefinitionError(where, "a hook needs a `handler`: a plain or an async function of one event")
    if not callable(hook.handler):
        raise HookDefinitionError(where, f"`handler` must be callable; got {hook.handler!r}")
    _check_signature(hook.handler, where)
    check_timeout(hook.timeout, where)
    if hook.tool is not None:
        _check_tool(hook, where)


def hook_batch(hooks: Iterable[Hooks | Hook]) -> list[Hooks | Hook]:
    """What `hooks=[...]` holds, checked as a whole.

    Raises:
        HookDefinitionError: That says which entry is wrong and how to fix it.
    """
    if isinstance(hooks, Hooks | Hook | str | bytes) or not isinstance(hooks, Iterable):
        raise HookDefinitionError("hooks", f"give a list of `Hooks` and `Hook`s; got {hooks!r}")
    batch = list(hooks)
    for position, entry in enumerate(batch):
        if isinstance(entry, Hook):
            check_hook(entry, f"hooks[{position}], Hook {entry.id!r}")
        elif not isinstance(entry, Hooks):
            raise HookDefinitionError(
                f"hooks[{position}]",
                f"expected a `Hooks` bundle or a `Hook`, got {entry!r}; functions go into a bundle with @hooks.on(...)",
            )
    return batch


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


def tool_matcher(pattern: str | None) -> Callable[[str], object] | None:
    """A test on `identifier/api_name` for a glob; `None` when every tool matches."""
    if pattern is None or pattern == "*":
        return None
    if not any(char in pattern for char in "*?["):
        return pattern.__eq__
    return re.compile(fnmatch.translate(pattern)).match


def _name_of(handler: object) -> str:
    inner = inspect.unwrap(handler) if callable(handler) else handler
    inner = getattr(inner, "func", inner)
    return getattr(inner, "__name__", type(inner).__name__)


def _check_event(hook: Hook, where: str) -> None:
    known = hook.type in EVENTS if isinstance(hook.type, str) else hook.type in EVENTS.values()
    if not known:
        raise HookDefinitionError(
            where,
            f"{hook.type!r} is not one of the sixteen events: {', '.join(kind.__name__ for kind in EVENTS.values())}",
        )


def _check_tool(hook: Hook, where: str) -> None:
    if not isinstance(hook.tool, str) or not hook.tool:
        raise HookDefinitionError(where, f"`tool` is a glob over 'identifier/api_name'; got {hook.tool!r}")
    if hook.event not in TOOL_EVENTS:
        raise HookDefinitionError(
            where, f"{hook.event.__name__} has no tool, so `tool={hook.tool!r}` could never match; leave it out"
        )
    if "/" not in hook.tool and "*" not in hook.tool and "?" not in hook.tool and "[" not in hook.tool:
        logger.warning(
            "%s: tool=%r matches no tool, since it is compared with 'identifier/api_name'; did you mean '*/%s'?",
            where,
            hook.tool,
            hook.tool,
        )


def _check_signature(handler: Callable[..., object], where: str) -> None:
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
        signature.bind(object())
    except TypeError as error:
        raise HookDefinitionError(where, f"`handler` is called with one argument, the event, but {error}") from None
