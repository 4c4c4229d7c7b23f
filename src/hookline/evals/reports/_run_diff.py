"""Compare two saved runs of the same tasks: results, scores, calls and costs, and what got worse."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from hookline.errors import HookUsageError
from hookline.evals._costs import sum_costs
from hookline.evals.reports._run_rows import RunRows, TaskRow
from hookline.evals.reports._saved_runs import SavedRun
from hookline.evals.running import REPLAYS, Provenance, TaskResult
from hookline.evals.statistics import ModelStatistics, PairedTest, fisher_p_value, paired_test

__all__ = [
    "DiffThresholds",
    "RunDiff",
    "TaskDiff",
    "diff_runs",
    "parse_increase",
    "parse_score",
]

Increase = float | str
"""How much a figure may rise: a number in its own unit (US dollars, calls), or a percentage, as `"10%"`."""

TOLERANCE = 1e-9
"""The tolerated rounding error of binary fractions: 0.8 - 0.7 is more than 0.1."""

TASK_ALPHA = 0.01
"""How often a single task of equal runs may be called worse, over all tasks together.

It is a fifth of what the test of all tasks has, so that both together stay within 6 %.
"""


class DiffThresholds(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Limits on how much worse a later run may be than an earlier one.

    A limit without `mean` in its name applies to every task. A value that equals the limit is allowed; `None` means no
    limit.

    Attributes:
        min_score: The lowest score of a task, from 0 to 1.
        min_mean_score: The lowest mean score of the later run, from 0 to 1. Tasks count by their weight in mean scores.
        max_score_drop: How far the score of a task may fall, from 0 to 1. By default no score may fall; if only
            `max_mean_score_drop` is given, the scores of single tasks may.
        max_mean_score_drop: How far the mean score may fall, over the tasks that have a score in both runs.
        max_cost_increase: How much more a task may cost: US dollars, or a share, as `"10%"`.
        max_mean_cost_increase: How much more a task may cost in the mean, over the tasks that both runs have.
        max_calls_increase: How many more tool calls a task may make, or a share, as `"10%"`.
        max_mean_calls_increase: How many more tool calls a task may make in the mean.
        allow_missing: Whether tasks of the earlier run may be gone, not run or no longer judged in the later one.

    Raises:
        HookUsageError: If a limit is not such a number.
    """

    min_score: float | None = None
    min_mean_score: float | None = None
    max_score_drop: float | None = None
    max_mean_score_drop: float | None = None
    max_cost_increase: Increase | None = None
    max_mean_cost_increase: Increase | None = None
    max_calls_increase: Increase | None = None
    max_mean_calls_increase: Increase | None = None
    allow_missing: bool = False

    def __post_init__(self) -> None:
        for name in ("min_score", "min_mean_score", "max_score_drop", "max_mean_score_drop"):
            _check(name, getattr(self, name), parse_score)
        for name in ("max_cost_increase", "max_calls_increase", "max_mean_cost_increase", "max_mean_calls_increase"):
            _check(name, getattr(self, name), parse_increase)
        if not isinstance(self.allow_missing, bool):
            raise HookUsageError(f"`allow_missing` is True or False; got {self.allow_missing!r:.100}.")

    @property
    def allowed_drop(self) -> float | None:
        """Largest fall of the score of a single task; `None` for any fall."""
        if self.max_score_drop is None and self.max_mean_score_drop is None:
            return 0.0
        return self.max_score_drop


def parse_score(value: object) -> float:
    """Parse a score, or a difference of scores: a number from 0 to 1.

    Args:
        value: A number, or the text of one.

    Raises:
        ValueError: If it is none. The message says what is expected.
    """
    found = _number(value)
    if found is None or not 0 <= found <= 1:
        raise ValueError(f"a score is a number from 0 to 1, such as 0.05; got {value!r:.100}")
    return found


def parse_increase(value: object) -> tuple[float, bool]:
    """Parse how much a figure may rise.

    Args:
        value: A number from 0, the text of one, or a share, as `"10%"`.

    Returns:
        The limit, and whether it is a share of what the figure was.

    Raises:
        ValueError: If it is none. The message says what is expected.
    """
    share = isinstance(value, str) and value.strip().endswith("%")
    found = _number(value.strip()[:-1] if share and isinstance(value, str) else value)
    if found is None or not 0 <= found < math.inf:
        raise ValueError(f"an increase is a number from 0, such as 0.02, or a share, such as 10%; got {value!r:.100}")
    return (found / 100, True) if share else (found, False)


