"""What `hooked` and `answers` of every adapter share: checks of hooks, of options and of a person's decisions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from hookline.errors import HookUsageError
from hookline.hooks import AnyHook, hook_batch
from hookline.runtime import AdapterRun, Approve, Capabilities, Reject

__all__ = ["OPTIONS", "check_hooked", "decisions_by_call", "mark_paused", "paused_operation"]

OPTIONS = (
    "operation_id",
    "user_id",
    "tenant_id",
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
    """Return the hooks as a list, after a check of hooks and options.

    Args:
        hooks: The hooks that were given to `hooked`.
        capabilities: What the framework can drive.
        options: The other arguments of `hooked`.
        also: Options that this adapter takes beside `OPTIONS`.

    Raises:
        HookDefinitionError: If a hook is invalid.
        UnsupportedHookError: If a hook would never be called.
        HookUsageError: If there is no such option.
    """
    batch, known = hook_batch(hooks), (*OPTIONS, *also)
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise HookUsageError(
                f"hooked(...) for {capabilities.framework} has no option {name!r}.{hint} Its options: "
                f"{', '.join(known)}. Arguments of the framework belong to the run: hooked(...).run(...)."
            )
    if not options.get("best_effort"):
        AdapterRun(batch, capabilities, **options)
    return batch


def decisions_by_call(decisions: Iterable[Approve | Reject], waiting: Collection[str]) -> dict[str, Approve | Reject]:
    """Return a person's decisions by the id of their call.

    Args:
        decisions: The decisions.
        waiting: The ids of the calls that wait.

    Raises:
        HookUsageError: If something else than a list of decisions was given, if a decision is about a call that does
            not wait, or if there are two about one call.
    """
    if isinstance(decisions, Approve | Reject) or not isinstance(decisions, Iterable):
        raise HookUsageError(f"Give a list of decisions, [Approve(...), Reject(...)]; got {decisions!r}.")
    found: dict[str, Approve | Reject] = {}
    for decision in decisions:
        if not isinstance(decision, Approve | Reject):
            raise HookUsageError(f"A decision is an Approve(...) or a Reject(...); got {decision!r}.")
        if decision.tool_call_id not in waiting:
            raise HookUsageError(
                f"No call {decision.tool_call_id!r} waits for a person. Calls that wait: "
                f"{', '.join(map(repr, waiting)) or 'none'}."
            )
        if decision.tool_call_id in found:
            raise HookUsageError(f"There are two decisions about the call {decision.tool_call_id!r}; give one.")
        found[decision.tool_call_id] = decision
    return found


def mark_paused(result: Any, operation_id: str) -> None:
    """Keep the operation that waits for a person with the framework's result, for `resume`."""
    vars(result)[_OPERATION_KEY] = operation_id


def paused_operation(result: Any) -> str | None:
    """Return the operation that a result of a framework was marked with, if it was."""
    found = getattr(result, _OPERATION_KEY, None)
    return found if isinstance(found, str) else None


_OPERATION_KEY = "_hookline_operation_id"
