"""Say in one sentence whether runs passed, for the top of a report and of the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from hookline.evals.running import Comparison, SuiteRun

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

    Args:
        runs: One run, or a run and its replay.
        comparison: How the two compare.
    """
    counts: dict[str, AttemptCounts] = {}
    repeated = False
    for run in runs:
        names: set[str] = set()
        for result in run.results:
            repeated = repeated or result.name in names
            names.add(result.name)
            counts.setdefault(result.name, AttemptCounts()).add(passed=result.ok)
        for name in run.not_run:
            counts.setdefault(name, AttemptCounts())
        for name in names.difference(run.not_judged):
            counts[name].judged = True
    left = dict.fromkeys(counts)
    total = len(left)
    if not total:
        return RunVerdict(outcome="Not judged", sentence="no task ran.")

    def take(names: Iterable[str]) -> list[str]:
        """Take tasks out of those that are left, so that each is counted once."""
        taken = [name for name in dict.fromkeys(names) if name in left]
        for name in taken:
            del left[name]
        return taken

    flaky = take([name for name, each in counts.items() if repeated and 0 < each.passed < each.ran])
    failed = take([name for name, each in counts.items() if each.passed < each.ran])
    not_run = take([name for run in runs for name in run.not_run])
    different = take([each.task for each in comparison.differences] if comparison else [])
    not_judged = [] if comparison else take([name for name in left if not counts[name].judged])
    outcome: Outcome = (
        "Failed" if failed or flaky or different else "Interrupted" if not_run else "Passed" if left else "Not judged"
    )
    counted = f"{len(left)} of {total} task{'' if total == 1 else 's'}"
    always = " in every attempt" if repeated else ""
    parts = [
        f"{counted}{always}" if outcome == "Passed" else f"{counted} passed{always}",
        *(
            f"{len(names)} {words}: {_list_names(names)}"
            for names, words in (
                (flaky, "passed in some attempts"),
                (failed, f"failed{always}"),
                (different, "gave different results in the replay"),
            )
            if names
        ),
        *(
            f"{len(names)} {words}"
            for names, words in ((not_run, "did not run"), (not_judged, "had no check"))
            if names
        ),
    ]
    parts += dict.fromkeys(run.stopped for run in runs if run.stopped and not_run)
    if repeated:
        attempts, passes = sum(each.ran for each in counts.values()), sum(each.passed for each in counts.values())
        parts.append(f"{passes} of {attempts} attempts passed")
    if comparison is not None and comparison.same:
        parts.append("the replay gave the same results")
    return RunVerdict(outcome=outcome, sentence="; ".join(parts) + ".")


class AttemptCounts:
    """The attempts of a task, in all runs."""

    __slots__ = ("judged", "passed", "ran")

    def __init__(self) -> None:
        self.ran, self.passed, self.judged = 0, 0, False

    def add(self, *, passed: bool) -> None:
        """Add an attempt."""
        self.ran += 1
        self.passed += passed


def _list_names(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
