"""States and events as the tests write them."""

from __future__ import annotations

from random import Random
from typing import Any

from sqlalchemy import insert

from hookline import BeforeStep, HookType
from hookline.events import encode
from hookline.runtime import JournalEntry, OperationState
from hookline.store import SqlStore, operations
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


def operation_rows(count: int, seed: int = 1) -> list[dict[str, Any]]:
    """Operations of which many began at the same time, as those of one group of commits do."""
    random = Random(seed)
    return [
        {
            "operation_id": f"op-{number}",
            "agent_id": random.choice(["a1", "a2"]),
            "tenant_id": random.choice(["acme", "globex", ""]),
            "user_id": random.choice(["u1", "u2"]),
            "status": random.choice(["done", "done", "error", "max_steps", "running", "waiting_for_human"]),
            "version": 1,
            "write_id": "w",
            "format": 1,
            "state": b"{}",
            "steps": random.randrange(4),
            "llm_calls": 1,
            "tool_calls": 0,
            "total_tokens": random.randrange(1000),
            "cost_usd": random.randrange(8) / 4,
            "events": 0,
            "prompt": random.choice(["Refund order 7", "a 50%_ discount", "Plan a trip"]),
            "duration_ms": random.randrange(1, 50) * 1.5,
            "created_at": float(random.randrange(100)),
            "updated_at": float(random.randrange(100)),
        }
        for number in range(count)
    ]


async def insert_operations(store: SqlStore, rows: list[dict[str, Any]]) -> None:
    """Write rows of operations as they are, with any times."""
    async with store.writing() as connection:
        await connection.execute(insert(operations), rows)
