"""Summarize a run, or the comparison of two, as Markdown for a pull request: the verdict first, then what changed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from hookline.evals._costs import format_cost
from hookline.evals.errors import ReportError
from hookline.evals.reports._report import check_writable, duration, write_text
from hookline.evals.reports._run_diff import RunDiff
from hookline.evals.reports._verdict import judge_runs
from hookline.evals.running import Comparison, Provenance, SuiteRun
from hookline.evals.statistics import Estimate, ModelStatistics, RunStatistics, TagStatistics

__all__ = ["DiffVerdict", "diff_summary", "judge_diff", "run_summary", "write_summary"]

T = TypeVar("T")

ROWS = 50
"""Rows of a table; GitHub refuses a summary above 1 MiB."""

LONGEST = 400
"""Characters of a text that are shown."""

SPECIAL = re.compile(r"[\\`*_\[\]<>#~&$]")
"""Characters that Markdown takes for more than text."""
BAR = "\\|"
"""A bar in the cell of a table."""
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Characters that nobody sees, and some of which turn the order of a text round."""


class DiffVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The finding of a comparison of two runs, for the top of a report.

    Attributes:
        outcome: `"good"`, `"bad"`, or `"open"` if it cannot be told.
        headline: The finding, without a full stop.
        rest: The sentence after the headline.
    """

    outcome: Literal["good", "bad", "open"]
    headline: str
    rest: str

    @property
    def mark(self) -> str:
        """A sign for the outcome."""
        return {"good": "✓", "bad": "✗", "open": "?"}[self.outcome]


def judge_diff(diff: RunDiff) -> DiffVerdict:
    """Say in a sentence whether a run got worse.

    Args:
        diff: The comparison.
    """
    worse = len(diff.worse)
    failing = sum(task.change == "new" and task.passed[1] is False for task in diff.tasks)
    new = f", {failing} new failed" if failing else ""
    if diff.paired:
        moved = f"{_count(diff, 'higher')} higher, {_count(diff, 'lower')} lower{new}."
    else:
        moved = f"{_count(diff, 'better')} better{new}."
    if worse:
        return DiffVerdict(
            outcome="bad", headline=f"{worse} task{'' if worse == 1 else 's'} got worse", rest=f", {moved}"
        )
    if diff.problems:
        return DiffVerdict(outcome="bad", headline="The run as a whole got worse", rest=f", {moved}")
    if not diff.compared:
        return DiffVerdict(outcome="bad", headline="Nothing was compared", rest=": A and B have no task in common.")
    if not diff.judged:
        return DiffVerdict(outcome="bad", headline="Nothing was judged", rest=": no task has a score in both runs.")
    declines = f" But {', '.join(diff.declines)}." if diff.declines else ""
    if diff.paired and diff.test is not None:
        if diff.test.verdict == "cannot tell":
            return DiffVerdict(outcome="open", headline="Cannot tell whether it got worse", rest=f", {moved}{declines}")
        words = {"better": "Better", "worse": "Worse, but by no more than allowed", "same": "The same scores"}
        return DiffVerdict(outcome="good", headline=words[diff.test.verdict], rest=f", {moved}{declines}")
    if diff.declines:
        return DiffVerdict(outcome="good", headline="Nothing got worse than allowed", rest=f", {moved}{declines}")
    return DiffVerdict(outcome="good", headline="Nothing got worse", rest=f", {moved}")


def diff_summary(diff: RunDiff, *, a: str = "A", b: str = "B") -> str:
    """Summarize the comparison of two runs as Markdown.

    Args:
        diff: The comparison.
        a: The name of the earlier run.
        b: The name of the later run.
    """
    verdict = judge_diff(diff)
    lines = [f"### {verdict.mark} {_text(verdict.headline)}{_text(verdict.rest)}", ""]
    lines += [f"- {_text(problem)}." for problem in diff.problems]
    if diff.explanation:
        lines.append(_text(diff.explanation))
    lines.append("")
    for which, name, model, origin in zip("AB", (a, b), diff.models, diff.provenance, strict=True):
        lines.append(f"* {which}: {_run(name, model)}{_facts(origin)}")
    lines.append("")
    if diff.statistics is not None:
        lines += _figures(("A", "B"), diff.statistics)
    changed = [task for task in diff.tasks if task.change != "same"]
    changed.sort(key=lambda task: not task.problems)  # what is worse comes first
    lines += _table(
        f"Tasks that changed: {len(changed)} of {len(diff.tasks)}",
        ("task", "change", "passed", "score", "cost in USD", "why"),
        changed,
        lambda task: (
            _code(task.task),
            task.change,
            _pair(
                tuple(f"{passes}/{of}" if of else None for passes, of in zip(task.passes, task.attempts, strict=True))
            ),
            _pair(tuple(None if score is None else f"{score:.2f}" for score in task.score)),
            _pair(tuple(None if cost is None else f"{cost:.4f}" for cost in task.cost_usd)),
            _text("; ".join(task.problems) or task.why),
        ),
    )
    if diff.flaky:
        lines += ["", f"Flaky in B, as they passed and failed: {_list(diff.flaky)}."]
    if diff.not_compared:
        lines += ["", f"Not compared, as A was interrupted before: {_list(diff.not_compared)}."]
    if diff.statistics is not None:
        lines += _tags(*diff.statistics)
    return "\n".join(lines).strip() + "\n"


def run_summary(runs: Sequence[SuiteRun], comparison: Comparison | None = None) -> str:
    """Summarize a run as Markdown.

    Args:
        runs: One run, or a run and its replay.
        comparison: How the two compare.
    """
    verdict = judge_runs(runs, comparison)
    mark = {"Passed": "✓", "Failed": "✗"}.get(verdict.outcome, "!")
    lines = [f"### {mark} {_text(str(verdict))}", "", _facts(runs[0].provenance).removeprefix("; "), ""]
    statistics = RunStatistics.of(runs[0])
    if statistics.models:
        lines += _figures([model.model or "figures" for model in statistics.models], statistics.models)
    for model in statistics.models:
        of = f" with {model.model}" if len(statistics.models) > 1 else ""
        failed = [task for task in model.per_task if task.failure]
        lines += _table(
            f"Tasks that failed{of}: {len(failed)} of {model.tasks}",
            ("task", "passed", "score", "cost in USD", "why"),
            failed,
            lambda task: (
                _code(task.task),
                f"{task.passes}/{task.judged}",
                "-" if task.score is None else f"{task.score.mean:.2f}",
                format_cost(task.cost_usd),
                _text(task.failure),
            ),
        )
        lines += _table(
            f"By tag{of}",
            ("tag", "tasks", "passed", "score", "cost in USD"),
            model.tags,
            lambda tag: (
                _code(tag.tag),
                str(tag.tasks),
                _show(tag.passed),
                _show(tag.score),
                format_cost(tag.cost_usd),
            ),
        )
    return "\n".join(lines).strip() + "\n"


def write_summary(path: str | Path, text: str) -> Path:
    """Write a summary; the file that GitHub shows on a job's page is appended to, any other is replaced.

    Args:
        path: The file. It is GitHub's if the environment variable `GITHUB_STEP_SUMMARY` names it.
        text: The summary.

    Returns:
        The file, as an absolute path.

    Raises:
        ReportError: If it cannot be written.
    """
    target, shared = check_writable(path), os.environ.get("GITHUB_STEP_SUMMARY")
    if not shared or os.path.realpath(shared) != os.path.realpath(target):
        return write_text(target, text)
    try:
        with target.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{text}\n")
    except OSError as error:
        raise ReportError(str(target), error.strerror or str(error)) from error
    return target


def _figures(names: Sequence[str], models: Sequence[ModelStatistics]) -> list[str]:
    """Return the figures of runs or models side by side, without those that are 0 everywhere."""
    repeats = min((max(model.pass_at_k, default=1) for model in models), default=1)
    figures: list[tuple[str, Callable[[ModelStatistics], str]]] = [
        ("tasks", lambda model: str(model.tasks)),
        ("attempts", lambda model: str(model.attempts)),
        ("passed", lambda model: _show(model.passed)),
        ("score, weighted" if any(model.weighted for model in models) else "score", lambda model: _show(model.score)),
    ]
    if repeats > 1:
        figures += [
            (f"pass@{repeats}", lambda model: _show(model.pass_at_k.get(repeats))),
            (f"pass^{repeats}", lambda model: _show(model.pass_hat_k.get(repeats))),
            ("flaky tasks", lambda model: str(len(model.flaky))),
        ]
    if any(model.total_cost_usd != 0 for model in models):
        figures += [
            ("cost in USD", lambda model: format_cost(model.total_cost_usd)),
            ("cost per attempt", lambda model: format_cost(model.mean_cost_usd)),
        ]
    if any(model.judge_cost_usd.total for model in models):
        figures.append(("judges in USD", lambda model: f"{model.judge_cost_usd.total:.4f}"))
    if any(model.user_cost_usd.total for model in models):
        figures.append(("simulated users in USD", lambda model: f"{model.user_cost_usd.total:.4f}"))
    if any(model.input_tokens.total or model.output_tokens.total for model in models):
        figures += [
            ("tokens read", lambda model: f"{model.input_tokens.total:,.0f}"),
            ("tokens written", lambda model: f"{model.output_tokens.total:,.0f}"),
        ]
    figures += [
        ("latency p50", lambda model: duration(model.duration_ms.p50)),
        ("latency p90", lambda model: duration(model.duration_ms.p90)),
    ]
    headings = " | ".join(_text(name).replace("|", BAR) for name in names)
    lines = [f"| | {headings} |", f"|---|{'---:|' * len(names)}"]
    return [*lines, *(f"| {name} | {' | '.join(cell(model) for model in models)} |" for name, cell in figures)]


def _tags(before: ModelStatistics, after: ModelStatistics) -> list[str]:
    known = {tag.tag: tag for tag in before.tags}
    pairs: list[tuple[TagStatistics | None, TagStatistics]] = [(known.get(tag.tag), tag) for tag in after.tags]
    return _table(
        "By tag",
        ("tag", "tasks", "score in A", "score in B", "cost in USD"),
        pairs,
        lambda pair: (
            _code(pair[1].tag),
            str(pair[1].tasks),
            _show(None if pair[0] is None else pair[0].score),
            _show(pair[1].score),
            _pair([None if pair[0] is None else format_cost(pair[0].cost_usd), format_cost(pair[1].cost_usd)]),
        ),
    )


def _table(title: str, columns: Sequence[str], items: Sequence[T], cells: Callable[[T], Iterable[str]]) -> list[str]:
    if not items:
        return []
    lines = ["", f"#### {_text(title)}", "", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(cell.replace('|', BAR) for cell in cells(item))} |" for item in items[:ROWS]]
    return [*lines, "", f"and {len(items) - ROWS} more"] if len(items) > ROWS else lines


def _count(diff: RunDiff, change: str) -> int:
    return sum(task.change == change for task in diff.tasks)


def _pair(values: Sequence[str | None]) -> str:
    before, after = ("-" if value is None else value for value in values)
    return before if before == after else f"{before} → {after}"


def _show(estimate: Estimate | None) -> str:
    return "-" if estimate is None else f"{estimate.mean:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


def _facts(origin: Provenance | None) -> str:
    """Return when and with what a run was made, to be put behind its name."""
    facts = {} if origin is None else origin.facts
    return "".join(f"; {name} {_code(value)}" for name, value in facts.items())


def _run(name: str, model: str) -> str:
    return f"{_code(name)} with {_code(model)}" if model else _code(name)


def _list(names: Sequence[str]) -> str:
    more = len(names) - ROWS
    return ", ".join(map(_code, names[:ROWS])) + (f" and {more} more" if more > 0 else "")


def _code(text: str) -> str:
    """Return a name as a code span that no character of it can end, in one line."""
    plain = _one_line(text) or " "
    fence = "`" * (max(map(len, re.findall("`+", plain)), default=0) + 1)
    space = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{space}{plain}{space}{fence}"


def _text(text: str) -> str:
    """Return a text in one line in which nothing is Markdown, and nobody is mentioned."""
    plain = SPECIAL.sub(lambda found: "\\" + found[0], _one_line(text))
    return plain.replace("@", "@<!-- -->")


def _one_line(text: str) -> str:
    return " ".join(CONTROL.sub(" ", text[:LONGEST]).split())
