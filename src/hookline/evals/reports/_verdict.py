"""Say in one sentence whether runs passed, for the top of a report and of the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from hookline.evals.running import REPLAYS, Comparison, SuiteRun, TaskResult

__all__ = ["RunVerdict", "judge_runs"]

NAMED = 3
"""Tasks that a verdict names; it counts the others."""


Outcome = Literal["Passed", "Failed", "Interrupted", "Not judged"]


@dataclass(frozen=True, kw_only=True)
class RunVerdict:
    """Whether runs passed.

    Attributes:
        outcome: One of four words.
        sentence: The counts, and the names of the tasks that did not pass.
    """

    outcome: Outcome
    sentence: str

    @property
    def good(self) -> bool:
        """Whether everything passed."""
        return self.outcome == "Passed"

    def __str__(self) -> str:
        return f"{self.outcome}: {self.sentence}"


def judge_runs(runs: Sequence[SuiteRun], comparison: Comparison | None = None) -> RunVerdict:
    """Judge runs of the same tasks: a task passes if all of its attempts pass in all runs, with the same results.

    With several models, each task counts once for each of them.

    Args:
        runs: One run, or a run and its replay.
        comparison: How the two compare.
    """
    counts: dict[tuple[str, str], AttemptCounts] = {}
    for run in runs:
        for result in run.results:
            counts.setdefault((result.name, result.model), AttemptCounts(result.name)).add(
                result, judged=_is_judged(run, result)
            )
    several = len({model for _, model in counts}) > 1
    results = {f"{name} ({model})" if several and model else name: each for (name, model), each in counts.items()}
    not_run = [name for run in runs for name in run.not_run]
    left = dict.fromkeys([*results, *not_run])
    total = len(left)
    if not total:
        return RunVerdict(outcome="Not judged", sentence="no task ran.")

    def take(names: Iterable[str]) -> list[str]:
        """Take tasks out of those that are left, so that each is counted once."""
        taken = [name for name in dict.fromkeys(names) if name in left]
        for name in taken:
            del left[name]
        return taken

    differing = {each.task for each in comparison.differences} if comparison else set()
    flaky = take(name for name, each in results.items() if not comparison and 0 < each.passed < each.count)
    failed = take(name for name, each in results.items() if each.passed < each.count)
    not_run = take(not_run)
    different = take(name for name, each in results.items() if each.task in differing)
    not_judged = [] if comparison else take(name for name, each in results.items() if not each.judged)
    bad = failed or flaky or different
    outcome: Outcome = "Failed" if bad else "Interrupted" if not_run else "Passed" if left else "Not judged"
    counted = f"{len(left):,} of {total:,} task{'' if total == 1 else 's'}"
    repeated = not comparison and any(each.count > 1 for each in results.values())
    always = " in every attempt" if repeated else ""
    parts = [
        f"{counted}{always}" if outcome == "Passed" else f"{counted} passed{always}",
        *(
            f"{len(names):,} {words}: {_list_names(names)}"
            for names, words in (
                (flaky, "passed in some attempts"),
                (failed, f"failed{always}"),
                (different, "gave different results in the replay"),
            )
            if names
        ),
        *(
            f"{len(names):,} {words}"
            for names, words in ((not_run, "did not run"), (not_judged, "had no verdict"))
            if names
        ),
    ]
    if repeated:
        attempts, passes = sum(each.count for each in counts.values()), sum(each.passed for each in counts.values())
        parts.append(f"{passes:,} of {attempts:,} attempts passed")
    parts += dict.fromkeys(run.stopped for run in runs if run.stopped and not_run)
    if comparison is not None and comparison.same:
        parts.append("the replay gave the same results")
    return RunVerdict(outcome=outcome, sentence="; ".join(parts) + ".")


class AttemptCounts:
    """The attempts of one task with one model, in all runs."""

    def __init__(self, task: str) -> None:
        self.task, self.count, self.passed, self.judged = task, 0, 0, False

    def add(self, result: TaskResult, *, judged: bool) -> None:
        self.count += 1
        self.passed += result.ok
        self.judged = self.judged or judged


def _is_judged(run: SuiteRun, result: TaskResult) -> bool:
    """Whether a result was judged: it broke, a check judged it, or the recording of a replay did."""
    return not result.sound or result.utility is not None or (run.mode in REPLAYS and result.mocked > 0)


def _list_names(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more:,} more" if more > 0 else "")
