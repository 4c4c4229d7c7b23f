"""Print what a definition would have decided about stored calls."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.status import Status
from rich.text import Text

from hookline.cli._terminal import (
    STATUS_STYLES,
    Column,
    format_full_time,
    make_copyable,
    make_one_line,
    print_fields,
    print_json_lines,
    print_list,
)

if TYPE_CHECKING:
    from hookline.registry import Backtest, BacktestAgreement, BacktestExample, BacktestGroup

__all__ = ["BacktestProgress", "print_backtest"]

SHOWN_GROUPS = 20
STYLES = {**STATUS_STYLES, "asked": "bold yellow", "changed": "cyan", "unreadable": "yellow", "falseAlarm": "yellow"}
WORDS = {"falseAlarm": "false alarm"}
VERDICTS = ("passed", "denied", "asked", "mocked", "changed", "failed")
ENDS = {
    "limit": "There were more calls: --limit ended it.",
    "timeout": "The time was up: --timeout ended it, and older operations were not looked at.",
    "stopped": "It was stopped, and older operations were not looked at.",
}


class BacktestProgress(AbstractContextManager["BacktestProgress"]):
    """Shows on stderr how many calls were judged, if it is a terminal. Call it with the counts so far."""

    def __init__(self) -> None:
        self._status: Status = Console(stderr=True, highlight=False).status("Reading operations")
        self._is_shown = self._status.console.is_terminal

    def __enter__(self) -> BacktestProgress:
        if self._is_shown:
            self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._status.stop()

    def __call__(self, found: Backtest) -> None:
        """Show the counts so far."""
        if self._is_shown:
            self._status.update(f"{found.operations:,} operations, {found.calls:,} calls judged")


def print_backtest(found: Backtest, *, as_json: bool) -> None:
    """Print the result of a backtest: as tables, or as one line of JSON."""
    if as_json:
        print_json_lines([found])
        return
    console = Console(highlight=False)
    console.print(Text(f"{make_one_line(found.name)} at {found.point}", style="bold"), soft_wrap=True)
    since = "" if found.since is None else f" since {format_full_time(found.since).partition('.')[0]}"
    print_fields(
        [
            ("judged", f"{found.calls:,} calls of {found.operations:,} operations{since}"),
            *((each, _count(getattr(found, each), each)) for each in VERDICTS if getattr(found, each)),
            ("timeouts", f"{found.timeouts:,} of those that failed" if found.timeouts else ""),
            ("not judged", f"{found.not_judged:,} calls" if found.not_judged else ""),
            ("unreadable", f"{found.unreadable:,} stored events" if found.unreadable else ""),
            ("people", _agreement(found.people) if found.people.compared else ""),
            ("labels", "" if found.labels is None else _agreement(found.labels)),
            ("per call", _times(found) if found.calls else ""),
            ("took", f"{found.took_ms / 1e3:.2f} s"),
        ]
    )
    if found.failed:
        console.print(_failures(found), style="dim", soft_wrap=True)
    gaps = [f"{each.calls:,} not judged: {each.reason}" for each in found.gaps]
    for note in (*gaps, *found.notes, *([ENDS[found.ended_by]] if found.ended_by in ENDS else [])):
        console.print(Text(make_one_line(note)), style="dim", soft_wrap=True)
    if found.groups:
        console.print()
        print_list(found.groups[:SHOWN_GROUPS], _group_columns(found), as_json=False, nothing="")
        more = len(found.groups) - SHOWN_GROUPS
        if more > 0:
            console.print(f"and {more:,} more pairs of tool and tenant: --json has them all", style="dim")
    if found.examples:
        console.print()
        print_list(found.examples, _example_columns(), as_json=False, nothing="")


def _failures(found: Backtest) -> str:
    what = "would have been denied" if found.fails_closed else "would have gone on"
    return f"Calls for which the hook failed {what}."


def _agreement(found: BacktestAgreement) -> str:
    parts = [f"{found.compared:,} calls compared", f"{found.agreed:,} agreed"]
    parts += [f"{found.false_alarms:,} false alarms", f"{found.misses:,} misses"]
    return ", ".join([*parts, f"{found.asked:,} asked"] if found.asked else parts)


def _times(found: Backtest) -> str:
    return f"p50 {found.p50_ms:.3f} ms, p95 {found.p95_ms:.3f} ms, max {found.max_ms:.3f} ms"


def _count(count: int, word: str) -> Text:
    return Text(f"{count:,}", style=STYLES.get(word, "") if count else "dim")


def _group_columns(found: Backtest) -> list[Column[BacktestGroup]]:
    def column(name: str, rank: int) -> Column[BacktestGroup]:
        return Column(name, lambda each: _count(getattr(each, name), name), rank=rank, right=True)

    return [
        Column("tool", lambda each: make_copyable(each.tool) or "—"),
        Column("tenant", lambda each: each.tenant_id, rank=6),
        Column("calls", lambda each: f"{each.calls:,}", right=True),
        *(column(name, nth) for nth, name in enumerate(VERDICTS[1:], 1) if getattr(found, name)),
    ]


def _example_columns() -> list[Column[BacktestExample]]:
    return [
        Column("example", lambda each: Text(WORDS.get(each.kind, each.kind), style=STYLES.get(each.kind, ""))),
        Column("operation", lambda each: each.operation_id),
        Column("call", _name_call, rank=1),
        Column("tool", lambda each: each.tool, rank=2, cut=True),
        Column("because", _because, rank=3, cut=True),
    ]


def _because(each: BacktestExample) -> str:
    if each.on:
        said = "allows" if each.kind == "falseAlarm" else "refuses"
        return f"a {each.on} {said} it"
    arguments = msgspec.json.encode(each.args).decode() if each.args and not each.error and not each.reason else ""
    return each.error or each.reason or arguments or each.text


def _name_call(each: BacktestExample) -> str:
    if each.tool_call_id or each.step_index is None:
        return each.tool_call_id
    return f"step {each.step_index}"
