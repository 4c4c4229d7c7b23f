"""Hooks that travel with an operation: those that are data, kept in its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hookline.dispatcher._webhooks import Critical, carried, local
from hookline.hooks import AnyHook, Hook, check_hook
from hookline.webhooks import HookData

if TYPE_CHECKING:
    from hookline.runtime._run import Run

__all__ = ["take_along"]


def take_along(run: Run, hooks: Sequence[AnyHook]) -> None:
    """See to it that the hooks of a run which are data are kept with it, those of earlier segments too.

    On a store that keeps what happened their deliveries are made with each write; else the run makes them.

    Args:
        run: The run; its `data` are the hooks of its earlier segments.
        hooks: Those that it was given.

    Raises:
        HookDefinitionError: If one that was kept could not be delivered by this version.
        MissingExtraError: If what delivers them is not installed.
    """
    given = [data for entry in hooks if isinstance(entry, Hook) and (data := entry.data()) is not None]
    kept = [data for data in run.data if data not in given]
    run.data = [*kept, *given]
    every = [*hooks, *(_restored(data) for data in kept)]
    if run.journal is not None:
        run.hooks = local(every, lambda: run.dispatcher.delivery)
        return
    if any(data.webhook.fallback == "none" for data in run.data):
        run.critical = Critical()
    run.hooks = carried(every, run.dispatcher.delivery, run.critical)


def _restored(data: HookData) -> Hook:
    hook = Hook(id=data.id, type=data.type, tool=data.tool, webhook=data.webhook, tenant_id=data.tenant_id)
    check_hook(hook, f"Hook {data.id!r} of the stored operation")
    return hook
