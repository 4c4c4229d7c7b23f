"""The waterfall of an operation as the JSON that the web page draws."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec

from hookline.errors import EventDecodeError
from hookline.evals import BarKind, BarStatus, Waterfall, draw_run
from hookline.events import Event, decode
from hookline.registry import ExecutionRow
from hookline.runtime import JournalEntry
from hookline.server.page._conversation import find_asker
from hookline.server.page._hook_names import NamedHook
from hookline.server.page._templates import show_hidden
from hookline.signals import HookExecution

__all__ = ["BarBody", "WaterfallBody", "read_events", "waterfall_body"]

LONGEST_NOTE = 300


class BarBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One bar, with times in milliseconds since the operation began.

    Attributes:
        depth: How many bars it is inside of.
        kind: What it stands for.
        name: Its name.
        status: How it ended; `"asked"` is a hook that asked a person.
        start: When it began.
        duration: How long it took; of a hook its own time, of what still runs until now.
        note: Further details.
    """

    depth: int
    kind: BarKind
    name: str
    status: BarStatus | Literal["asked"]
    start: float
    duration: float
    note: str = ""


class WaterfallBody(msgspec.Struct, frozen=True, kw_only=True):
    """The bars of an operation, with times in milliseconds since it began.

    Attributes:
        duration: The length of the time axis.
        bars: Each directly after the bar that it is inside of or a sibling, in the order of their beginnings.
        pauses: When the long times in which nothing ran begin and end; the page cuts the axis short there.
        truncated: Whether events or hook executions were left out.
    """

    duration: float
    bars: list[BarBody]
    pauses: list[tuple[float, float]]
    truncated: bool = False


def read_events(entries: Iterable[JournalEntry]) -> Iterator[Event]:
    """Yield the events of entries, without those that a newer version has written and this one cannot read."""
    for entry in entries:
        with contextlib.suppress(EventDecodeError):
            yield decode(entry.wire)


def waterfall_body(
    entries: Iterable[JournalEntry],
    rows: Iterable[ExecutionRow],
    *,
    names: Mapping[str, NamedHook] | None = None,
    now: float,
    truncated: bool = False,
) -> WaterfallBody:
    """Draw the waterfall of an operation from its stored events and from the log of its hooks.

    Args:
        entries: The events, in order.
        rows: The operation's rows in the log of hook executions, in any order.
        names: The names of stored hooks, by their ids.
        now: The time up to which running bars are drawn, in seconds since 1970.
        truncated: Whether there are more events or executions than those given.
    """
    hooks = names or {}
    executions = [pair for row in rows for pair in _executions_of(row)]
    asking = {id(execution) for execution, has_asked in executions if has_asked}
    waterfall = draw_run(read_events(entries), [execution for execution, _ in executions], now=int(now * 1e9))
    return WaterfallBody(
        duration=_ms(waterfall.duration_ns),
        bars=[
            BarBody(
                depth=depth,
                kind=bar.kind,
                name=show_hidden(hooks[bar.name].name if bar.kind == "hook" and bar.name in hooks else bar.name),
                status="asked" if id(bar.source) in asking else bar.status,
                start=_ms(bar.start - waterfall.start),
                duration=_ms(waterfall.duration_of(bar)),
                note=show_hidden(bar.note[:LONGEST_NOTE]),
            )
            for depth, bar in waterfall.rows()
        ],
        pauses=_pauses_of(waterfall),
        truncated=truncated,
    )


def _pauses_of(waterfall: Waterfall) -> list[tuple[float, float]]:
    return [(_ms(start - waterfall.start), _ms(end - waterfall.start)) for start, end in waterfall.pauses()]


def _executions_of(row: ExecutionRow) -> Iterator[tuple[HookExecution, bool]]:
    """Read a row of the log back as the executions that it was made of, each with whether its hook asked a person."""
    asker = find_asker(row)
    for run in row.executions:
        execution = HookExecution(
            hook_id=run.hook_id,
            hook_type=row.point,
            operation_id=row.operation_id,
            status=run.status,
            duration_ms=run.duration_ms,
            error=run.error,
            time_unix_nano=run.time_unix_nano or int((row.created_at - row.duration_ms / 1e3) * 1e9),
            step_index=row.step_index,
            tool_call_id=row.tool_call_id,
            decision=run.decision,
            reason=run.reason,
            revision=run.revision,
        )
        yield execution, run is asker


def _ms(nanoseconds: int) -> float:
    return round(nanoseconds / 1e6, 4)
