"""The proof by count: what is in the store, what took effect, and what the receivers took must be the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import func, select

from benchmarks.soak import trips
from benchmarks.soak.moody import Journal
from hookline.events import decode
from hookline.runtime import OperationState
from hookline.store import SqlStore, StoredOperation
from hookline.store._tables import attempts, deliveries
from hookline.webhooks import delivery_id

ENDS = ("onComplete", "onError")
PAIRS = (
    ("beforeStep", ("afterStep",)),
    ("beforeToolCall", ("afterToolCall", "onToolCallError")),
    ("beforeCallAgent", ("afterCallAgent", "onCallAgentError")),
)
PAGE = 1000


@dataclass(kw_only=True)
class Count:
    """What was counted.

    Attributes:
        figures: By what they count, in the order of the table.
        problems: What is wrong.
    """

    figures: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def check(self, fine: bool, problem: str) -> None:
        """Keep a problem, unless it is none."""
        if not fine:
            self.problems.append(problem)


async def count(store: SqlStore, issued: set[str], effects: Path, journal: Journal) -> Count:
    """Count everything.

    Args:
        store: Where all operations have ended.
        issued: The operations that were to be run.
        effects: What the tools wrote.
        journal: What the receivers took.
    """
    found = Count()
    stored = await all_operations(store)
    took = Counter(effects.read_text().splitlines()) if effects.exists() else Counter()
    roots = {each.operation_id for each in stored if each.parent_operation_id is None}
    found.figures["operations"] = len(roots)
    found.figures["sub-agents"] = len(stored) - len(roots)
    for lost in sorted(issued - roots):
        found.problems.append(f"{lost} was to be run, and is not stored")
    for name in sorted(roots - issued):
        found.problems.append(f"{name} is stored, and nobody started it")
    expected: dict[str, tuple[str, str]] = {}
    done: set[str] = set()
    for operation in stored:
        done |= await count_operation(store, operation, took, expected, found)
    count_effects(took, done, found)
    await count_deliveries(store, expected, journal, found)
    return found


async def all_operations(store: SqlStore) -> list[StoredOperation]:
    stored: list[StoredOperation] = []
    cursor = None
    while True:
        page = await store.operations(cursor=cursor, limit=PAGE)
        stored += page.items
        if (cursor := page.cursor) is None:
            return stored


async def count_operation(
    store: SqlStore,
    operation: StoredOperation,
    took: Counter[str],
    expected: dict[str, tuple[str, str]],
    found: Count,
) -> set[str]:
    """Check the events of one operation, and note which deliveries it causes.

    Returns:
        What its tools have brought about, as its events tell.
    """
    name, trip = operation.operation_id, operation.parent_operation_id or operation.operation_id
    entries = await store.events_of(name, limit=PAGE)
    state = await store.load(name)
    assert state is not None
    found.figures["events"] += len(entries)
    found.figures[f"ended with {operation.status}"] += 1
    found.check(operation.status in ("done", "error", "interrupted"), f"{name} is {operation.status}")
    numbers = [entry.number for entry in entries]
    found.check(numbers == list(range(1, operation.events + 1)), f"{name} has the events {numbers}")
    events = [msgspec.json.decode(entry.wire) for entry in entries]
    for problem in unpaired(events):
        found.problems.append(f"{name}: {problem}")
    for entry in entries:
        event = decode(entry.wire)
        for nth, hook in enumerate(state.hooks):
            if hook.wants(event):
                expected[delivery_id(name, entry.number, hook.id, nth)] = (name, hook.webhook.url)
    return told_of(events, state, trip, took, found)


def unpaired(events: list[dict[str, Any]]) -> list[str]:
    """What is wrong with the events of an operation: pairs, steps one after another, an end."""
    kinds = Counter(event["type"] for event in events)
    problems = [
        f"{kinds[before]} {before}, but {[kinds[each] for each in after]} {after}"
        for before, after in PAIRS
        if kinds[before] != sum(kinds[each] for each in after)
    ]
    steps = [event["stepIndex"] for event in events if event["type"] == "beforeStep"]
    if steps != list(range(len(steps))):
        problems.append(f"its steps are {steps}")
    calls = Counter(event["toolCallId"] for event in events if event["type"] == "beforeToolCall")
    problems += [f"{times} times beforeToolCall of {call}" for call, times in calls.items() if times > 1]
    if not events or events[-1]["type"] not in ENDS:
        problems.append(f"its last event is {events[-1]['type'] if events else 'none'}")
    return problems


def told_of(
    events: list[dict[str, Any]], state: OperationState, trip: str, took: Counter[str], found: Count
) -> set[str]:
    """What the tools of an operation have done, by its events; tools that were running when their process died."""
    done: set[str] = set()
    for event in events:
        if event["type"] == "afterToolCall":
            done.add(f"{trip} {trips.EFFECTS[event['toolCallId']]}")
            found.figures["tools that ran"] += 1
        elif event["type"] in ("onToolCallError", "onCallAgentError"):
            found.figures[f"{event['type']}: {event.get('errorType')}"] += 1
            if event["type"] == "onToolCallError" and event.get("errorType") == "ProcessDied":
                found.figures["of which had taken effect"] += took[f"{trip} {trips.EFFECTS[event['toolCallId']]}"]
        elif event["type"] == "onError":
            found.figures[f"onError: {event.get('errorType')}"] += 1
    return done


def count_effects(took: Counter[str], done: set[str], found: Count) -> None:
    """No tool has run twice, and what was told to have run has."""
    found.figures["tool effects"] = sum(took.values())
    twice = [what for what, times in took.items() if times > 1]
    found.figures["tools run twice"] = len(twice)
    found.problems += [f"{what!r} took effect {took[what]} times" for what in twice]
    found.problems += [f"{what!r} is told to have run, and took no effect" for what in sorted(done - took.keys())]
    paid = {line.split()[0] for line in took if line.endswith(" pay")}
    found.problems += [f"{trip} was paid, though a person had refused" for trip in sorted(paid) if trips.refused(trip)]


async def count_deliveries(
    store: SqlStore, expected: dict[str, tuple[str, str]], journal: Journal, found: Count
) -> None:
    """Each event has made its deliveries, each of them is delivered, in order, signed, and under one id."""
    kept: dict[str, tuple[str, bytes]] = {}
    async with store.reading() as connection:
        rows = await connection.execute(select(deliveries.c.id, deliveries.c.status, deliveries.c.payload))
        for name, status, payload in rows:
            found.check(name not in kept, f"delivery {name} is stored twice")
            kept[name] = (status, sha256(payload).digest())
        found.figures["attempts"] = (await connection.execute(select(func.count()).select_from(attempts))).scalar_one()
    found.figures["deliveries"] = len(kept)
    found.problems += [f"delivery {name} of {expected[name]} is not stored" for name in expected.keys() - kept.keys()]
    found.problems += [f"delivery {name} belongs to no event" for name in kept.keys() - expected.keys()]
    found.problems += [f"id {name} came, and is no delivery" for name in journal.taken.keys() - kept.keys()]
    for name, (status, digest) in kept.items():
        taken = journal.taken.get(name)
        found.figures[status] += 1
        found.check(status == "delivered", f"delivery {name} is {status}")
        if taken is None or not taken.answers:
            found.problems.append(f"delivery {name} is {status}, and nobody took it")
            continue
        found.check(taken.digests == {digest}, f"delivery {name} came with another body")
        found.figures["requests"] += taken.requests
        found.figures["came again after it was taken"] += taken.answers - 1
    numbered = {name: place for place, name in enumerate(expected)}
    for (operation_id, url), ids in journal.order.items():
        places = [numbered.get(name, -1) for name in ids]
        found.check(places == sorted(places), f"what {operation_id} has for {url} came in another order")
    found.figures["unsigned"] = journal.unsigned
    found.check(journal.unsigned == 0, f"{journal.unsigned} requests were unsigned")
