"""Operations are found by any filter, in any order, page after page, whatever each page looks at."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from itertools import product
from typing import Any

import msgspec
import pytest
from sqlalchemy import insert, select

from hookline import BeforeToolCall, HookType
from hookline.errors import HookUsageError
from hookline.events import encode
from hookline.runtime import JournalEntry
from hookline.store import (
    LIVE,
    OperationFilter,
    OperationSort,
    SqlStore,
    downgrade_store,
    operations,
    summarize_operations,
)
from hookline.store import _operation_search as searching
from hookline.store import _operation_totals as summing
from hookline.store._tables import operation_tags
from tests.tables import for_each

from .records import insert_operations, operation_rows, state

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


KEYS: dict[OperationSort, str] = {
    "newest": "created_at",
    "changed": "updated_at",
    "longest": "duration_ms",
    "costliest": "cost_usd",
    "tokens": "total_tokens",
    "steps": "steps",
}
FILTERS: list[dict[str, Any]] = [
    {},
    {"tenant_id": "acme"},
    {"status": "error"},
    {"status": "running"},
    {"agent_id": "a1", "tenant_id": "acme"},
    {"user_id": "u2"},
    {"search": "REFUND"},
    {"search": "op-1"},
    {"since": 20.0, "until": 70.0},
    {"search": "50%_", "status": "done", "since": 5.0},
    {"search": "nothing\0"},
]


def matches(row: dict[str, Any], wanted: dict[str, Any]) -> bool:
    words = wanted.get("search", "").lower()
    named = all(row[name] == wanted[name] for name in ("status", "agent_id", "user_id") if name in wanted)
    return named and (row["operation_id"].startswith(words) or words in row["prompt"].lower())


def expected(
    rows: list[dict[str, Any]], wanted: dict[str, Any], sort: OperationSort, window: int, *, in_parts: bool = False
) -> list[str]:
    """What is found: in each part of the range that one page looks at, in order."""
    within = [
        row
        for row in rows
        if wanted.get("since", 0.0) <= row["created_at"] < wanted.get("until", 1e9)
        and wanted.get("tenant_id", row["tenant_id"]) == row["tenant_id"]
    ]
    within.sort(key=lambda row: (row["created_at"], row["operation_id"]), reverse=True)
    exact = [row for row in within if row["operation_id"] == wanted.get("search")]
    found = [row["operation_id"] for row in exact]
    length = len(rows) if sort == "newest" or (wanted.get("status") in LIVE and not in_parts) else window
    for first in range(0, len(within), max(length, 1)):
        those = [row for row in within[first : first + length] if matches(row, wanted) and row not in exact]
        those.sort(key=lambda row: (row[KEYS[sort]], row["operation_id"]), reverse=True)
        found += [row["operation_id"] for row in those]
    return found


async def test_pages_lead_through_all_that_matches(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "MOST_LOOKED_AT", 40)
    rows = operation_rows(100)
    await insert_operations(store, rows)

    for wanted, sort in product(FILTERS, KEYS):
        listed, cursor, pages = [], None, 0
        while pages < 100:
            page = await store.operations(**wanted, sort=sort, cursor=cursor, limit=23)
            listed += [each.operation_id for each in page.items]
            cursor, pages = page.cursor, pages + 1
            assert page.looked_at in (None, 40)
            if cursor is None:
                break

        assert listed == expected(rows, wanted, sort, 40), (wanted, sort)


TAGGED: list[dict[str, Any]] = [
    {"tag": "vip"},
    {"tag": "vip", "tenant_id": "acme"},
    {"tag": "vip", "since": 20.0, "until": 70.0},
    {"tag": "vip", "status": "error"},
    {"tag": "vip", "status": "running"},
    {"tag": "vip", "agent_id": "a1", "tenant_id": "globex"},
    {"tag": "vip", "search": "REFUND"},
    {"tag": "vip", "search": "op-1"},
    {"tag": "VIP"},
    {"tag": "nobody's"},
    {"tag": "vip\0"},
]


async def test_pages_lead_through_all_operations_with_a_tag(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "MOST_READ", 20)
    rows = operation_rows(100)
    await insert_operations(store, rows)
    tagged = rows[::2]
    async with store.writing() as connection:
        places = [{name: row[name] for name in ("operation_id", "tenant_id", "created_at")} for row in tagged]
        await connection.execute(insert(operation_tags), [{**place, "tag": "vip"} for place in places])
        await connection.execute(insert(operation_tags), [{**place, "tag": "other"} for place in places])

    for wanted, sort in product(TAGGED, KEYS):
        listed, cursor, pages = [], None, 0
        while pages < 100:
            page = await store.operations(**wanted, sort=sort, cursor=cursor, limit=23)
            listed += [each.operation_id for each in page.items]
            cursor, pages = page.cursor, pages + 1
            assert page.looked_at in (None, 20)
            if cursor is None:
                break

        within = tagged if wanted["tag"] == "vip" else []
        # Also those that run are in parts: the index of their status would yield those of all tags.
        assert listed == expected(within, wanted, sort, 20, in_parts=True), (wanted, sort)


async def test_the_operations_with_a_tag_are_those_of_its_own_index(database_url: str) -> None:
    """However many others there are, only those with the tag are read."""
    async with SqlStore(database_url) as store, store.reading() as connection:
        for tenant_id, index in ((None, "tag_created_at"), ("acme", "tag_tenant_id_created_at")):
            wanted = OperationFilter(tag="vip", tenant_id=tenant_id, since=5.0)
            place = wanted.place
            [query] = searching._select_matching(
                wanted,
                (place[1], place[0].label("key")),
                wanted.range_conditions(),
                wanted.row_conditions(connection.dialect.name),
                is_in_order=True,
                dialect=connection.dialect.name,
            )
            query = query.order_by(*(each.desc() for each in place)).limit(50)
            text_ = str(query.compile(connection.engine, compile_kwargs={"literal_binds": True}))
            if connection.dialect.name == "postgresql":
                await connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
                await connection.exec_driver_sql("SET LOCAL enable_bitmapscan = off")
            plan = await connection.exec_driver_sql(f"{EXPLAIN[connection.dialect.name]} {text_}")
            steps = "\n".join(str(row[-1]) for row in plan)

            assert f"ix_operation_tags_{index}_operation_id" in steps, steps
            assert "TEMP B-TREE" not in steps
            assert "Sort" not in steps, steps


EXPLAIN = {"sqlite": "EXPLAIN QUERY PLAN", "postgresql": "EXPLAIN"}


async def test_the_tags_of_a_state_are_in_its_summary_and_find_it(store: SqlStore) -> None:
    first = state("first", tags=["vip", "größe"], tenant_id="acme")
    await store.commit(first, expected_version=None, entries=())
    await store.commit(state("second", tags=["vip"]), expected_version=None, entries=())
    await store.commit(state("third"), expected_version=None, entries=())
    await store.commit(msgspec.structs.replace(first, version=2, status="done"), expected_version=1, entries=())

    async def found(tag: str, tenant_id: str | None = None) -> list[str]:
        return [each.operation_id for each in (await store.operations(tenant_id, tag=tag)).items]

    assert sorted(await found("vip")) == ["first", "second"]
    assert await found("größe") == ["first"]
    assert await found("vip", "acme") == ["first"]
    assert await found("vi") == []
    summary = await store.operation("first")
    assert summary is not None
    assert (summary.tags, summary.version) == (["vip", "größe"], 2)
    assert (await store.load("first")).tags == ["vip", "größe"]  # type: ignore[union-attr]
    assert [each.tags for each in (await store.operations(search="third")).items] == [[]]


async def test_a_tag_that_cannot_be_stored_is_refused(store: SqlStore) -> None:
    for tag in ("a\0b", "x" * 101, "\ud800"):
        with pytest.raises(HookUsageError, match="cannot be stored"):
            await store.commit(state(tags=[tag]), expected_version=None, entries=())


async def test_pruning_deletes_the_tags_of_operations(store: SqlStore) -> None:
    await store.commit(state("old", tags=["vip"], status="done"), expected_version=None, entries=())
    await store.commit(state("live", tags=["vip"]), expected_version=None, entries=())

    await store.prune(older_than=-1)

    async with store.reading() as connection:
        assert list((await connection.execute(select(operation_tags.c.operation_id))).scalars()) == ["live"]


async def test_an_id_is_found_however_old_it_is(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "MOST_LOOKED_AT", 5)
    rows = operation_rows(30)
    oldest = min(rows, key=lambda row: (row["created_at"], row["operation_id"]))
    await insert_operations(store, rows)

    page = await store.operations(search=oldest["operation_id"])
    elsewhere = await store.operations("nobody", search=oldest["operation_id"])

    assert page.items[0].operation_id == oldest["operation_id"]
    assert elsewhere.items == []


async def test_operations_are_found_by_the_tools_that_they_called(store: SqlStore) -> None:
    async def run(operation_id: str, toolset: str, name: str, **args: Any) -> None:
        call = BeforeToolCall(
            operation_id=operation_id,
            toolset=toolset,
            tool_name=name,
            args=args,
            call_index=1,
            step_index=0,
            tool_call_id="c",
        )
        entry = JournalEntry(number=1, type=HookType.BEFORE_TOOL_CALL, time_unix_nano=1, wire=encode(call))
        await store.commit(state(operation_id, events=1), expected_version=None, entries=[entry])

    await run("pays", "bank", "pay")
    await run("quotes", "bank", 'say "pay"')
    await run("mentions", "bank", "tell", note='"apiName":"pay","args":', apiName="pay")

    async def found(tool: str) -> list[str]:
        return [each.operation_id for each in (await store.operations(tool=tool)).items]

    assert await found("pay") == ["pays"]
    assert await found("bank/pay") == ["pays"]
    assert await found("shop/pay") == []
    assert await found('say "pay"') == ["quotes"]


@for_each("wanted", [{"sort": "cheapest"}, {"search": "x" * 201}, {"sort": "steps", "cursor": "x"}])
async def test_a_search_that_makes_no_sense_is_refused(store: SqlStore, wanted: dict[str, Any]) -> None:
    with pytest.raises(HookUsageError):
        await store.operations(**wanted)


async def test_a_cursor_of_another_order_is_refused(store: SqlStore) -> None:
    await insert_operations(store, operation_rows(5))
    page = await store.operations(sort="steps", limit=2)

    for sort in ("costliest", "newest"):
        with pytest.raises(HookUsageError, match="cursor"):
            await store.operations(sort=sort, cursor=page.cursor)  # type: ignore[arg-type]


@pytest.fixture
async def inserted(store: SqlStore) -> list[dict[str, Any]]:
    rows = operation_rows(200)
    await insert_operations(store, rows)
    return rows


@for_each("tenant_id, most", product([None, "acme"], [10_000, 1]))
async def test_totals_are_those_of_the_operations_of_the_range(
    store: SqlStore,
    inserted: list[dict[str, Any]],
    tenant_id: str | None,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(summing, "MOST_DURATIONS", most)
    wanted = OperationFilter(tenant_id=tenant_id)

    async with store.reading() as connection:
        summary = await summarize_operations(connection, wanted, since=60.0, until=100.0, spans=4, now=100.0)

    own = [row for row in inserted if tenant_id in (None, row["tenant_id"])]
    within = [row for row in own if 60.0 <= row["created_at"] < 100.0]
    ended = sorted(row["duration_ms"] for row in within if row["status"] not in LIVE)
    total = summary.total
    assert (total.count, total.live) == (len(within), len(within) - len(ended))
    assert (total.errors, total.done) == tuple(
        sum(row["status"] == status for row in within) for status in ("error", "done")
    )
    assert total.total_tokens == sum(row["total_tokens"] for row in within)
    assert total.cost_usd == pytest.approx(sum(row["cost_usd"] for row in within))
    assert (summary.sampled is None) == (most > 1)
    if most > 1:
        assert total.p50_ms == ended[(len(ended) + 1) // 2 - 1]
    assert [each.start for each in summary.by_time] == [60.0, 70.0, 80.0, 90.0]
    for groups in (summary.by_time, summary.by_agent, summary.by_tenant):
        assert sum(each.count for each in groups) == total.count
    assert summary.before.count == sum(20.0 <= row["created_at"] < 60.0 for row in own)
    costs = [each.cost_usd for each in summary.by_agent]
    assert costs == sorted(costs, reverse=True)


async def test_sorting_reads_an_index_alone(new_database_url: Callable[[str], str]) -> None:
    """SQLite would read each row otherwise, with its state."""
    async with SqlStore(new_database_url("sqlite")) as store:
        await insert_operations(store, operation_rows(50))
        for tenant_id in (None, "acme"):
            columns = (operations.c.operation_id, operations.c.cost_usd)
            conditions = OperationFilter(tenant_id=tenant_id, since=5.0).range_conditions()
            ended, _ = searching.select_branches(
                columns, conditions, status=None, tenant_id=tenant_id, dialect="sqlite"
            )
            async with store.reading() as connection:
                text = str(ended.compile(connection.sync_connection, compile_kwargs={"literal_binds": True}))
                [plan] = (await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}")).all()
            assert "USING COVERING INDEX ix_operations_ended" in plan.detail


async def test_the_indexes_can_be_dropped_and_made_again(database_url: str) -> None:
    async with SqlStore(database_url) as store:
        await insert_operations(store, operation_rows(5))

    await downgrade_store(database_url, "0007_partitions")

    async with SqlStore(database_url) as store:
        page = await store.operations(sort="steps")
        assert len(page.items) == 5
