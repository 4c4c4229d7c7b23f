"""`PastTimeline`: put the calls of all operations into the order of time, without holding them in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from hookline.calls import SubAgentCall, ToolCall
from hookline.registry.past._items import PastCall

__all__ = ["PastTimeline", "TimedCall"]

MOST_WAITING = 1_000
"""Calls that are written to the file at once."""


class _Entry(msgspec.Struct, array_like=True, kw_only=True):
    """A call as it is written to the file: one of its two classes."""

    tool_call: ToolCall | None = None
    agent_call: SubAgentCall | None = None
    number: int
    at: float
    asked_at: float
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
    """Calls of tools and sub-agents, in the order of time. It is a context manager.

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
        """Add a call of a tool or sub-agent: once where it ran, and once where a person was asked about it."""
        call = past.call
        entry = _Entry(
            tool_call=call if isinstance(call, ToolCall) else None,
            agent_call=call if isinstance(call, SubAgentCall) else None,
            number=past.number,
            at=past.at,
            asked_at=past.asked_at,
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
            call = entry.agent_call if entry.tool_call is None else entry.tool_call
            assert call is not None
            past = PastCall(
                call=call,
                number=entry.number,
                at=entry.at,
                asked_at=entry.asked_at,
                denied_by=entry.denied_by,
                allowed=entry.allowed,
            )
            yield TimedCall(past, at, entry.is_asked)

    def _write(self) -> None:
        self._database.execute("BEGIN")
        self._database.executemany("INSERT INTO calls VALUES (?, ?)", self._waiting)
        self._database.execute("COMMIT")
        self._waiting.clear()


_decode_entry = msgspec.msgpack.Decoder(_Entry).decode
