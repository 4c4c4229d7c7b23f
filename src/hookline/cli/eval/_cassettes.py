"""`hookline eval cassettes check SUITE`: which recordings are stale, offline or by asking real tools again."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.markup import escape

from hookline.cli._commands import CommandApp
from hookline.cli._exit_codes import exit_code_of
from hookline.cli._options import Tasks
from hookline.cli._terminal import make_one_line, report_errors
from hookline.cli.eval._evaluation import find_cases, without_failed_runs
from hookline.evals import canonical
from hookline.evals.cassette_checks import CassettesReport, CheckedCassette, LiveCheck, RepeatedCall, check_cassettes

__all__ = ["cassettes_app"]

LISTED = 10
"""Lines of one kind that are printed; --json has all."""

cassettes_app = CommandApp(name="cassettes", help="Check whether recorded answers are still those of the tools.")


class FailOn(StrEnum):
    """The values of `--fail-on`: which differences of answers fail the check."""

    SHAPE = "shape"
    VALUE = "value"


@cassettes_app.callback()
def cassettes() -> None:
    """Check whether recorded answers are still those of the tools."""


@cassettes_app.command("check")
def check(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="SUITE", help="agentdojo:banking (or another suite), or a file of your own."),
    ],
    folder: Annotated[
        Path | None,
        typer.Option("--cassettes", metavar="DIR", help="Folder of cassettes, as --mode record has written it."),
    ] = None,
    task: Tasks = None,
    live: Annotated[
        bool, typer.Option("--live", help="Call real tools again: those that are declared as read-only.")
    ] = False,
    sample: Annotated[
        int, typer.Option(min=1, metavar="N", help="With --live: recordings of each tool that are called again.")
    ] = 5,
    tool: Annotated[
        list[str] | None,
        typer.Option(metavar="TOOL", help="With --live: call this tool too; it must not change anything. Repeatable."),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="With --live: a field that does not count (items.*.id). Repeatable."),
    ] = None,
    fail_on: Annotated[
        FailOn, typer.Option(metavar="WHAT", help="With --live: fail if the shape of an answer changed, or any value.")
    ] = FailOn.SHAPE,
    seed: Annotated[int, typer.Option(metavar="N", help="With --live: the seed of the choice.")] = 0,
    timeout: Annotated[
        float, typer.Option(min=0.001, metavar="SECONDS", help="With --live: time that each call may take.")
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")] = False,
) -> None:
    """Check which recordings of a suite's tasks are stale.

    A recording is stale if its tool has changed or is gone. Recordings that no task uses are listed too. Without --live
    no tool runs. With --live, tools that are declared as read-only are called again with the recorded
    arguments, and the answers are compared. Other tools are called only if --tool names them.

    Exits with 1 if a tool changed, is gone, or answers in another shape; with 2 for a wrong name or file; with 3 if
    nothing could be compared.
    """
    if not live and (tool or ignore):
        raise typer.BadParameter("--tool and --ignore are for --live.")
    with report_errors():
        asked = (
            LiveCheck(sample=sample, confirmed=tool or (), ignore=ignore or (), seed=seed, timeout=timeout)
            if live
            else None
        )
        cases = find_cases(targets, task or [])
        with without_failed_runs():
            report = anyio.run(partial(check_cassettes, cases, cassettes=folder, live=asked, orphans=not task))
        values = fail_on is FailOn.VALUE
        if as_json:
            typer.echo(_as_json(report, values=values))
        else:
            _show(Console(highlight=False), report, values=values)
    raise typer.Exit(exit_code_of(ok=report.is_ok(values=values), judged=report.judged))


def _as_json(report: CassettesReport, *, values: bool) -> str:
    verdict = {"ok": report.is_ok(values=values), "judged": report.judged}
    return canonical({**verdict, "report": report}, indent=2, sort_keys=False)


def _show(console: Console, report: CassettesReport, *, values: bool) -> None:
    """Print the verdict, then what is stale, what was asked, and what nobody uses."""
    console.print(_verdict(report, values=values), soft_wrap=True)
    for title, style, lines in (
        ("Changed tools", "red", _stale_lines(report)),
        ("Answers of real tools", "yellow", _answer_lines(report, values=values)),
        ("Not checked", "yellow", _unknown_lines(report)),
        ("Recordings that are not used", "dim", _unused_lines(report)),
    ):
        if lines:
            console.print(f"\n[bold]{title}[/]")
            for line in lines[:LISTED]:
                console.print(f"  [{style}]{escape(make_one_line(line))}[/]", soft_wrap=True)
            if len(lines) > LISTED:
                console.print(f"  [{style}]and {len(lines) - LISTED} more; --json has all[/]")


def _verdict(report: CassettesReport, *, values: bool) -> str:
    tools = [tool for cassette in report.cassettes for tool in cassette.tools]
    recordings = sum(tool.recordings for tool in tools)
    checked = f"{_count(recordings, 'recording')} in {_count(len(report.cassettes), 'cassette')}"
    if not report.judged and report.is_ok(values=values):
        return f"[yellow]! Nothing could be compared:[/] {checked}."
    stale = sum(tool.recordings for _, tool in report.stale)
    gone = f"{stale} of {checked} are of tools that have changed or are gone"
    parts = [gone if stale else f"{checked}; no tool has changed"]
    if report.live:
        calls = [call for _, call in report.repeated]
        made = sum(call.status in ("same", "changed") for call in calls)
        changed = sum(call.status == "changed" for call in calls)
        parts.append(f"{made} called again, {changed or 'none'} with another answer")
    sign = "[green]✓ Fresh:[/]" if report.is_ok(values=values) else "[bold red]✗ Stale:[/]"
    return f"{sign} {'; '.join(parts)}."


def _stale_lines(report: CassettesReport) -> list[str]:
    """Return a line per tool that has changed, with the tasks that have recordings of it."""
    tasks: dict[tuple[str, str, str], list[str]] = {}
    for cassette, tool in report.stale:
        since = f" since {tool.recorded}" if tool.recorded else ""
        said = f"has changed{since}: {tool.why}" if tool.status == "changed" else f"is gone: {tool.why}"
        tasks.setdefault((tool.tool, tool.agent, said), []).append(cassette.task)
    return [
        f"✗ {name}{_of_agent(agent)} {said} ({_names(found)})" for (name, agent, said), found in sorted(tasks.items())
    ]


def _answer_lines(report: CassettesReport, *, values: bool) -> list[str]:
    lines = [f"✗ {cassette.task}: {cassette.problem}" for cassette in report.cassettes if cassette.problem]
    for cassette, call in report.repeated:
        if call.status in ("changed", "failed"):
            bad = call.status == "failed" or call.shape_changed or values
            what = call.why or "; ".join(map(str, call.differences[:3]))
            more = len(call.differences) - 3
            lines.append(
                f"{'✗' if bad else '!'} {_call(cassette, call)}: {what}{f'; and {more} more' if more > 0 else ''}"
            )
    return lines


def _unknown_lines(report: CassettesReport) -> list[str]:
    """Return a line per tool and reason why something was not checked."""
    found: dict[str, list[str]] = {}
    for cassette in report.cassettes:
        for tool in cassette.tools:
            if tool.status == "unknown":
                found.setdefault(f"{tool.tool}{_of_agent(tool.agent)}: {tool.why}", []).append(cassette.task)
        for call in cassette.repeated:
            if call.status == "skipped":
                found.setdefault(f"{call.tool}{_of_agent(call.agent)}: {call.why}", []).append(cassette.task)
        if cassette.why_not_replayed:
            found.setdefault(f"which recordings are used: {cassette.why_not_replayed}", []).append(cassette.task)
    lines = [f"? {what} ({_names(tasks)})" for what, tasks in found.items()]
    if report.without_cassette:
        lines.append(
            f"? {_count(len(report.without_cassette), 'task')} without a cassette: {_names(report.without_cassette)}"
        )
    return lines


def _unused_lines(report: CassettesReport) -> list[str]:
    unused = [f"- {cassette.task}: {line}" for cassette in report.cassettes for line in cassette.unused]
    return [*(f"- {path}: no task has this cassette" for path in report.orphans), *unused]


def _call(cassette: CheckedCassette, call: RepeatedCall) -> str:
    return f"{cassette.task}: {call.tool}{_of_agent(call.agent)} with {call.args}"


def _of_agent(agent: str) -> str:
    return f" of {agent}" if agent else ""


def _names(tasks: Sequence[str]) -> str:
    names = list(dict.fromkeys(tasks))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
