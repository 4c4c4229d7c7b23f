"""Compare a judge with the labels of people, and find the threshold that fits them best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from hookline.errors import HookUsageError
from hookline.evals.judges._agreement import ConfusionMatrix, krippendorff_alpha
from hookline.evals.judges._labels import Label
from hookline.evals.running import TaskResult

__all__ = ["Calibration", "ThresholdFit", "calibrate"]

FEW_LABELS = 30
"""With fewer labels than this, kappa and the best threshold say little."""

Item = tuple[str, int, str]
"""A task, its attempt and the model of its run."""


class ThresholdFit(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Agreement of a judge with people, at one threshold.

    Attributes:
        threshold: The score from which a task passes.
        confusion: How often the judge and people passed a task.
    """

    threshold: float
    confusion: ConfusionMatrix


class Calibration(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Agreement of a judge with the labels of people.

    Attributes:
        check: The name of the judge.
        now: The judge with its threshold.
        best: The judge with the threshold whose kappa is highest; `None` if no threshold has a kappa.
        held_out_kappa: The kappa of thresholds that were each chosen without the task that they judge: what to expect
            of `best` for other tasks. `None` if there is none.
        fits: The judge with every threshold that makes a difference, from the lowest.
        not_judged: The number of labelled tasks about which the judge has no verdict.
        unlabelled: The number of judged tasks without a label.
        ties: The number of tasks about which as many people say pass as fail. They are left out.
        unknown: Tasks with a label that the run does not have.
        people: The number of people whose labels are named.
        people_alpha: How far people agree with each other: Krippendorff's alpha. `None` if no task has two labels.
    """

    check: str
    now: ThresholdFit
    best: ThresholdFit | None
    held_out_kappa: float | None
    fits: list[ThresholdFit]
    not_judged: int
    unlabelled: int
    ties: int
    unknown: list[str]
    people: int
    people_alpha: float | None

    @property
    def labels(self) -> int:
        """The number of tasks that were compared."""
        return self.now.confusion.count

    @property
    def few(self) -> bool:
        """Whether there are too few labels for figures that mean much."""
        return self.labels < FEW_LABELS


def calibrate(results: Iterable[TaskResult], labels: Iterable[Label], *, check: str | None = None) -> list[Calibration]:
    """Compare the judges of a run with the labels of people. No model is asked.

    The measure is Cohen's kappa: a judge and a person are two raters, each says pass or fail about every task, and the
    kappa takes out the agreement that would come by chance where most tasks pass. Of several labels of a task, the
    majority counts.

    Args:
        results: The results of the run. They are read once; their scores are kept.
        labels: The labels.
        check: The name of a judge; all judges of the run by default.

    Raises:
        HookUsageError: If the run has no such judge, a person labels a task twice, or a label does not say which of
            several models it is about.
    """
    scores: dict[str, dict[Item, float | None]] = {}
    thresholds: dict[str, float] = {}
    models: dict[tuple[str, int], set[str]] = {}
    for result in results:
        models.setdefault((result.name, result.attempt), set()).add(result.model)
        for each in result.checks:
            if each.judgement is not None and check in (None, each.name):
                item = (result.name, result.attempt, result.model)
                scores.setdefault(each.name, {})[item] = each.score if each.judged else None
                thresholds[each.name] = each.judgement.threshold
    if not scores:
        raise HookUsageError("The run has no judge." if check is None else f"The run has no judge {check!r}.")
    given = list(labels)
    for label in given:
        if label.check and label.check not in scores and check is None:
            raise HookUsageError(f"A label is about the judge {label.check!r}; the run has {', '.join(scores)}.")
    return [_calibrate(name, thresholds[name], scores[name], _votes(name, given, models), models) for name in scores]


Votes = dict[Item, dict[str, bool]]
"""What people say about each task, by the person."""


def _votes(check: str, labels: Sequence[Label], models: Mapping[tuple[str, int], set[str]]) -> Votes:
    votes: Votes = {}
    for label in labels:
        if label.check not in ("", check):
            continue
        known = models.get((label.task, label.attempt), set())
        if not label.model and len(known) > 1:
            raise HookUsageError(
                f"The label of {label.task!r} does not say which model it is about: {', '.join(sorted(known))}. Add "
                "`model` to it."
            )
        model = label.model or next(iter(known), "")
        said = votes.setdefault((label.task, label.attempt, model), {})
        if label.by in said:
            who = f"{label.by!r} labels" if label.by else "There are two labels without `by` for"
            raise HookUsageError(f"{who} {label.task!r}{' twice' if label.by else ''}; keep one of them.")
        said[label.by] = label.passed
    return votes


def _calibrate(
    check: str,
    threshold: float,
    scores: Mapping[Item, float | None],
    votes: Votes,
    models: Mapping[tuple[str, int], set[str]],
) -> Calibration:
    pairs: list[tuple[float, bool]] = []
    not_judged = ties = 0
    unknown: list[str] = []
    for (task, attempt, model), said in votes.items():
        item = (task, attempt, model)
        if item not in scores:
            known = model in models.get((task, attempt), ())
            unknown += [] if known else [task if attempt == 1 else f"{task} (attempt {attempt})"]
            continue
        score, passes = scores[item], sum(said.values())
        if passes * 2 == len(said):
            ties += 1
        elif score is None:
            not_judged += 1
        else:
            pairs.append((score, passes * 2 > len(said)))
    counts = _count(pairs)
    fits = _fits(counts)
    return Calibration(
        check=check,
        now=ThresholdFit(threshold=threshold, confusion=_confusion(counts, threshold)),
        best=_best(fits, threshold),
        held_out_kappa=_held_out(counts, threshold),
        fits=fits,
        not_judged=not_judged,
        unlabelled=sum(item not in votes for item, score in scores.items() if score is not None),
        ties=ties,
        unknown=unknown,
        people=len({by for said in votes.values() for by in said if by}),
        people_alpha=krippendorff_alpha([float(each) for each in said.values()] for said in votes.values()),
    )


Counts = dict[float, tuple[int, int]]
"""By score, how many tasks people passed and how many not."""


def _count(pairs: Iterable[tuple[float, bool]]) -> Counts:
    counts: Counts = {}
    for score, passed in pairs:
        yes, no = counts.get(score, (0, 0))
        counts[score] = (yes + passed, no + (not passed))
    return counts


def _confusion(counts: Counts, threshold: float) -> ConfusionMatrix:
    above = [pair for score, pair in counts.items() if score >= threshold - 1e-9]
    below = [pair for score, pair in counts.items() if score < threshold - 1e-9]
    return ConfusionMatrix(
        both_pass=sum(yes for yes, _ in above),
        judge_passes=sum(no for _, no in above),
        person_passes=sum(yes for yes, _ in below),
        both_fail=sum(no for _, no in below),
    )


def _fits(counts: Counts) -> list[ThresholdFit]:
    """Return the fit of every threshold that makes a difference: each score that was given, as the lowest to pass."""
    passing, failing = (sum(pair[side] for pair in counts.values()) for side in (0, 1))
    yes_below = no_below = 0
    fits: list[ThresholdFit] = []
    for score in sorted(counts):
        confusion = ConfusionMatrix(
            both_pass=passing - yes_below,
            judge_passes=failing - no_below,
            person_passes=yes_below,
            both_fail=no_below,
        )
        fits.append(ThresholdFit(threshold=score, confusion=confusion))
        yes, no = counts[score]
        yes_below, no_below = yes_below + yes, no_below + no
    return fits


def _best(fits: Sequence[ThresholdFit], present: float) -> ThresholdFit | None:
    """Return the fit with the highest kappa; of equal ones the one nearest to the present threshold."""
    with_kappa = [(fit.confusion.kappa, -abs(fit.threshold - present), fit) for fit in fits]
    known = [(kappa, near, fit) for kappa, near, fit in with_kappa if kappa is not None]
    return max(known, key=lambda each: each[:2])[2] if known else None


def _held_out(counts: Counts, present: float) -> float | None:
    """Return the kappa of judging each task with the threshold that fits all other tasks best."""
    cells = {(judge, person): 0 for judge in (True, False) for person in (True, False)}
    for score, (yes, no) in counts.items():
        for passed, many in ((True, yes), (False, no)):
            if not many:
                continue
            left = {**counts, score: (yes - passed, no - (not passed))}
            left = {each: pair for each, pair in left.items() if pair != (0, 0)}
            best = _best(_fits(left), present)
            if best is None:
                return None
            cells[score >= best.threshold - 1e-9, passed] += many
    matrix = ConfusionMatrix(
        both_pass=cells[True, True],
        judge_passes=cells[True, False],
        person_passes=cells[False, True],
        both_fail=cells[False, False],
    )
    return matrix.kappa
