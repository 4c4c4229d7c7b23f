"""States and events as the tests write them."""

from __future__ import annotations

from typing import Any

from hookline import BeforeStep, HookType
from hookline.events import encode
from hookline.runtime import JournalEntry, OperationState
from hookline.store import SqlStore
from hookline.webhooks import HookData, Webhook


def state(operation_id: str = "op", version: int = 1, *, events: int = 0, **fields: Any) -> OperationState:
    return OperationState(operation_id=operation_id, agent_id="agent", version=version, events=events, **fields)


def entries(operation_id: str, first: int, last: int) -> list[JournalEntry]:
    """Events of an operation, by their numbers."""
    return [
        JournalEntry(
            number=number,
            type=HookType.BEFORE_STEP,
            time_unix_nano=number,
            wire=encode(BeforeStep(operation_id=operation_id, step_index=number, time_unix_nano=number)),
        )
        for number in range(first, last + 1)
    ]


def hook(identity: str = "hook", url: str = "https://example.org/in", **fields: Any) -> HookData:
    fields = {"type": HookType.BEFORE_STEP, "webhook": Webhook(url=url)} | fields
    return HookData(id=identity, **fields)


async def grow(store: SqlStore, operation_id: str, *, commits: int, each: int, **fields: Any) -> OperationState:
    """An operation that is written again and again, with some events each time."""
    found = await store.load(operation_id)
    written = found.events if found else 0
    version = found.version if found else 0
    for _ in range(commits):
        found = state(operation_id, version + 1, events=written + each, **fields)
        await store.commit(
            found,
            expected_version=version or None,
            entries=entries(operation_id, written + 1, written + each),
        )
        written, version = found.events, found.version
    assert found is not None
    return found
