"""The ledger of the cluster: what was lost, repeated, late and unanswered, counted from what was stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.cluster.orders import LIMIT, amounts_of, asks_person, policy
from benchmarks.cluster.worker import DEADLINE, LEASE_SECONDS
from hookline.registry import ExecutionLog
from hookline.store import SqlStore

__all__ = ["Ledger", "write_ledger"]

PAGE = 1000
DECISION_SPARE = 0.05
TAKEOVER_SECONDS = LEASE_SECONDS + 5.0
"""Within which an operation goes on after its process was killed."""
CUT = "ProcessDied"


@dataclass(kw_only=True)
class Ledger:
    """What was counted.

    Attributes:
        figures: How often what happened, in the order of the table.
        lost: What should be there and is not.
        repeated: What happened twice and must not.
        late: What took longer than it may.
        unanswered: Calls that nobody decided about in time, so that they were denied.
        wrong: Calls that were decided otherwise than the policy says, and events that were heard out of order.
    """

    figures: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is lost, repeated, late, unanswered or wrong."""
        return not (self.lost or self.repeated or self.late or self.unanswered or self.wrong)


async def write_ledger(store: SqlStore, placed: Sequence[str], effects: Path, heard: Path) -> Ledger:
    """Count what came of the orders.

    Args:
        store: The store of the operations, all of which should have ended.
        placed: The orders.
        effects: What the tools have written.
        heard: What the observers have written: ids of events.
    """
    ledger = Ledger()
    started = Counter(effects.read_text().splitlines()) if effects.exists() else Counter()
    ledger.figures["orders"] = len(placed)
    numbers = _read_heard(heard, ledger)
    for order in placed:
        await _count_order(store, order, started, ledger)
        await _count_heard(store, order, numbers.get(order, []), ledger)
    ledger.repeated += [f"call {what!r} started {times} times" for what, times in started.items() if times > 1]
    ledger.figures["tools started"] = sum(started.values())
    await _count_decisions(store, ledger)
    return ledger


async def _count_order(store: SqlStore, order: str, started: Counter[str], ledger: Ledger) -> None:
    stored, state = await store.operation(order), await store.load(order)
    if stored is None or state is None:
        ledger.lost.append(f"{order} is not stored")
        return
    if stored.status != "done":
        ledger.lost.append(f"{order} is {stored.status}")
    entries = await store.events_of(order, limit=PAGE)
    ledger.figures["events"] += len(entries)
    if [each.number for each in entries] != list(range(1, stored.events + 1)):
        ledger.lost.append(f"{order} has the events {[each.number for each in entries]}")
    _count_pauses(order, [each.time_unix_nano / 1e9 for each in entries], ledger)
    told = {each.tool_call_id: each.content for each in state.messages if each.role == "tool"}
    for nth, amount in enumerate(amounts_of(_number_of(order))):
        _count_payment(f"{order} {nth}", amount, told.get(f"pay-{nth}"), started, ledger)
    if asks_person(_number_of(order)):
        ledger.figures["confirmed by a person"] += "confirm" in told
        if "confirm" not in told:
            ledger.lost.append(f"{order} was never confirmed")


def _read_heard(heard: Path, ledger: Ledger) -> dict[str, list[int]]:
    """Return the numbers of the events of each order that were heard, without those that were heard before."""
    numbers: dict[str, list[int]] = {}
    seen: set[str] = set()
    for line in heard.read_text().splitlines() if heard.exists() else []:
        if line in seen:
            ledger.figures["events heard again, with their id"] += 1
            continue
        seen.add(line)
        order, _, number = line.rpartition(":")
        numbers.setdefault(order, []).append(int(number))
    return numbers


async def _count_heard(store: SqlStore, order: str, numbers: list[int], ledger: Ledger) -> None:
    """Compare what the observers have heard of an order with its journal."""
    ledger.figures["events heard elsewhere"] += len(numbers)
    stored = await store.operation(order)
    if missing := set(range(1, (stored.events if stored else 0) + 1)) - set(numbers):
        ledger.lost.append(f"the events {sorted(missing)} of {order} were not heard")
    if numbers != sorted(numbers):
        ledger.wrong.append(f"the events of {order} were heard in the order {numbers}")


def _number_of(order: str) -> int:
    return int(order.rpartition("-")[2])


def _count_pauses(order: str, times: Iterable[float], ledger: Ledger) -> None:
    """Note an operation that stood still for longer than another process may take to go on with it."""
    ordered = sorted(times)
    pause = max((after - before for before, after in pairwise(ordered)), default=0.0)
    ledger.figures["taken over by another process"] += pause > LEASE_SECONDS / 2
    if pause > TAKEOVER_SECONDS:
        ledger.late.append(f"{order} stood still for {pause:.1f} s")


def _count_payment(call: str, amount: int, told: str | None, started: Counter[str], ledger: Ledger) -> None:
    """Compare what a call came to with what the policy says and with what the tool has written."""
    if told is None:
        ledger.lost.append(f"the call {call!r} has no result")
    elif told == f"paid {amount}":
        ledger.figures["allowed"] += 1
        if not started[call]:
            ledger.lost.append(f"the call {call!r} is told to have run, and did not")
    elif f"more than {LIMIT}" in told:
        ledger.figures["denied by the policy"] += 1
    elif CUT in told or "process" in told:
        ledger.figures["cut by the death of the process"] += 1
    else:
        ledger.unanswered.append(f"the call {call!r} was answered with {told!r}")
    should_be_denied = amount > LIMIT
    if told is not None and should_be_denied and started[call]:
        ledger.wrong.append(f"{call!r} ran, and should have been denied")
    if told is not None and not should_be_denied and f"more than {LIMIT}" in told:
        ledger.wrong.append(f"{call!r} was denied, and should have run")


async def _count_decisions(store: SqlStore, ledger: Ledger) -> None:
    """Count how long decisions took, as far as the processes that asked lived to record it."""
    log, cursor = ExecutionLog(store), None
    taken: list[float] = []
    while True:
        page = await log.logs(None, hook_id=policy.id, cursor=cursor, limit=PAGE)
        for row in page.items:
            taken += [each.duration_ms / 1000 for each in row.executions if each.hook_id == policy.id]
        if (cursor := page.cursor) is None:
            break
    ledger.figures["decisions recorded"] = len(taken)
    ledger.figures["slowest decision, ms"] = round(max(taken, default=0.0) * 1000)
    ledger.late += [f"a decision took {each:.2f} s" for each in taken if each > DEADLINE + DECISION_SPARE]
