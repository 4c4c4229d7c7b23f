"""Check the arguments of `hooked` and `answers` for every adapter: hooks, options and a person's decisions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from types import NoneType
from typing import Any

from hookline.errors import HookUsageError
from hookline.hooks import AnyHook, hook_batch
from hookline.runtime import AdapterRun, Approve, Capabilities, Reject
from hookline.signals import operation_registered, operation_unregistered

__all__ = [
    "OPTIONS",
    "check_hooked",
    "decisions_by_call",
    "mark_paused",
    "needs_operation",
    "operations_are_watched",
    "paused_operation",
]

OPTIONS = (
    "operation_id",
    "user_id",
    "tenant_id",
    "tags",
    "dispatcher",
    "store",
    "drain_timeout",
    "best_effort",
    "allow_missing_hooks",
)
"""The options that `hooked` takes for every framework."""


def check_hooked(
    hooks: Iterable[AnyHook], capabilities: Capabilities, options: Mapping[str, Any], *, also: Collection[str] = ()
) -> list[AnyHook]:
    """Check the hooks and options given to `hooked`, and return the hooks as a list.

    Args:
        hooks: The hooks given to `hooked`.
        capabilities: The events and calls that the adapter supports.
        options: The other arguments of `hooked`.
        also: The options of this adapter in addition to `OPTIONS`.

    Raises:
        HookDefinitionError: If a hook is invalid.
        UnsupportedHookError: If a hook would never be called.
        HookUsageError: If an option is unknown.
    """
    batch, known = hook_batch(hooks), (*OPTIONS, *also)
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise HookUsageError(
                f"hooked(...) for {capabilities.framework} has no option {name!r}.{hint} Its options: "
                f"{', '.join(known)}. Pass arguments of the framework to the run: hooked(...).run(...)."
            )
    if not options.get("best_effort"):
        AdapterRun(batch, capabilities, **options)
    return batch


UNSEEN_OPTIONS: Mapping[str, type | tuple[type, ...]] = {
    "operation_id": NoneType,
    "dispatcher": NoneType,
    "store": NoneType,
    "parent": NoneType,
    "conversation_id": (str, NoneType),
    "agent_id": str,
    "model": str,
    "provider": str,
    "user_id": str,
    "tenant_id": str,
    "tags": (tuple, list, set, frozenset),
    "drain_timeout": (int, float),
    "best_effort": bool,
    "allow_missing_hooks": bool,
}
"""The options that do not show in a run without hooks, and the types of such values."""


def needs_operation(hooks: Collection[AnyHook], options: Mapping[str, Any]) -> bool:
    """Return whether every run is an operation: it has hooks, or an option by which others could find it.

    A run without either is an operation only if something else can notice it: `operations_are_watched`, a hooked run
    that calls it, or a person's decisions that it resumes with. Wrong options count, so that the run refuses them.

    Args:
        hooks: The hooks of the run.
        options: Options of `AdapterRun`.
    """
    return bool(hooks) or not all(isinstance(each, UNSEEN_OPTIONS.get(name, ())) for name, each in options.items())


def operations_are_watched() -> bool:
    """Return whether a receiver of a signal learns of every operation of this process."""
    return bool(operation_registered.receivers or operation_unregistered.receivers)


def decisions_by_call(decisions: Iterable[Approve | Reject], waiting: Collection[str]) -> dict[str, Approve | Reject]:
    """Return a dictionary from tool call ids to a person's decisions about those calls.

    Args:
        decisions: The decisions.
        waiting: The ids of the tool calls that wait for a decision.

    Raises:
        HookUsageError: If `decisions` is not a list of decisions, if a decision is about a call that does not wait, or
            if a call has two decisions.
    """
    if isinstance(decisions, Approve | Reject) or not isinstance(decisions, Iterable):
        raise HookUsageError(f"Pass a list of decisions, such as [Approve(...), Reject(...)]; got {decisions!r}.")
    found: dict[str, Approve | Reject] = {}
    for decision in decisions:
        if not isinstance(decision, Approve | Reject):
            raise HookUsageError(f"A decision must be an Approve(...) or a Reject(...); got {decision!r}.")
        if decision.tool_call_id not in waiting:
            raise HookUsageError(
                f"No tool call {decision.tool_call_id!r} waits for a person. Waiting calls: "
                f"{', '.join(map(repr, waiting)) or 'none'}."
            )
        if decision.tool_call_id in found:
            raise HookUsageError(f"Tool call {decision.tool_call_id!r} has two decisions. Pass one.")
        found[decision.tool_call_id] = decision
    return found


def mark_paused(result: Any, operation_id: str) -> None:
    """Store the id of the paused operation on the framework's result, so that `resume` can find it."""
    vars(result)[_OPERATION_KEY] = operation_id


def paused_operation(result: Any) -> str | None:
    """Return the id of the paused operation that `mark_paused` stored on a result; `None` if there is none."""
    found = getattr(result, _OPERATION_KEY, None)
    return found if isinstance(found, str) else None


_OPERATION_KEY = "_hookline_operation_id"
