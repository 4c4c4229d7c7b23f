"""What the feed of operations finds, whenever and however late a change becomes visible."""

from __future__ import annotations

from collections.abc import AsyncIterator
from time import monotonic

import pytest
from sqlalchemy import update

from hookline.server._feed import LONG_EVERY, LONG_OVERLAP, OVERLAP, ChangedOperations
from hookline.store import SqlStore, operations

from .site import operation

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


async def change(store: SqlStore, operation_id: str, *, ago: float = 0.0) -> None:
    """Write an operation once more, as at some seconds before now."""
    values = {"version": operations.c.version + 1, "updated_at": await store.now() - ago}
    async with store.writing() as connection:
        await connection.execute(update(operations).where(operations.c.operation_id == operation_id).values(**values))


async def poll(changes: ChangedOperations) -> list[str]:
    return [each.operation_id for each in (await changes.poll())[1]]


async def test_only_what_has_changed_since_the_last_poll_is_found_and_once(store: SqlStore) -> None:
    one, other = await operation(store), await operation(store, status="running", pending=[])
    changes = ChangedOperations(store)

    assert await poll(changes) == []
    assert await poll(changes) == []
    await change(store, other)
    new = await operation(store)
    assert await poll(changes) == [other, new]
    await change(store, one)
    assert await poll(changes) == [one]
    assert await poll(changes) == []


async def test_hooks_that_an_operation_waits_for_are_a_change(store: SqlStore) -> None:
    id = await operation(store)  # noqa: A001
    changes = ChangedOperations(store)
    await changes.poll()

    await store.note_missing_hooks(id, ["rules.ask"], version=1)

    assert await poll(changes) == [id]
    assert await poll(changes) == []


@pytest.mark.parametrize("ago", [OVERLAP - 2, OVERLAP + 5, LONG_OVERLAP - 5])
async def test_a_change_that_becomes_visible_late_is_found_and_once(
    store: SqlStore, ago: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, other = await operation(store), await operation(store)
    changes = ChangedOperations(store)
    await changes.poll()

    await change(store, late, ago=ago)
    await change(store, other)
    found = await poll(changes) + await poll(changes)
    now = monotonic()
    monkeypatch.setattr("hookline.server._feed.monotonic", lambda: now + LONG_EVERY)
    found += await poll(changes) + await poll(changes)

    assert sorted(found) == sorted([late, other])


async def test_a_change_is_found_after_the_clock_was_set_back(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = await operation(store), await operation(store)
    changes = ChangedOperations(store)
    await changes.poll()
    now = await store.now()

    await change(store, before)

    async def an_hour_ago(connection: object) -> float:
        return now - 3600

    monkeypatch.setattr("hookline.server._feed.read_clock", an_hour_ago)
    found = await poll(changes)
    await change(store, after, ago=3601)
    found += await poll(changes)

    assert found == [before, after]
    assert await poll(changes) == []
