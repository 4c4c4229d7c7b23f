"""Judge the calls of all operations in the order of time.

`PastTimeline` puts them into that order without holding them in memory; `PastBudgets` keeps the counts of a budget.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from hookline._readonly import NO_DICT, NO_LIST
from hookline.budgets import Amounts, InMemoryBudgets, Settlement
from hookline.calls import ModelCall, SubAgentCall, ToolCall
from hookline.registry.past._items import PastCall
from hookline.store import PastModelCall

__all__ = ["PastBudgets", "PastTimeline", "TimedCall"]

MOST_WAITING = 1_000
"""Calls that are written to the file at once."""


class _Entry(msgspec.Struct, array_like=True, kw_only=True):
    """A call as it is written to the file: one of its three classes."""

    tool_call: ToolCall | None = None
    agent_call: SubAgentCall | None = None
    model_call: ModelCall | None = None
    number: int
    at: float
    asked_at: float
    ended_at: float
    made: PastModelCall | None
    denied_by: str
    is_asked: bool
    allowed: bool | None


class TimedCall(NamedTuple):
    """A call at one of the times at which hooks judged it.

    Attributes:
        past: The call.
        at: The time, in unix seconds.
        is_asked: Whether it was judged before a person was asked about it, and did not run at that time.
    """

    past: PastCall
    at: float
    is_asked: bool


class PastTimeline:
    """Calls of tools, sub-agents and models, in the order of time. It is a context manager.

    They are kept in a temporary database, which SQLite writes to a file of its own when it outgrows the memory.
    """

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("CREATE TABLE calls (at REAL NOT NULL, entry BLOB NOT NULL)")
        self._waiting: list[tuple[float, bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._database.close()

    def add(self, past: PastCall) -> None:
        """Add a call: once where it ran, and once where a person was asked about it.

        Of a `ModelCall`, only the last message is kept, and no field that no store keeps.
        """
        call = past.call
        entry = _Entry(
            tool_call=call if isinstance(call, ToolCall) else None,
            agent_call=call if isinstance(call, SubAgentCall) else None,
            model_call=_shorten(call) if isinstance(call, ModelCall) else None,
            number=past.number,
            at=past.at,
            asked_at=past.asked_at,
            ended_at=past.ended_at,
            made=past.made,
            denied_by=past.denied_by,
            is_asked=False,
            allowed=past.allowed,
        )
        if past.waited:
            entry.is_asked = True
            self._waiting.append((past.asked_at or past.at, msgspec.msgpack.encode(entry)))
            entry.is_asked = False
        if past.asked_at or not past.waited:  # it has run
            self._waiting.append((past.at, msgspec.msgpack.encode(entry)))
        if len(self._waiting) >= MOST_WAITING:
            self._write()

    def read(self) -> Iterator[TimedCall]:
        """Read the calls in order; of those at the same time, the one that was added first."""
        self._write()
        for at, wire in self._database.execute("SELECT at, entry FROM calls ORDER BY at, rowid"):
            entry = _decode_entry(wire)
            call = entry.tool_call or entry.agent_call or entry.model_call
            assert call is not None
            past = PastCall(
                call=call,
                number=entry.number,
                at=entry.at,
                asked_at=entry.asked_at,
                ended_at=entry.ended_at,
                made=entry.made,
                denied_by=entry.denied_by,
                allowed=entry.allowed,
            )
            yield TimedCall(past, at, entry.is_asked)

    def _write(self) -> None:
        self._database.execute("BEGIN")
        self._database.executemany("INSERT INTO calls VALUES (?, ?)", self._waiting)
        self._database.execute("COMMIT")
        self._waiting.clear()


def _shorten(call: ModelCall) -> ModelCall:
    """Return a model call without what no store keeps, and with its last message only."""
    model = call.model if isinstance(call.model, str) else ""
    return msgspec.structs.replace(
        call, messages=list(call.messages[-1:]), tools=NO_LIST, settings=NO_DICT, model=model
    )


_decode_entry = msgspec.msgpack.Decoder(_Entry).decode


class PastBudgets(InMemoryBudgets):
    """Keeps counts at the time of stored calls: a call settles its reservation when it ended, not when it is judged.

    Attributes:
        now: The time, in unix seconds.
        ends_at: When the call ended that is judged, in unix seconds.
    """

    def __init__(self) -> None:
        super().__init__(lambda: self.now, announces=False)
        self.now = 0.0
        self.ends_at = 0.0
        self._number = count()
        self._running: list[tuple[float, int, str, Amounts | None]] = []

    async def advance(self, now: float, *, ends_at: float) -> None:
        """Settle the calls that have ended by a time, and go on to that time.

        Args:
            now: The time of the next call, in unix seconds.
            ends_at: When that call ended, in unix seconds.
        """
        while self._running and self._running[0][0] <= now:
            self.now, _, reservation_id, used = heappop(self._running)
            await super().settle_budget(reservation_id, used)
        self.now, self.ends_at = now, ends_at

    async def settle_budget(self, reservation_id: str, used: Amounts | None = None) -> Settlement | None:
        """Settle a reservation when the call that is judged has ended."""
        heappush(self._running, (self.ends_at, next(self._number), reservation_id, used))
        return None