def _rises_beyond(before: float, after: float, limit: Increase | None) -> bool:
    """Whether a figure rises by more than the limit.

    Args:
        before: The earlier value.
        after: The later value.
        limit: The largest allowed rise; `None` for no limit.
    """
    if limit is None:
        return False
    allowed, share = parse_increase(limit)
    return _exceeds(after - before, allowed * before if share else allowed)


def _exceeds(value: float, limit: float) -> bool:
    """Whether a number is above a limit by more than rounding errors."""
    return value > limit and not math.isclose(value, limit, rel_tol=TOLERANCE, abs_tol=TOLERANCE if limit else 0.0)


def _check(name: str, value: object, parse: Callable[[object], object]) -> None:
    if value is None:
        return
    try:
        parse(value)
    except ValueError as error:
        raise HookUsageError(f"`{name}`: {error}.") from None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


Change = Literal["worse", "better", "changed", "same", "new", "gone", "not run", "higher", "lower"]

Decline = Literal["missing", "not judged", "fails", "score", "cost", "calls"]
"""A way in which a task can be worse."""


class TaskDiff(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The comparison of a task's two runs.

    The first value of each pair is run A's; `None` where the task did not run. Of a task with repeats, scores, calls
    and costs are means over its attempts.

    Attributes:
        task: The task with its suite.
        change: `"worse"`: it ran in both runs, and has `problems`. `"gone"`: run B does not have it. `"not run"`: run B
            was interrupted before it. `"new"`: only run B has it. `"better"`: it failed and passes now, or its score
            rose. `"changed"`: other calls, results, answer or cost, or a score that fell by no more than it may.
            `"higher"` and `"lower"`: its score moved, and the paired test of all tasks says what that means.
        passed: Whether it passed, in all of its attempts.
        score: The mean score of its checks.
        tool_calls: The number of its tool calls.
        cost_usd: The cost of the agent's model calls, without those of judges and simulated users; `None` if unknown.
        similarity: How alike the calls are, from 0 to 1; `None` where that cannot be said.
        identical: Whether tool results, answer and trajectory are equal byte for byte.
        alignment: Both runs' calls side by side, where they differ. Of a task with repeats, an attempt that passed in A
            and one that failed in B.
        why: The reason why it fails now.
        problems: One sentence for everything that is worse than the thresholds allow.
        tolerated: Everything that is worse within the thresholds.
        attempts: The number of its attempts.
        passes: How many of them passed.
        flaky: Whether it both passed and failed.
        weight: The weight of the task in mean scores: that of B, or of A if B does not have the task.
    """

    task: str
    change: Change
    passed: tuple[bool | None, bool | None]
    score: tuple[float | None, float | None]
    tool_calls: tuple[float | None, float | None]
    cost_usd: tuple[float | None, float | None]
    similarity: float | None
    identical: bool
    alignment: str = ""
    why: str = ""
    problems: list[str] = []
    tolerated: list[Decline] = []
    attempts: tuple[int, int] = (1, 1)
    passes: tuple[int, int] = (0, 0)
    flaky: tuple[bool, bool] = (False, False)
    weight: float = 1.0


class RunDiff(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The comparison of two runs. The first value of each pair is run A's.

    Attributes:
        tasks: Every task that either run has, in the order of A, then of B.
        passed: The number of attempts that passed.
        score: The mean of the tasks' scores, with their weights; `None` where none was checked.
        tool_calls: The number of all tool calls.
        cost_usd: The cost of the agent's model calls, without those of judges and simulated users; `None` if unknown.
        similarity: The mean of the tasks' similarities.
        thresholds: How much worse run B was allowed to be.
        problems: One sentence for every problem of the run as a whole or of its means.
        not_compared: Tasks that run A was interrupted before, and that run B does not have either.
        attempts: The number of all attempts.
        models: The models that were compared; empty for a suite's own.
        paired: Whether the paired test decides if scores got worse. Otherwise each task decides for itself.
        test: The paired test of the scores; `None` if no task has a score in both runs.
        statistics: The figures of each run.
        provenance: When, with which versions and by which command each run was made; `None` if it is unknown.
    """

    tasks: list[TaskDiff]
    passed: tuple[int, int]
    score: tuple[float | None, float | None]
    tool_calls: tuple[int, int]
    cost_usd: tuple[float | None, float | None]
    similarity: float | None
    thresholds: DiffThresholds = DiffThresholds()
    problems: list[str] = []
    not_compared: list[str] = []
    attempts: tuple[int, int] = (0, 0)
    models: tuple[str, str] = ("", "")
    paired: bool = False
    test: PairedTest | None = None
    statistics: tuple[ModelStatistics, ModelStatistics] | None = None
    provenance: tuple[Provenance | None, Provenance | None] = (None, None)

    @property
    def worse(self) -> list[TaskDiff]:
        """The tasks that are worse in B than the thresholds allow, or missing there."""
        return [task for task in self.tasks if task.problems]

    @property
    def compared(self) -> list[TaskDiff]:
        """The tasks that ran in both runs."""
        return [task for task in self.tasks if None not in task.passed]

    @property
    def judged(self) -> bool:
        """Whether anything was compared, and whether the paired test had scores if it was to decide."""
        return bool(self.compared) and not (self.paired and self.test is None)

    @property
    def ok(self) -> bool:
        """Whether nothing is worse than the thresholds allow. Meaningful only if `judged` is true."""
        return not self.problems and not self.worse

    @property
    def cannot_tell(self) -> bool:
        """Whether the paired test decides and chance alone explains the difference, so that B may be worse or not."""
        return self.ok and self.paired and self.test is not None and self.test.verdict == "cannot tell"

    @property
    def explanation(self) -> str:
        """The finding of the paired test, if it decides and is not among the problems; empty otherwise."""
        if not self.paired or self.test is None:
            return ""
        return "" if self.test.sentence.removesuffix(".") in self.problems else self.test.sentence

    @property
    def flaky(self) -> list[str]:
        """Names of the tasks that both passed and failed in B."""
        return [task.task for task in self.tasks if task.flaky[1]]

    @property
    def declines(self) -> list[str]:
        """Everything that got worse within the thresholds, in words; empty if nothing did.

        If the paired test decides, single tasks vary: costs and calls are means over the tasks then.
        """
        found: list[str] = []
        for kind, (one, several) in SENTENCES.items():
            if self.paired and kind not in ("missing", "not judged"):
                continue
            tasks = [task for task in self.tasks if kind in task.tolerated]
            if not tasks:
                continue
            more = ""
            if kind == "cost":
                more = f", by {_rise(task.cost_usd for task in tasks):.4g} USD in all"
            elif kind == "calls":
                more = f", {_rise(task.tool_calls for task in tasks):.6g} in all"
            found.append(f"{len(tasks)} {one if len(tasks) == 1 else several}{more}")
        if self.paired:
            cost, calls = _mean_rise(task.cost_usd for task in self.tasks), _mean_rise(t.tool_calls for t in self.tasks)
            if _exceeds(cost, 0.0):
                found.append(f"an attempt costs {cost:.4g} USD more in the mean")
            if _exceeds(calls, 0.0):
                found.append(f"an attempt makes {calls:.4g} more calls in the mean")
        return found


SENTENCES: dict[Decline, tuple[str, str]] = {
    "missing": ("task is missing", "tasks are missing"),
    "not judged": ("task is no longer judged", "tasks are no longer judged"),
    "fails": ("task that passed fails", "tasks that passed fail"),
    "score": ("task scores less", "tasks score less"),
    "cost": ("task costs more money", "tasks cost more money"),
    "calls": ("task makes more calls", "tasks make more calls"),
}


def diff_runs(
    a: SavedRun,
    b: SavedRun,
    *,
    thresholds: DiffThresholds | None = None,
    model: str | tuple[str, str] | None = None,
    paired: bool | None = None,
) -> RunDiff:
    """Compare two runs, task by task.

    A task of A that B does not have, or was interrupted before, is worse. Without repeats, so is one that passed and
    fails now, whose score fell, or that is no longer judged. With repeats, a task may score less by chance. The paired
    test then decides whether the scores of all tasks got worse, and a single task is worse if it passed far more often.
    Costs and calls may rise unless `thresholds` limits them.

    Args:
        a: The earlier run.
        b: The later one. It may be the same, to compare two models of it.
        thresholds: How much worse the later one may be.
        model: The model to compare if a run has several, or one for each of the two runs.
        paired: Whether the paired test decides. By default it does if a run has repeats.

    Raises:
        HookUsageError: If a run has a task twice, an invalid score or cost, or not the model; or if it has several
            models and none is chosen.
    """
    limits = thresholds if thresholds is not None else DiffThresholds()
    of_a, of_b = model if isinstance(model, tuple) else (model, model)
    # Real checks judge more strictly than a recording does, so that their scores cannot be compared.
    replays = a.mode in REPLAYS and b.mode in REPLAYS
    before, after = RunRows(a, of_a, "A", replays=replays), RunRows(b, of_b, "B", replays=replays)
    names = dict.fromkeys([*before.tasks, *after.tasks, *after.not_run])
    repeated = max(before.repeats, after.repeats) > 1
    decides = repeated if paired is None else paired
    test = _test(before, after, names)
    fallen = _find_fallen_tasks(before, after) if decides else {}
    if decides or repeated:
        tasks = [_compare_attempts(name, before, after, limits, fallen, decides=decides) for name in names]
    else:
        tasks = [_compare_results(name, before, after, limits) for name in names]
    alike = [task.similarity for task in tasks if task.similarity is not None]
    figures = (before.statistics, after.statistics)
    return RunDiff(
        tasks=tasks,
        passed=(before.passes, after.passes),
        score=(_mean_score(tasks, 0), _mean_score(tasks, 1)),
        tool_calls=(before.tool_calls, after.tool_calls),
        cost_usd=(before.cost_usd, after.cost_usd),
        similarity=_mean(alike),
        thresholds=limits,
        problems=_compare_means(tasks, limits, test if decides else None),
        not_compared=[name for name in before.not_run if name not in names],
        attempts=(before.attempts, after.attempts),
        models=(before.model, after.model),
        paired=decides,
        test=test,
        statistics=figures,
        provenance=(a.provenance, b.provenance),
    )


def _test(before: RunRows, after: RunRows, names: Iterable[str]) -> PairedTest | None:
    """Test the scores of the tasks that both runs have scores of; `None` if there are none."""
    rows = [(before.tasks[name], after.tasks[name]) for name in names if name in before.tasks and name in after.tasks]
    judged = [(a, b) for a, b in rows if a.scores and b.scores]
    if not judged:
        return None
    return paired_test([(a.scores, b.scores) for a, b in judged], weights=[b.weight for _, b in judged])


def _find_fallen_tasks(before: RunRows, after: RunRows) -> dict[str, float]:
    """Return the tasks that pass less often than chance explains, each with its p-value.

    The p-values are for all tasks together: Holm's correction of Fisher's exact tests.
    """
    found = []
    for name, a in before.tasks.items():
        b = after.tasks.get(name)
        if b is not None and a.scores and b.scores:
            chance = fisher_p_value((a.judged_passes, len(a.scores)), (b.judged_passes, len(b.scores)))
            found.append((chance, name))
    fallen: dict[str, float] = {}
    largest = 0.0
    for rank, (chance, name) in enumerate(sorted(found)):
        largest = max(largest, chance * (len(found) - rank))
        if largest > TASK_ALPHA:
            break
        fallen[name] = largest
    return fallen


def _compare_results(name: str, before: RunRows, after: RunRows, limits: DiffThresholds) -> TaskDiff:
    """Compare a task that ran at most once in each run."""
    a, b = _result(before, name), _result(after, name)
    similarity, alignment = _trajectories(a, b)
    problems, tolerated = _judge_results(a, b, limits, replays=after.run.mode in REPLAYS)
    fell = "score" in tolerated or "fails" in tolerated
    return TaskDiff(
        task=name,
        change=_change(a, b, interrupted=name in after.not_run, worse=bool(problems), fell=fell),
        passed=(None if a is None else a.ok, None if b is None else b.ok),
        score=(None if a is None else a.score, None if b is None else b.score),
        tool_calls=(None if a is None else a.tool_calls, None if b is None else b.tool_calls),
        cost_usd=(None if a is None else a.cost_usd, None if b is None else b.cost_usd),
        similarity=similarity,
        identical=_identical(a, b),
        alignment=alignment,
        why="" if b is None else b.failure or "",
        problems=problems,
        tolerated=tolerated,
        attempts=(int(a is not None), int(b is not None)),
        passes=(int(a is not None and a.ok), int(b is not None and b.ok)),
        weight=_weight(a, b),
    )


def _result(rows: RunRows, name: str, place: int | None = None) -> TaskResult | None:
    """Return the result at a place, by default the task's first one; `None` if the task did not run."""
    if place is None and name in rows.tasks:
        place = rows.tasks[name].places[0]
    return None if place is None else rows.run.results[place]


def _change(a: TaskResult | None, b: TaskResult | None, *, interrupted: bool, worse: bool, fell: bool) -> Change:
    if b is None:
        return "not run" if interrupted else "gone"
    if a is None:
        return "new"
    if worse:
        return "worse"
    if b.ok and not a.ok:
        return "better"
    if a.score is not None and b.score is not None and b.score > a.score:
        return "better"
    return "same" if not fell and _identical(a, b) and a.cost_usd == b.cost_usd else "changed"


def _judge_results(
    a: TaskResult | None, b: TaskResult | None, limits: DiffThresholds, *, replays: bool
) -> tuple[list[str], list[Decline]]:
    """Return what is worse than allowed, as sentences, and what is worse but allowed."""
    findings = Findings(limits)
    if b is None:
        did_not = "did not run in B" if a is None else "ran in A and is missing in B"
        findings.note("missing", did_not, allowed=limits.allow_missing)
        return findings.problems, findings.tolerated
    findings.check_least_score(b.score)
    if a is None:
        return findings.problems, findings.tolerated
    drop = _drop(a.score, b.score)
    may_drop = limits.allowed_drop is None or not _exceeds(drop, limits.allowed_drop)
    if a.sound and not b.sound:  # a run that broke or was refused is worse, whatever its score
        findings.problems.append(
            f"{'passed in A and fails' if a.ok else 'ended well in A and does not'} in B: {b.failure}"
        )
    elif a.ok and not b.ok:
        findings.note("fails", f"passed in A and fails in B: {b.failure}", allowed=may_drop and drop > 0)
    elif drop > 0:
        findings.note("score", f"its score fell from {a.score:.4g} to {b.score:.4g}", allowed=may_drop)
    elif a.score is not None and b.score is None:
        findings.note("not judged", NO_LONGER_JUDGED, allowed=limits.allow_missing or replays)
    findings.check_rises((a.cost_usd, b.cost_usd), (a.tool_calls, b.tool_calls))
    return findings.problems, findings.tolerated


def _compare_attempts(
    name: str,
    before: RunRows,
    after: RunRows,
    limits: DiffThresholds,
    fallen: Mapping[str, float],
    *,
    decides: bool,
) -> TaskDiff:
    """Compare the attempts of a task.

    Args:
        name: The task.
        before: Run A.
        after: Run B.
        limits: How much worse B may be.
        fallen: The tasks that pass less often than chance explains.
        decides: Whether the paired test decides if scores got worse.
    """
    a, b = before.tasks.get(name), after.tasks.get(name)
    scores = (None if a is None else a.score, None if b is None else b.score)
    problems, tolerated = _judge_attempts(
        a,
        b,
        limits,
        fallen.get(name),
        decides=decides,
        missing=after.run.repeat - b.attempts if b is not None and name in after.not_run else 0,
        replays=after.run.mode in REPLAYS,
    )
    similarity, alignment, identical = None, "", False
    if a is not None and b is not None:
        if a.attempts == b.attempts == 1:
            one, other = _result(before, name), _result(after, name)
            similarity, alignment = _trajectories(one, other)
            identical = _identical(one, other)
        elif a.first_pass is not None and b.first_fail is not None and _drop(*scores) > 0:
            alignment = _trajectories(_result(before, name, a.first_pass), _result(after, name, b.first_fail))[1]
    change: Change = "same"
    if b is None:
        change = "not run" if name in after.not_run else "gone"
    elif a is None:
        change = "new"
    elif problems:
        change = "worse"
    elif _drop(*scores):
        change = "lower" if _drop(*scores) > 0 else "higher"
    elif not identical and a.attempts == b.attempts == 1:
        change = "changed"
    return TaskDiff(
        task=name,
        change=change,
        passed=(None if a is None else a.passes == a.attempts, None if b is None else b.passes == b.attempts),
        score=scores,
        tool_calls=(None if a is None else a.mean_tool_calls, None if b is None else b.mean_tool_calls),
        cost_usd=(None if a is None else a.mean_cost_usd, None if b is None else b.mean_cost_usd),
        similarity=similarity,
        identical=identical,
        alignment=alignment,
        why="" if b is None else b.failure,
        problems=problems,
        tolerated=tolerated,
        attempts=(0 if a is None else a.attempts, 0 if b is None else b.attempts),
        passes=(0 if a is None else a.passes, 0 if b is None else b.passes),
        flaky=(a is not None and a.flaky, b is not None and b.flaky),
        weight=_weight(a, b),
    )


def _weight(a: TaskRow | TaskResult | None, b: TaskRow | TaskResult | None) -> float:
    """Return the weight of a task: of its later version, as both means need the same weights."""
    return b.weight if b is not None else a.weight if a is not None else 1.0


def _judge_attempts(
    a: TaskRow | None,
    b: TaskRow | None,
    limits: DiffThresholds,
    chance: float | None,
    *,
    decides: bool,
    missing: int,
    replays: bool,
) -> tuple[list[str], list[Decline]]:
    """Return what is worse than allowed, as sentences, and what is worse but allowed.

    Args:
        a: The task in run A.
        b: The task in run B.
        limits: How much worse B may be.
        chance: How likely equal runs differ so much, if that is too unlikely.
        decides: Whether the paired test decides if scores got worse.
        missing: The attempts of the task that B was interrupted before.
        replays: Whether a recording judged B.
    """
    findings = Findings(limits)
    if b is None:
        did_not = "did not run in B" if a is None else "ran in A and is missing in B"
        findings.note("missing", did_not, allowed=limits.allow_missing)
        return findings.problems, findings.tolerated
    if missing:
        which = f"{b.attempts} of {b.attempts + missing} attempts"
        findings.note("missing", f"was interrupted in B after {which}", allowed=limits.allow_missing)
    findings.check_least_score(b.score)
    if a is None:
        return findings.problems, findings.tolerated
    drop, chosen = _drop(a.score, b.score), limits.max_score_drop is not None
    if drop > 0:
        if chosen or not decides:
            allowed = limits.allowed_drop is None or not _exceeds(drop, limits.allowed_drop)
        else:  # single tasks may vary if only their mean is limited
            allowed = chance is None or limits.allowed_drop is None
        sentence = f"its mean score fell from {a.score:.4g} to {b.score:.4g}"
        if chance is not None:
            sentence = (
                f"passed {a.judged_passes} of {len(a.scores)} attempts in A and {b.judged_passes} of {len(b.scores)} "
                f"in B (p = {chance:.2g}): {b.failure}"
            )
        findings.note("score", sentence, allowed=allowed)
    elif a.scores and not b.scores:
        findings.note("not judged", NO_LONGER_JUDGED, allowed=limits.allow_missing or replays)
    findings.check_rises((a.mean_cost_usd, b.mean_cost_usd), (a.mean_tool_calls, b.mean_tool_calls))
    return findings.problems, findings.tolerated


NO_LONGER_JUDGED = "was judged in A and is not judged in B"


class Findings:
    """The declines of a task: problems, and declines that the limits allow."""

    def __init__(self, limits: DiffThresholds) -> None:
        self.limits = limits
        self.problems: list[str] = []
        self.tolerated: list[Decline] = []

    def note(self, kind: Decline, sentence: str, *, allowed: bool) -> None:
        """Note something that is worse."""
        if allowed:
            self.tolerated.append(kind)
        else:
            self.problems.append(sentence)

    def check_least_score(self, score: float | None) -> None:
        """Compare the score in B with the lowest one that is allowed."""
        least = self.limits.min_score
        if least is not None and score is not None and _exceeds(least, score):
            self.problems.append(f"scores {score:.4g}, and {least:.4g} is the least")

    def check_rises(self, cost: tuple[float | None, float | None], calls: tuple[float, float]) -> None:
        """Compare costs and calls with what they may rise by. A cost that is unknown may be any."""
        before, after = cost
        if before is None or after is None:
            if self.limits.max_cost_increase is not None:
                which = " and ".join(run for run, one in (("A", before), ("B", after)) if one is None)
                self.problems.append(f"its cost in {which} is unknown, and an increase is limited")
        elif _exceeds(after, before):
            allowed = not _rises_beyond(before, after, self.limits.max_cost_increase)
            self.note("cost", f"costs {after:.4g} USD after {before:.4g}", allowed=allowed)
        if _exceeds(calls[1], calls[0]):
            allowed = not _rises_beyond(*calls, self.limits.max_calls_increase)
            self.note("calls", f"makes {calls[1]:.4g} tool calls after {calls[0]:.4g}", allowed=allowed)


def _drop(before: float | None, after: float | None) -> float:
    """Return how far a score fell, without rounding errors; 0 if one is missing."""
    drop = before - after if before is not None and after is not None else 0.0
    return 0.0 if math.isclose(drop, 0.0, abs_tol=TOLERANCE) else drop


def _compare_means(tasks: Sequence[TaskDiff], limits: DiffThresholds, test: PairedTest | None) -> list[str]:
    """Describe which means are worse than allowed.

    Args:
        tasks: The tasks.
        limits: How much worse B may be.
        test: The paired test, if it decides.
    """
    found: list[str] = []
    mean = _mean_score(tasks, 1)
    if mean is None and (limits.min_score is not None or limits.min_mean_score is not None):
        found.append("No task of B has a score, and a least score is asked for")
    elif mean is not None and limits.min_mean_score is not None and _exceeds(limits.min_mean_score, mean):
        found.append(f"The mean score of B is {mean:.4g}, and {limits.min_mean_score:.4g} is the least")
    judged = [task for task in tasks if None not in task.score]
    before, after = (_mean_score(judged, side) or 0.0 for side in (0, 1))
    if limits.max_mean_score_drop is not None:
        if _exceeds(before - after, limits.max_mean_score_drop):
            found.append(f"The mean score fell from {before:.4g} to {after:.4g}")
    elif test is not None and test.verdict == "worse":
        found.append(test.sentence.removesuffix("."))
    ran = [task for task in tasks if None not in task.passed]
    if not ran:
        return found
    before_cost, after_cost = (sum_costs(task.cost_usd[side] for task in ran) for side in (0, 1))
    if before_cost is None or after_cost is None:
        if limits.max_mean_cost_increase is not None:
            found.append("The mean cost of a task is unknown, and its increase is limited")
    elif _rises_beyond(before_cost / len(ran), after_cost / len(ran), limits.max_mean_cost_increase):
        costs = before_cost / len(ran), after_cost / len(ran)
        found.append(f"The mean cost of a task rose from {costs[0]:.4g} to {costs[1]:.4g} USD")
    calls = [sum(task.tool_calls[side] or 0 for task in ran) / len(ran) for side in (0, 1)]
    if _rises_beyond(calls[0], calls[1], limits.max_mean_calls_increase):
        found.append(f"The mean number of tool calls of a task rose from {calls[0]:.4g} to {calls[1]:.4g}")
    return found


def _identical(a: TaskResult | None, b: TaskResult | None) -> bool:
    if a is None or b is None:
        return False
    same = (a.tool_results, a.output, a.reason) == (b.tool_results, b.output, b.reason)
    return same and a.trajectory.encode() == b.trajectory.encode()


def _trajectories(a: TaskResult | None, b: TaskResult | None) -> tuple[float | None, str]:
    if a is None or b is None:
        return None, ""
    try:
        found = b.trajectory.match(a.trajectory, mode="strict")
    except HookUsageError as error:  # too many calls to align
        return None, str(error)
    return found.score, "" if found.ok else str(found)


def _mean_score(tasks: Iterable[TaskDiff], side: int) -> float | None:
    """Return the mean score of a run's tasks, with their weights; `None` if none has a score."""
    scores = [(score, task.weight) for task in tasks if (score := task.score[side]) is not None]
    whole = math.fsum(weight for _, weight in scores)
    return min(math.fsum(score * weight for score, weight in scores) / whole, 1.0) if scores else None


def _rise(pairs: Iterable[tuple[float | None, float | None]]) -> float:
    return sum((after or 0) - (before or 0) for before, after in pairs)


def _mean_rise(pairs: Iterable[tuple[float | None, float | None]]) -> float:
    """Return how much more there is in B in the mean, over the tasks that both runs have."""
    return _mean(after - before for before, after in pairs if before is not None and after is not None) or 0.0


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
