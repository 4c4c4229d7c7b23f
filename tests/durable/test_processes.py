"""Operations outlive their processes: real processes, real databases, killed with no chance to say goodbye."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest

from hookline import Approve
from hookline.errors import HooklineError
from hookline.store import SqlStore
from tests.delivery.receivers import Receiver
from tests.durable.process import KEY
from tests.programs import Program, run_program

pytestmark = pytest.mark.anyio

OVER = ("done", "error", "interrupted")


def process(
    mode: str, url: str, tools: Path, ids: list[str], receiver: str | None = None
) -> AbstractAsyncContextManager[Program]:
    """A worker process, which can be killed at any moment."""
    environment = {**os.environ, **({} if receiver is None else {"RECEIVER": receiver})}
    return run_program("tests.durable.process", mode, url, tools, *ids, environment=environment)


async def says(program: Program, text: str) -> None:
    while text not in (line := await program.read_line()):
        assert line, f"it ended before it said {text!r}"


async def until(store: SqlStore, condition: Callable[[dict[str, str]], bool], *, within: float) -> dict[str, str]:
    """The statuses of the operations, once they are as they should be."""
    ends = monotonic() + within
    while True:
        statuses = await statuses_of(store)
        if condition(statuses):
            return statuses
        assert monotonic() < ends, Counter(statuses.values())
        await asyncio.sleep(0.2)


async def statuses_of(store: SqlStore) -> dict[str, str]:
    found: dict[str, str] = {}
    cursor = None
    while True:
        page = await store.operations(cursor=cursor, limit=1000)
        found |= {each.operation_id: each.status for each in page.items}
        if (cursor := page.cursor) is None:
            return found


async def events_of(store: SqlStore, operation_id: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(entry.wire) for entry in await store.events_of(operation_id)]


def check_events(events: list[dict[str, Any]]) -> None:
    """Each has its partner, once; steps do not overlap; the operation has an end."""
    kinds = Counter(event["type"] for event in events)
    assert kinds["beforeStep"] == kinds["afterStep"]
    assert kinds["beforeToolCall"] == kinds["afterToolCall"] + kinds["onToolCallError"]
    assert kinds["beforeCallAgent"] == kinds["afterCallAgent"] + kinds["onCallAgentError"]
    steps = [event["stepIndex"] for event in events if event["type"] == "beforeStep"]
    assert steps == list(range(len(steps)))
    calls = Counter(event["toolCallId"] for event in events if event["type"] == "beforeToolCall")
    assert set(calls.values()) <= {1}
    assert events[-1]["type"] in ("onComplete", "onError")


async def test_a_run_paused_in_a_process_that_is_killed_is_approved_and_goes_on_in_another(
    postgresql_url: str, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    async with (
        Receiver([KEY]) as receiver,
        SqlStore(postgresql_url) as store,
    ):
        async with process("start-quick", postgresql_url, tools, ["trip"], receiver.url) as first:
            await says(first, "waiting_for_human")
            await receiver.received(1, within=30)
            await until_delivered(
                store, within=30
            )  # else it comes again, once the claim of the killed process has ended
            await first.stop()
        await store.decide("trip", Approve("p1"), by="ann")
        async with process("work", postgresql_url, tools, []):
            await until(store, lambda found: found.get("trip") == "done", within=30)
            await receiver.received(2, within=30)
        state = await store.load("trip")
        assert state is not None
        assert state.last_content == "all done"
        assert sorted(tools.read_text().split("\n")[:-1]) == ["trip ferry", "trip hotel", "trip pay 7", "trip train"]
        events = await events_of(store, "trip")
        check_events(events)
        assert [event["reason"] for event in events if event["type"] == "onComplete"] == ["waiting_for_human", "done"]
        assert len(state.traceparents) == 2
        assert state.traceparents[0].split("-")[1] != state.traceparents[1].split("-")[1]
        reasons = {request.id: request.payload["reason"] for request in receiver.requests}
        assert list(reasons.values()) == ["waiting_for_human", "done"]
        assert {payload["hookId"] for payload in receiver.payloads} == {"end"}
        assert receiver.unsigned == []
        children = [each for each in (await store.operations()).items if each.parent_operation_id == "trip"]
        assert [child.status for child in children] == ["done"]


@pytest.mark.parametrize(("operations", "kills"), [(16, 2), pytest.param(200, 10, marks=pytest.mark.soak)])
async def test_operations_survive_processes_that_are_killed_at_random(
    postgresql_url: str, tmp_path: Path, operations: int, kills: int
) -> None:
    tools = tmp_path / "tools"
    ids = [f"trip{n}" for n in range(operations)]
    dice = random.Random(7)
    async with Receiver([KEY]) as receiver, SqlStore(postgresql_url) as store:

        async def approve() -> None:
            while True:
                for each in (await store.operations(status="waiting_for_human", limit=1000)).items:
                    try:
                        await store.decide(each.operation_id, Approve("p1"))
                    except HooklineError:
                        continue  # it is decided already, or has gone on
                await asyncio.sleep(0.2)

        async def live() -> None:
            for _ in range(kills // 2):
                async with process("start", postgresql_url, tools, ids, receiver.url) as worker:
                    await says(worker, "working")
                    await asyncio.sleep(dice.uniform(0.05, 0.6))
            async with process("start", postgresql_url, tools, ids, receiver.url):
                await asyncio.Event().wait()

        lives = [asyncio.create_task(live()) for _ in range(2)]
        approving = asyncio.create_task(approve())
        try:
            await until(
                store,
                lambda found: (
                    all(found.get(name) in OVER for name in ids) and all(status in OVER for status in found.values())
                ),
                within=150,
            )
            counts = await deliveries_of(store)
            while counts["delivered"] < 2 * operations:
                await asyncio.sleep(0.2)
                counts = await deliveries_of(store)
        finally:
            for task in (*lives, approving):
                task.cancel()
            await asyncio.gather(*lives, approving, return_exceptions=True)
        effects = Counter(tools.read_text().split("\n")[:-1])
        assert set(effects.values()) == {1}, "a tool took effect twice"
        lost = 0
        for name, status in (await statuses_of(store)).items():
            assert status == "done"
            events = await events_of(store, name)
            check_events(events)
            lost += sum(event.get("errorType") == "ProcessDied" for event in events)
        assert sum(effects.values()) >= 4 * operations - lost
        assert counts == {"delivered": 2 * operations}
        numbers = Counter((payload["operationId"], payload["reason"]) for payload in receiver.payloads)
        assert len(numbers) == 2 * operations
        assert len(set(receiver.ids)) == 2 * operations, "a repeat came with another id"
        assert receiver.unsigned == []


async def until_delivered(store: SqlStore, *, within: float) -> None:
    """Wait until the store knows that all deliveries were received."""
    ends = monotonic() + within
    while set(found := await deliveries_of(store)) != {"delivered"}:
        assert monotonic() < ends, found
        await asyncio.sleep(0.05)


async def deliveries_of(store: SqlStore) -> Counter[str]:
    from sqlalchemy import func, select

    from hookline.store._tables import deliveries

    async with store.reading() as connection:
        rows = await connection.execute(select(deliveries.c.status, func.count()).group_by(deliveries.c.status))
        return Counter({str(row[0]): int(row[1]) for row in rows})
