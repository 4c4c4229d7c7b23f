"""Agreement beyond chance: Krippendorff's alpha of graded verdicts, Cohen's kappa of two yes-or-no verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from hookline.evals.running import TaskResult

__all__ = ["ConfusionMatrix", "JudgeAgreement", "judge_agreement", "krippendorff_alpha"]


class RatingSums:
    """Sums over the ratings of many units, from which Krippendorff's alpha follows: no unit is kept.

    Attributes:
        units: The number of units with at least two ratings; the others say nothing about agreement.
        ratings: The number of their ratings.
    """

    def __init__(self) -> None:
        self.units = self.ratings = 0
        self._within = self._sum = self._squares = 0.0

    def add(self, ratings: Sequence[float | None]) -> None:
        """Add the ratings of one unit; `None` for a rater who gave none."""
        values = [value for value in ratings if value is not None]
        count = len(values)
        if count < 2:
            return
        total, squares = math.fsum(values), math.fsum(value * value for value in values)
        self.units += 1
        self.ratings += count
        # The squared differences of all pairs of a unit, in one step.
        self._within += 2 * (count * squares - total * total) / (count - 1)
        self._sum += total
        self._squares += squares

    @property
    def alpha(self) -> float | None:
        """Krippendorff's alpha; `None` if there are no pairs, or all ratings are equal."""
        if self.ratings < 2:
            return None
        all_pairs = 2 * (self.ratings * self._squares - self._sum * self._sum)
        expected = all_pairs / (self.ratings * (self.ratings - 1))
        if expected <= 1e-12:
            return None
        return 1 - max(self._within, 0.0) / self.ratings / expected


def krippendorff_alpha(units: Iterable[Sequence[float | None]]) -> float | None:
    """Compute how far raters agree beyond chance: 1 for complete agreement, 0 for that of chance, less for worse.

    It is the alpha of interval data, whose steps are equal: grades and their scores, and also yes and no as 1 and 0.

    Args:
        units: The ratings of each rated thing, one for each rater; `None` where a rater gave none.

    Returns:
        The alpha; `None` if no thing has two ratings, or all ratings are equal, so that chance agrees as well.

    Source:
        K. Krippendorff, "Computing Krippendorff's Alpha-Reliability", 2011, section C.
    """
    sums = RatingSums()
    for ratings in units:
        sums.add(ratings)
    return sums.alpha


class ConfusionMatrix(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Counts of how often two raters said yes and no; the judge comes first, the person second.

    Attributes:
        both_pass: Both passed the task.
        judge_passes: The judge passed it, the person did not.
        person_passes: The person passed it, the judge did not.
        both_fail: Neither passed it.
    """

    both_pass: int = 0
    judge_passes: int = 0
    person_passes: int = 0
    both_fail: int = 0

    @property
    def count(self) -> int:
        """The number of rated tasks."""
        return self.both_pass + self.judge_passes + self.person_passes + self.both_fail

    @property
    def agreement(self) -> float | None:
        """The share of tasks about which both say the same; `None` without tasks."""
        return (self.both_pass + self.both_fail) / self.count if self.count else None

    @property
    def kappa(self) -> float | None:
        """Cohen's kappa, the agreement beyond chance; `None` if chance would agree always, or without tasks.

        Source:
            J. Cohen, "A Coefficient of Agreement for Nominal Scales", 1960.
        """
        chance = self._chance
        if self.agreement is None or chance >= 1:
            return None
        return (self.agreement - chance) / (1 - chance)

    @property
    def kappa_interval(self) -> tuple[float, float] | None:
        """The interval of 95 % around kappa; `None` if there is no kappa. Too narrow for a few dozen tasks.

        Source:
            J. L. Fleiss, J. Cohen and B. S. Everitt, "Large Sample Standard Errors of Kappa and Weighted Kappa", 1969.
        """
        kappa, chance, count = self.kappa, self._chance, self.count
        if kappa is None:
            return None
        judge, person = self._shares
        cells = {
            (0, 0): self.both_pass / count,
            (0, 1): self.judge_passes / count,
            (1, 0): self.person_passes / count,
            (1, 1): self.both_fail / count,
        }
        agreed = sum(cells[i, i] * (1 - (judge[i] + person[i]) * (1 - kappa)) ** 2 for i in (0, 1))
        differed = sum(cells[i, 1 - i] * (person[i] + judge[1 - i]) ** 2 for i in (0, 1)) * (1 - kappa) ** 2
        variance = (agreed + differed - (kappa - chance * (1 - kappa)) ** 2) / ((1 - chance) ** 2 * count)
        reach = 1.959964 * math.sqrt(max(variance, 0.0))
        return max(kappa - reach, -1.0), min(kappa + reach, 1.0)

    @property
    def _shares(self) -> tuple[tuple[float, float], tuple[float, float]]:
        judge = (self.both_pass + self.judge_passes) / self.count
        person = (self.both_pass + self.person_passes) / self.count
        return (judge, 1 - judge), (person, 1 - person)

    @property
    def _chance(self) -> float:
        if not self.count:
            return 1.0
        judge, person = self._shares
        return judge[0] * person[0] + judge[1] * person[1]


class JudgeAgreement(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Agreement of the models of a judge over the tasks of a run.

    Attributes:
        check: The name of the check.
        models: The models, in the order in which they were asked.
        means: The mean score that each of them gave; `None` for one without a verdict.
        tasks: The number of tasks about which at least two of them gave a score.
        missing: The number of verdicts without a score.
        alpha: Krippendorff's alpha; `None` if all scores are equal, or no task has two.
    """

    check: str
    models: list[str]
    means: list[float | None]
    tasks: int
    missing: int
    alpha: float | None


class _Panel:
    """The ratings of the models of one check, counted."""

    def __init__(self, models: list[str]) -> None:
        self.models = models
        self.sums = RatingSums()
        self.totals = [0.0] * len(models)
        self.counts = [0] * len(models)
        self.missing = 0


def judge_agreement(results: Iterable[TaskResult]) -> list[JudgeAgreement]:
    """Compute how far the models of each judge agree, for judges with several models.

    The measure is Krippendorff's alpha for interval data. Kappas are for verdicts without order, Cohen's for exactly
    two raters, Fleiss' for the same number of ratings of each task. Grades have an order with equal steps, and
    any number of models gives them, of which some may have no verdict about a task.

    Args:
        results: The results of a run. They are read once and not kept.

    Returns:
        One for each check that several models judged, in the order in which they are found.
    """
    panels: dict[tuple[str, tuple[str, ...]], _Panel] = {}
    for result in results:
        for check in result.checks:
            verdicts = [] if check.judgement is None else check.judgement.verdicts
            if len(verdicts) < 2:
                continue
            models = tuple(verdict.model for verdict in verdicts)
            panel = panels.setdefault((check.name, models), _Panel(list(models)))
            scores = [verdict.score for verdict in verdicts]
            panel.sums.add(scores)
            panel.missing += scores.count(None)
            for place, score in enumerate(scores):
                if score is not None:
                    panel.totals[place] += score
                    panel.counts[place] += 1
    return [
        JudgeAgreement(
            check=name,
            models=panel.models,
            means=[total / count if count else None for total, count in zip(panel.totals, panel.counts, strict=True)],
            tasks=panel.sums.units,
            missing=panel.missing,
            alpha=panel.sums.alpha,
        )
        for (name, _), panel in panels.items()
    ]
