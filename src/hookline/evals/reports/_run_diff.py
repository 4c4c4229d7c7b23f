"""Compare two saved runs of the same tasks: results, scores, calls and costs, and what got worse."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from hookline.errors import HookUsageError
from hookline.evals.reports._saved_runs import SavedRun, contradiction_in
from hookline.evals.running import REPLAYS, TaskResult

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


class DiffThresholds(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How much worse a later run may be than an earlier one.

    A limit without `mean` in its name applies to every task. A value that equals the limit is allowed; `None` means no
    limit.

    Attributes:
        min_score: The lowest score of a task, from 0 to 1.
        min_mean_score: The lowest mean score of the later run, from 0 to 1.
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
        """How far the score of a single task may fall; `None` for any fall."""
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


Change = Literal["worse", "better", "changed", "same", "new", "gone", "not run"]

Decline = Literal["missing", "not judged", "fails", "score", "cost", "calls"]
"""A way in which a task can be worse."""


class TaskDiff(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The comparison of a task's two runs.

    The first value of each pair is run A's; `None` where the task did not run.

    Attributes:
        task: The task with its suite.
        change: `"worse"`: it ran in both runs, and has `problems`. `"gone"`: run B does not have it. `"not run"`: run B
            was interrupted before it. `"new"`: only run B has it. `"better"`: it failed and passes now, or its score
            rose. `"changed"`: other calls, results, answer or cost, or a score that fell by no more than it may.
        passed: Whether it passed.
        score: The mean score of its checks.
        tool_calls: The number of its tool calls.
        cost_usd: The cost of its model calls.
        similarity: How alike the calls are, from 0 to 1; `None` where that cannot be said.
        identical: Whether tool results, answer and trajectory are equal byte for byte.
        alignment: Both runs' calls side by side, where they differ.
        why: The reason why it fails now.
        problems: One sentence for everything that is worse than the thresholds allow.
        tolerated: Everything that is worse within the thresholds.
    """

    task: str
    change: Change
    passed: tuple[bool | None, bool | None]
    score: tuple[float | None, float | None]
    tool_calls: tuple[int | None, int | None]
    cost_usd: tuple[float | None, float | None]
    similarity: float | None
    identical: bool
    alignment: str = ""
    why: str = ""
    problems: list[str] = []
    tolerated: list[Decline] = []


