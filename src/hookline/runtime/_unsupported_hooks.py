"""Refuse hooks that an adapter would never call, or log them with `best_effort`."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from hookline._checks import names_in
from hookline.calls import ModelCall
from hookline.errors import UnsupportedHookError
from hookline.events import EVENTS
from hookline.hooks import AnyHook, Hook, Hooks, Interceptor
from hookline.runtime._capabilities import CONTEXT_CALLS, Capabilities

__all__ = ["check_driven"]

logger = logging.getLogger("hookline")


def check_driven(hooks: Iterable[AnyHook], capabilities: Capabilities, *, best_effort: bool) -> None:
    """Refuse hooks that the adapter would never call.

    Args:
        hooks: The hooks of a run.
        capabilities: The events and calls that the adapter supports.
        best_effort: Whether hooks that the adapter does not support are only logged.

    Raises:
        UnsupportedHookError: If there is such a hook; for the first one.
    """
    every_event = len(capabilities.events) == len(EVENTS)
    for entry in hooks:
        if every_event and isinstance(entry, Hooks) and not entry.interceptors:
            continue
        for error in _find_undriven(entry, capabilities, every_event=every_event):
            if not best_effort:
                raise error
            logger.warning("%s", error)


def _find_undriven(entry: AnyHook, capabilities: Capabilities, *, every_event: bool) -> Iterable[UnsupportedHookError]:
    # A bundle of the package's own, such as telemetry, listens to everything and needs nothing in particular.
    watches = every_event or (isinstance(entry, Hooks) and not entry.recorded)
    observers = entry.observers if isinstance(entry, Hooks) else [entry] if isinstance(entry, Hook) else []
    for hook in () if watches else observers:
        kind = hook.event.hook_type
        if kind not in capabilities.events:
            yield UnsupportedHookError(hook.id, str(kind), capabilities.framework)
    interceptors = entry.interceptors if isinstance(entry, Hooks) else [entry] if isinstance(entry, Interceptor) else []
    for interceptor in interceptors:
        if interceptor.kind not in capabilities.calls.get(interceptor.call, frozenset()):
            what = f"{interceptor.kind}({interceptor.call.__name__})"
            yield UnsupportedHookError(interceptor.id, what, capabilities.framework)
        elif (used := _unsupported_means(interceptor, capabilities)) is not None:
            yield UnsupportedHookError(interceptor.id, used, capabilities.framework)


def _unsupported_means(interceptor: Interceptor, capabilities: Capabilities) -> str | None:
    """Return what the code of a hook uses that the adapter does not support; `None` for nothing.

    What cannot be seen in the code fails the hook when it is used.
    """
    call = interceptor.call
    can_add = call not in CONTEXT_CALLS or call in capabilities.adds_context
    can_guide = call is not ModelCall or interceptor.kind != "after" or capabilities.guides
    if can_add and can_guide:
        return None
    names = names_in(interceptor.handler)
    if not can_add and "add_context" in names:
        return f"{call.__name__}.add_context"
    return "Guide" if not can_guide and "Guide" in names else None
