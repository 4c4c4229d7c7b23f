"""A state, its events and its deliveries are written together, on the version that was read, or not at all."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, update

from hookline import Agent, HookType, ScriptedModel, Usage, exec_agent
from hookline.errors import HookUsageError, StaleStateError, StateFormatError
from hookline.events import BeforeToolCall, encode
from hookline.runtime import JournalEntry
from hookline.runtime._state import FORMAT
from hookline.store import DELIVERIES, SqlStore
from hookline.store._tables import deliveries, operations
from hookline.wakeups import PollingWakeups
from hookline.webhooks import Webhook, delivery_id
from tests.tables import for_each

from .records import entries, grow, hook, state

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


async def rows(store: SqlStore, table: Any) -> list[dict[str, Any]]:
    async with store.reading() as connection:
        found = await connection.execute(select(table).order_by(*table.primary_key.columns))
        return [dict(row._mapping) for row in found]


async def test_a_run_on_a_store_that_nobody_opened_is_refused_before_it_begins(database_url: str) -> None:
    agent = Agent(id="agent", model=ScriptedModel([]))
    with pytest.raises(HookUsageError, match="not open"):
        await exec_agent(agent, "go", store=SqlStore(database_url))


async def test_a_state_is_read_as_it_was_written(store: SqlStore) -> None:
    written = state(hooks=[hook()], last_content="Grüße \0 \N{PILE OF POO}", conversation_id="c", events=2)

    await store.commit(written, expected_version=None, entries=entries("op", 1, 2))

    assert await store.load("op") == written
    assert await store.load("another") is None


async def test_a_state_of_several_megabytes_is_kept(store: SqlStore) -> None:
    written = state(last_content="x" * 20_000_000)

    await store.save(written, expected_version=None)

    assert await store.load("op") == written


async def test_a_state_follows_on_the_version_that_was_read(store: SqlStore) -> None:
    await store.commit(state(events=1), expected_version=None, entries=entries("op", 1, 1))

    for expected in (None, 7):
        with pytest.raises(StaleStateError) as caught:
            await store.commit(state(version=8, events=2), expected_version=expected, entries=entries("op", 2, 2))
        assert (caught.value.expected, caught.value.found) == (expected, 1)
    with pytest.raises(StaleStateError) as caught:
        await store.commit(state("new", 4), expected_version=3, entries=())
    assert caught.value.found is None

    assert await store.load("op") == state(events=1)
    assert await store.load("new") is None
    assert await store.events_of("op") == entries("op", 1, 1)


async def test_the_id_of_an_operation_that_has_ended_stays_taken(store: SqlStore) -> None:
    await store.save(state(status="done"), expected_version=None)

    with pytest.raises(StaleStateError):
        await store.save(state(), expected_version=None)

    assert await store.load("op") == state(status="done")


async def test_a_version_that_does_not_grow_is_refused(store: SqlStore) -> None:
    await store.save(state(), expected_version=None)

    with pytest.raises(HookUsageError, match="does not follow"):
        await store.save(state(version=1), expected_version=1)


async def test_a_state_of_a_newer_layout_is_neither_read_nor_replaced(store: SqlStore) -> None:
    await store.save(state(parent_operation_id="parent"), expected_version=None)
    async with store.writing() as connection:
        newer = {"format": FORMAT + 1, "state": b'{"what": "this version cannot know"}'}
        await connection.execute(update(operations).values(newer))
    before = await rows(store, operations)

    with pytest.raises(StateFormatError) as caught:
        await store.load("op")
    with pytest.raises(StateFormatError):
        await store.children("parent")
    with pytest.raises(StateFormatError):
        await store.save(state(version=2), expected_version=1)

    assert (caught.value.operation_id, caught.value.found, caught.value.known) == ("op", FORMAT + 1, FORMAT)
    assert await rows(store, operations) == before


async def test_an_older_layout_is_read(store: SqlStore) -> None:
    await store.save(state(), expected_version=None)
    async with store.writing() as connection:
        older = {"format": 1, "state": b'{"operationId": "op", "agentId": "agent", "version": 1, "format": 1}'}
        await connection.execute(update(operations).values(older))

    loaded = await store.load("op")

    assert loaded is not None
    assert (loaded.operation_id, loaded.events, loaded.format) == ("op", 0, 1)


@for_each("first, last, counted", [(1, 2, 3), (2, 2, 3), (0, 0, 0), (3, 3, 3), (1, 1, 1)])
async def test_numbers_of_events_neither_repeat_nor_leave_gaps(
    store: SqlStore, first: int, last: int, counted: int
) -> None:
    name = f"{first}-{last}-{counted}"
    await store.commit(state(name, events=1), expected_version=None, entries=entries(name, 1, 1))

    with pytest.raises(HookUsageError, match="Nothing was written"):
        await store.commit(state(name, 2, events=counted), expected_version=1, entries=entries(name, first, last))

    assert await store.load(name) == state(name, events=1)
    assert await store.events_of(name) == entries(name, 1, 1)


async def test_events_are_read_in_portions(store: SqlStore) -> None:
    await grow(store, "op", commits=4, each=5)
    await grow(store, "other", commits=1, each=1)

    assert [entry.number for entry in await store.events_of("op")] == list(range(1, 21))
    assert await store.events_of("op", after=3, limit=2) == entries("op", 4, 5)
    assert await store.events_of("op", after=20) == []


async def test_a_delivery_is_made_for_each_event_and_each_hook_that_wants_it(store: SqlStore) -> None:
    hooks = [
        hook("all"),
        hook("body", "http://127.0.0.1:1/x", webhook=Webhook(url="local://there", body={"mine": 1})),
        hook("other", type=HookType.AFTER_STEP),
        hook("all"),
    ]
    now = await store.now()

    await store.commit(state(events=2, hooks=hooks, tenant_id="t"), expected_version=None, entries=entries("op", 1, 2))

    found = await rows(store, deliveries)
    assert [(row["number"], row["hook_id"]) for row in found] == [
        (number, name) for number in (1, 2) for name in ("all", "body", "all")
    ]
    assert [row["id"] for row in found[:3]] == [
        delivery_id("op", 1, "all", 0),
        delivery_id("op", 1, "body", 1),
        delivery_id("op", 1, "all", 3),
    ]
    first = found[1]
    payload = msgspec.json.decode(first["payload"])
    assert (payload["mine"], payload["hookId"], payload["type"], payload["stepIndex"]) == (1, "body", "beforeStep", 1)
    assert msgspec.json.decode(first["hook"], type=type(hooks[1])) == hooks[1]
    assert first["endpoint"] == "local://there"
    assert (first["tenant_id"], first["operation_id"], first["attempts"]) == ("t", "op", 0)
    assert first["next_attempt_at"] == pytest.approx(now, abs=60)
    assert len({row["stream"] for row in found}) == 2


async def test_a_control_gets_no_deliveries_and_a_filter_is_heeded(store: SqlStore) -> None:
    hooks = [
        hook("control", type=HookType.BEFORE_TOOL_CALL, webhook=Webhook(url="https://a.org", control=True)),
        hook("mail", type=HookType.BEFORE_TOOL_CALL, tool="*/mail"),
        hook("any", type=HookType.BEFORE_TOOL_CALL),
    ]
    told = [
        JournalEntry(
            number=number,
            type=HookType.BEFORE_TOOL_CALL,
            time_unix_nano=1,
            wire=encode(
                BeforeToolCall(
                    operation_id="op",
                    toolset="box",
                    tool_name=name,
                    args={},
                    call_index=0,
                    step_index=1,
                    tool_call_id=name,
                )
            ),
        )
        for number, name in ((1, "mail"), (2, "read"))
    ]

    await store.commit(state(events=2, hooks=hooks), expected_version=None, entries=told)

    found = [(row["number"], row["hook_id"]) for row in await rows(store, deliveries)]
    assert found == [(1, "mail"), (1, "any"), (2, "any")]


async def test_what_is_refused_makes_no_deliveries(store: SqlStore) -> None:
    await store.save(state(), expected_version=None)

    with pytest.raises(StaleStateError):
        await store.commit(state(events=1, hooks=[hook()]), expected_version=None, entries=entries("op", 1, 1))

    assert await rows(store, deliveries) == []


async def test_who_listens_is_told_of_deliveries(database_url: str) -> None:
    heard: list[str] = []

    # Those of PostgreSQL may call without a reason, when they have connected.
    async with SqlStore(database_url, wakeups=PollingWakeups(600)) as store:
        async with store.wakeups.woken(DELIVERIES, lambda: heard.append("made")):
            await store.commit(state(events=1), expected_version=None, entries=entries("op", 1, 1))
            assert heard == []
            await store.commit(state("b", events=1, hooks=[hook()]), expected_version=None, entries=entries("b", 1, 1))
            assert heard == ["made"]
        await store.commit(state("c", events=1, hooks=[hook()]), expected_version=None, entries=entries("c", 1, 1))
        assert heard == ["made"]


@for_each(
    "fields",
    [
        {"user_id": "a\0b"},
        {"tenant_id": "\ud800"},
        {"parent_operation_id": "x" * 401},
        {"conversation_id": "\ud800"},
        {"steps": 2**63},
        {"tool_calls": 2**31},
        {"steering": object()},
        {"events": 1, "hooks": [hook("h", "https://example.org/" + "x" * 2048)]},
    ],
    ids=lambda fields: "-".join(fields),
)
async def test_what_no_database_takes_is_refused_alone_and_with_a_reason(
    store: SqlStore, fields: dict[str, Any]
) -> None:
    bad, good = (f"{name} {'-'.join(fields)}" for name in ("bad", "good"))
    told = entries(bad, 1, fields.get("events", 0))

    outcomes = await asyncio.gather(
        store.commit(state(bad, **fields), expected_version=None, entries=told),
        store.commit(state(good, events=1), expected_version=None, entries=entries(good, 1, 1)),
        return_exceptions=True,
    )

    assert outcomes[1] is None
    assert await store.load(good) == state(good, events=1)
    if outcomes[0] is not None:
        assert isinstance(outcomes[0], HookUsageError)
        assert "cannot be stored" in str(outcomes[0])
        assert await store.load(bad) is None


@for_each("cost", [math.nan, math.inf])
async def test_a_cost_that_json_cannot_carry_is_refused_rather_than_never_read_again(
    store: SqlStore, cost: float
) -> None:
    with pytest.raises(HookUsageError, match=r"'op' cannot be stored: .*cost (nan|inf)"):
        await store.commit(state(usage=Usage(cost_usd=cost)), expected_version=None, entries=[])

    assert await store.load("op") is None


async def test_children_are_those_that_have_not_ended(store: SqlStore) -> None:
    for name, status in (("a", "running"), ("b", "waiting_for_human"), ("c", "done")):
        await store.save(state(name, parent_operation_id="op", status=status), expected_version=None)
    await store.save(state("d", parent_operation_id="other"), expected_version=None)

    assert [child.operation_id for child in await store.children("op")] == ["a", "b"]


async def test_operations_are_listed_in_pages_the_newest_first(store: SqlStore) -> None:
    for number in range(7):
        await store.save(state(f"op{number}", tenant_id="t" if number % 2 else "u"), expected_version=None)
    await asyncio.gather(*(store.save(state(f"same{n}", status="done"), expected_version=None) for n in range(5)))

    listed: list[str] = []
    cursor = None
    while True:
        page = await store.operations(cursor=cursor, limit=5)
        listed += [operation.operation_id for operation in page.items]
        cursor = page.cursor
        if cursor is None:
            break

    assert sorted(listed[:5]) == [f"same{n}" for n in range(5)]
    assert listed[5:] == [f"op{n}" for n in reversed(range(7))]
    assert [found.operation_id for found in (await store.operations("t")).items] == ["op5", "op3", "op1"]
    assert len((await store.operations(status="done")).items) == 5
    assert (await store.operations("nobody")).items == []


@for_each("cursor", ["", "x", "äöü", "W10=", "WzEsIDFd", "bnVsbA==", "WzEsIlx1MDAwMCJd"])
async def test_a_cursor_that_was_not_given_is_refused(store: SqlStore, cursor: str) -> None:
    with pytest.raises(HookUsageError, match="`cursor`"):
        await store.operations(cursor=cursor)


@for_each("limit", [0, -1, 1001, True, 1.5, None])
async def test_a_limit_that_makes_no_sense_is_refused(store: SqlStore, limit: Any) -> None:
    for listing in (store.operations(limit=limit), store.orphans(limit)):
        with pytest.raises(HookUsageError, match="`limit`"):
            await listing


async def test_what_is_known_of_an_operation_is_listed_with_its_counts(store: SqlStore) -> None:
    await store.commit(
        state(events=1, steps=2, llm_calls=3, tool_calls=4, user_id="u"),
        expected_version=None,
        entries=entries("op", 1, 1),
    )

    found = await store.operation("op")

    assert found is not None
    assert (found.steps, found.llm_calls, found.tool_calls, found.events) == (2, 3, 4, 1)
    assert (found.user_id, found.status, found.owner, found.version) == ("u", "running", store.worker_id, 1)
    assert found.created_at == pytest.approx(await store.now(), abs=60)
    assert await store.operation("another") is None


async def test_a_later_commit_keeps_when_an_operation_was_made_and_that_a_delivery_failed(store: SqlStore) -> None:
    await store.save(state(), expected_version=None)
    async with store.writing() as connection:
        await connection.execute(update(operations).values(failed_delivery="lost", created_at=5.0, updated_at=5.0))

    await store.save(state(version=2, status="done"), expected_version=1)

    found = await store.operation("op")
    assert found is not None
    assert (found.failed_delivery, found.created_at, found.owner) == ("lost", 5.0, None)
    assert found.updated_at > 5.0


async def test_a_reading_transaction_cannot_write(store: SqlStore) -> None:
    with pytest.raises(Exception, match=r"read-?only"):
        async with store.reading() as connection:
            await connection.execute(update(operations).values(status="done"))


async def test_a_writing_transaction_that_fails_or_is_cancelled_leaves_nothing_and_holds_nothing(
    store: SqlStore,
) -> None:
    await store.save(state(), expected_version=None)
    begun = asyncio.Event()

    async def stuck() -> None:
        async with store.writing() as connection:
            await connection.execute(update(operations).values(status="done"))
            begun.set()
            await asyncio.Event().wait()

    with pytest.raises(ZeroDivisionError):
        async with store.writing() as connection:
            await connection.execute(update(operations).values(status="done"))
            raise ZeroDivisionError
    task = asyncio.create_task(stuck())
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])

    await store.save(state(version=2), expected_version=1)
    assert await store.load("op") == state(version=2)


class Model:
    """What a store should hold."""

    def __init__(self) -> None:
        self.versions: dict[str, int] = {}
        self.events: dict[str, int] = {}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rounds=st.lists(
        st.lists(
            st.tuples(
                st.sampled_from("abc"),
                st.one_of(st.none(), st.integers(1, 4)),
                st.integers(0, 3),
            ),
            max_size=6,
        ),
        max_size=5,
    )
)
async def test_of_any_commits_at_once_those_win_that_follow_and_the_rest_leave_no_trace(
    rounds: list[list[tuple[str, int | None, int]]], store: SqlStore
) -> None:
    held = Model()
    run = uuid4().hex
    for batch in rounds:
        await commit_at_once(store, held, [(f"{run}-{name}", expected, count) for name, expected, count in batch])

    for name in (f"{run}-{letter}" for letter in "abc"):
        found = await store.load(name)
        assert (found.version if found else None) == held.versions.get(name)
        assert len(await store.events_of(name, limit=10_000)) == held.events.get(name, 0)
    async with store.reading() as connection:
        mine = deliveries.c.operation_id.startswith(run)
        made = (await connection.execute(select(func.count()).select_from(deliveries).where(mine))).scalar_one()
    assert made == sum(held.events.values())


async def commit_at_once(store: SqlStore, held: Model, batch: list[tuple[str, int | None, int]]) -> None:
    before = dict(held.events)
    outcomes = await asyncio.gather(
        *(
            store.commit(
                state(name, (expected or 0) + 1, events=before.get(name, 0) + count, hooks=[hook()]),
                expected_version=expected,
                entries=entries(name, before.get(name, 0) + 1, before.get(name, 0) + count),
            )
            for name, expected, count in batch
        ),
        return_exceptions=True,
    )
    for (name, expected, count), outcome in zip(batch, outcomes, strict=True):
        follows = held.versions.get(name) == expected and before.get(name, 0) == held.events.get(name, 0)
        assert (outcome is None) == follows, outcome
        if follows:
            held.versions[name] = (expected or 0) + 1
            held.events[name] = before.get(name, 0) + count
        else:
            assert isinstance(outcome, StaleStateError | HookUsageError)


async def test_another_event_loop_is_refused_rather_than_left_waiting(database_url: str) -> None:
    async with SqlStore(database_url) as store:
        with pytest.raises(HookUsageError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, store.load("op"))
        with pytest.raises(HookUsageError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, store.commit(state(), expected_version=None, entries=()))
        assert await store.load("op") is None