class RunDiff(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The comparison of two runs. The first value of each pair is run A's.

    Attributes:
        tasks: Every task that either run has, in the order of A, then of B.
        passed: The number of tasks that passed.
        score: The mean of the tasks' scores; `None` where none was checked.
        tool_calls: The number of all tool calls.
        cost_usd: The cost of all model calls.
        similarity: The mean of the tasks' similarities.
        thresholds: How much worse run B was allowed to be.
        problems: One sentence for every problem of the run as a whole or of its means.
        not_compared: Tasks that run A was interrupted before, and that run B does not have either.
    """

    tasks: list[TaskDiff]
    passed: tuple[int, int]
    score: tuple[float | None, float | None]
    tool_calls: tuple[int, int]
    cost_usd: tuple[float, float]
    similarity: float | None
    thresholds: DiffThresholds = DiffThresholds()
    problems: list[str] = []
    not_compared: list[str] = []

    @property
    def worse(self) -> list[TaskDiff]:
        """The tasks that are worse in B than the thresholds allow, or missing there."""
        return [task for task in self.tasks if task.problems]

    @property
    def compared(self) -> list[TaskDiff]:
        """The tasks that ran in both runs."""
        return [task for task in self.tasks if None not in task.passed]

    @property
    def ok(self) -> bool:
        """Whether nothing is worse than the thresholds allow. Meaningful only if `compared` is not empty."""
        return not self.problems and not self.worse

    @property
    def declines(self) -> list[str]:
        """Everything that got worse within the thresholds, in words; empty if nothing did."""
        found: list[str] = []
        for kind, (one, several) in SENTENCES.items():
            tasks = [task for task in self.tasks if kind in task.tolerated]
            if not tasks:
                continue
            more = ""
            if kind == "cost":
                more = f", by {_rise(task.cost_usd for task in tasks):.4g} USD in all"
            elif kind == "calls":
                more = f", {_rise(task.tool_calls for task in tasks)} in all"
            found.append(f"{len(tasks)} {one if len(tasks) == 1 else several}{more}")
        return found


SENTENCES: dict[Decline, tuple[str, str]] = {
    "missing": ("task is missing", "tasks are missing"),
    "not judged": ("task is no longer judged", "tasks are no longer judged"),
    "fails": ("task that passed fails", "tasks that passed fail"),
    "score": ("task scores less", "tasks score less"),
    "cost": ("task costs more money", "tasks cost more money"),
    "calls": ("task makes more calls", "tasks make more calls"),
}


def diff_runs(a: SavedRun, b: SavedRun, *, thresholds: DiffThresholds | None = None) -> RunDiff:
    """Compare two runs, task by task.

    A task of A that B does not have, or was interrupted before, is worse; so is one that passed and fails now, whose
    score fell, or that is no longer judged. Costs and calls may rise unless `thresholds` limits them.

    Args:
        a: The earlier run.
        b: The later one.
        thresholds: How much worse the later one may be.

    Raises:
        HookUsageError: If a run has a task twice, or an invalid score or cost.
    """
    limits = thresholds if thresholds is not None else DiffThresholds()
    for run, name in ((a, "A"), (b, "B")):
        problem = contradiction_in(run)
        if problem is not None:
            raise HookUsageError(f"Run {name} cannot be compared: {problem}.")
    before, after = ({result.name: result for result in run.results} for run in (a, b))
    names = dict.fromkeys([*before, *after, *b.not_run])
    not_run, replays = frozenset(b.not_run), b.mode in REPLAYS
    tasks = [_task(name, before.get(name), after.get(name), limits, not_run, replays=replays) for name in names]
    alike = [task.similarity for task in tasks if task.similarity is not None]
    return RunDiff(
        tasks=tasks,
        passed=(sum(result.ok for result in a.results), sum(result.ok for result in b.results)),
        score=(_mean(_scores(a.results)), _mean(_scores(b.results))),
        tool_calls=(sum(result.tool_calls for result in a.results), sum(result.tool_calls for result in b.results)),
        cost_usd=(sum(result.cost_usd for result in a.results), sum(result.cost_usd for result in b.results)),
        similarity=_mean(alike),
        thresholds=limits,
        problems=_compare_means(tasks, b, limits),
        not_compared=[name for name in a.not_run if name not in names],
    )


def _task(
    name: str,
    a: TaskResult | None,
    b: TaskResult | None,
    limits: DiffThresholds,
    not_run: frozenset[str],
    *,
    replays: bool,
) -> TaskDiff:
    similarity, alignment = _trajectories(a, b)
    problems, tolerated = _compare_tasks(a, b, limits, replays=replays)
    fell = "score" in tolerated or "fails" in tolerated
    return TaskDiff(
        task=name,
        change=_change(a, b, interrupted=name in not_run, worse=bool(problems), fell=fell),
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
    )


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


def _compare_tasks(
    a: TaskResult | None, b: TaskResult | None, limits: DiffThresholds, *, replays: bool
) -> tuple[list[str], list[Decline]]:
    """Return what is worse than allowed, as sentences, and what is worse but allowed."""
    problems: list[str] = []
    tolerated: list[Decline] = []

    def note(kind: Decline, sentence: str, *, allowed: bool) -> None:
        if allowed:
            tolerated.append(kind)
        else:
            problems.append(sentence)

    if b is None:
        did_not = "did not run in B" if a is None else "ran in A and is missing in B"
        note("missing", did_not, allowed=limits.allow_missing)
        return problems, tolerated
    if limits.min_score is not None and b.score is not None and _exceeds(limits.min_score, b.score):
        problems.append(f"scores {b.score:.4g}, and {limits.min_score:.4g} is the least")
    if a is None:
        return problems, tolerated
    drop = a.score - b.score if a.score is not None and b.score is not None else 0.0
    drop = 0.0 if math.isclose(drop, 0.0, abs_tol=TOLERANCE) else drop  # rounding errors
    may_drop = limits.allowed_drop is None or not _exceeds(drop, limits.allowed_drop)
    if a.sound and not b.sound:  # a run that broke or was refused is worse, whatever its score
        problems.append(f"{'passed in A and fails' if a.ok else 'ended well in A and does not'} in B: {b.failure}")
    elif a.ok and not b.ok:
        note("fails", f"passed in A and fails in B: {b.failure}", allowed=may_drop and drop > 0)
    elif drop > 0:
        note("score", f"its score fell from {a.score:.4g} to {b.score:.4g}", allowed=may_drop)
    elif a.score is not None and b.score is None:
        note("not judged", "was judged in A and is not judged in B", allowed=limits.allow_missing or replays)
    if _exceeds(b.cost_usd, a.cost_usd):
        allowed = not _rises_beyond(a.cost_usd, b.cost_usd, limits.max_cost_increase)
        note("cost", f"costs {b.cost_usd:.4g} USD after {a.cost_usd:.4g}", allowed=allowed)
    if b.tool_calls > a.tool_calls:
        allowed = not _rises_beyond(a.tool_calls, b.tool_calls, limits.max_calls_increase)
        note("calls", f"makes {b.tool_calls} tool calls after {a.tool_calls}", allowed=allowed)
    return problems, tolerated


def _compare_means(tasks: Sequence[TaskDiff], b: SavedRun, limits: DiffThresholds) -> list[str]:
    """Describe which means are worse than allowed."""
    found: list[str] = []
    scores = _scores(b.results)
    mean = _mean(scores)
    if mean is None and (limits.min_score is not None or limits.min_mean_score is not None):
        found.append("No task of B has a score, and a least score is asked for")
    elif mean is not None and limits.min_mean_score is not None and _exceeds(limits.min_mean_score, mean):
        found.append(f"The mean score of B is {mean:.4g}, and {limits.min_mean_score:.4g} is the least")
    judged = [task.score for task in tasks if None not in task.score]
    before, after = (_mean([pair[side] or 0.0 for pair in judged]) or 0.0 for side in (0, 1))
    if limits.max_mean_score_drop is not None and _exceeds(before - after, limits.max_mean_score_drop):
        found.append(f"The mean score fell from {before:.4g} to {after:.4g}")
    ran = [task for task in tasks if None not in task.passed]
    if not ran:
        return found
    costs = [sum(task.cost_usd[side] or 0.0 for task in ran) / len(ran) for side in (0, 1)]
    if _rises_beyond(costs[0], costs[1], limits.max_mean_cost_increase):
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


def _scores(results: Sequence[TaskResult]) -> list[float]:
    return [result.score for result in results if result.score is not None]


def _rise(pairs: Iterable[tuple[float | None, float | None]]) -> float:
    return sum((after or 0) - (before or 0) for before, after in pairs)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
