"""Compute the figures of a run: pass rate, score, checks, tags, cost, tokens and latency, for each of its models."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import msgspec

from hookline.evals._costs import sum_costs
from hookline.evals.running import REPLAYS, Mode, TaskResult, attempt_score, clamp_score
from hookline.evals.statistics._estimates import Estimate, estimate_mean, mean_interval, pass_at_k, pass_hat_k
from hookline.evals.statistics._percentiles import Percentiles

__all__ = [
    "CheckStatistics",
    "MeasuredRun",
    "ModelStatistics",
    "RunStatistics",
    "TagStatistics",
    "TaskStatistics",
]

STEPS = (1, 2, 3, 4, 5, 10, 20, 50, 100)
"""The `k` of pass@k and pass^k, beside the number of repeats itself."""


class MeasuredRun(Protocol):
    """A run: one in memory, or a saved one."""

    @property
    def mode(self) -> Mode:
        """The mode of the run, which says who answered the tool calls."""
        ...

    @property
    def results(self) -> Iterable[TaskResult]:
        """The results, which are read once."""
        ...


class TaskStatistics(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The figures of one task with one model, over its attempts.

    Attributes:
        task: The task with its suite.
        attempts: How often it ran.
        judged: How many attempts were judged.
        passes: How many attempts passed.
        passed: The share of judged attempts that passed, with its interval; `None` if none was judged.
        score: The mean score, with its interval; `None` if no attempt was judged.
        flaky: Whether some judged attempts passed and some failed.
        steps: Steps of an attempt, in the mean.
        tool_calls: Tool calls of an attempt, in the mean.
        cost_usd: The cost of the agent in an attempt, in the mean; `None` if it is unknown.
        judge_cost_usd: The cost of checks that ask models, in the mean. It is not in `cost_usd`.
        user_cost_usd: The cost of a simulated user, in the mean. It is not in `cost_usd`.
        tokens: Tokens that an attempt read and wrote, in the mean.
        duration_ms: The duration of an attempt, in the mean.
        failure: Why the first failed attempt failed; empty if none did.
        tags: The tags of the task.
        weight: The weight of the task in mean scores.
    """

    task: str
    attempts: int
    judged: int
    passes: int
    passed: Estimate | None
    score: Estimate | None
    flaky: bool
    steps: float
    tool_calls: float
    cost_usd: float | None
    judge_cost_usd: float
    user_cost_usd: float
    tokens: float
    duration_ms: float
    failure: str
    tags: list[str]
    weight: float


class CheckStatistics(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The figures of one check over all tasks that have it.

    Attributes:
        check: The name of the check.
        tasks: The tasks that have it.
        attempts: The attempts that it judged.
        passed: The share that passed: the mean over tasks, with its interval.
        score: The mean score over tasks, with their weights and its interval.
    """

    check: str
    tasks: int
    attempts: int
    passed: Estimate
    score: Estimate


class TagStatistics(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The figures of the tasks with one tag.

    Attributes:
        tag: The tag.
        tasks: The tasks that have it.
        attempts: Their attempts.
        passed: The share of attempts that passed: the mean over tasks; `None` if none was judged.
        score: The mean score over tasks, with their weights; `None` if none was judged.
        cost_usd: The cost of the agent in their attempts together; `None` if it is unknown.
        judge_cost_usd: The cost of checks that ask models, together.
        user_cost_usd: The cost of simulated users, together.
    """

    tag: str
    tasks: int
    attempts: int
    passed: Estimate | None
    score: Estimate | None
    cost_usd: float | None
    judge_cost_usd: float
    user_cost_usd: float


class ModelStatistics(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The figures of all attempts with one model.

    Intervals are about tasks like these: a task counts once, however often it was repeated. Mean scores count each task
    by its weight; shares of attempts that passed, pass@k and pass^k do not.

    Attributes:
        model: The model that was chosen for the run; empty if the suites' own models answered.
        tasks: The tasks that ran.
        attempts: Their attempts.
        judged: How many attempts were judged.
        passes: How many attempts passed.
        passed: The share of attempts that passed: the mean over tasks; `None` if none was judged.
        score: The mean score over tasks, with their weights; `None` if none was judged.
        pass_at_k: By `k`, how likely at least one of `k` attempts passes, over the tasks with so many judged attempts.
        pass_hat_k: By `k`, how likely `k` attempts all pass: pass^k.
        cost_usd: The cost of the agent in an attempt, in US dollars; `None` if that of any attempt is unknown.
        judge_cost_usd: The cost of the checks of an attempt that ask models. It is not in `cost_usd`.
        user_cost_usd: The cost of the simulated user of an attempt. It is not in `cost_usd`.
        input_tokens: Tokens that the agent read in an attempt.
        output_tokens: Tokens that it wrote.
        duration_ms: The duration of an attempt.
        checks: The figures of each check, in the order in which they were met.
        tags: The figures of each tag, in that order.
        per_task: The figures of each task, in that order.
    """

    model: str
    tasks: int
    attempts: int
    judged: int
    passes: int
    passed: Estimate | None
    score: Estimate | None
    pass_at_k: dict[int, Estimate]
    pass_hat_k: dict[int, Estimate]
    cost_usd: Percentiles | None
    judge_cost_usd: Percentiles
    user_cost_usd: Percentiles
    input_tokens: Percentiles
    output_tokens: Percentiles
    duration_ms: Percentiles
    checks: list[CheckStatistics]
    tags: list[TagStatistics]
    per_task: list[TaskStatistics]

    @property
    def total_cost_usd(self) -> float | None:
        """The cost of the agent in all attempts; `None` if it is unknown."""
        return None if self.cost_usd is None else self.cost_usd.total

    @property
    def mean_cost_usd(self) -> float | None:
        """The cost of the agent in an attempt, in the mean; `None` if it is unknown."""
        return None if self.cost_usd is None else self.cost_usd.mean

    @property
    def weighted(self) -> bool:
        """Whether the weights of the tasks differ, so that mean scores are not those of equal tasks."""
        return len({task.weight for task in self.per_task}) > 1

    @property
    def flaky(self) -> list[str]:
        """Names of the tasks that both passed and failed."""
        return [task.task for task in self.per_task if task.flaky]


class RunStatistics(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All figures of a run.

    Attributes:
        repeats: The largest number of attempts of a task.
        models: The figures of each model, in the order in which they were met. A run without any result has none.
    """

    repeats: int
    models: list[ModelStatistics]

    @classmethod
    def of(cls, run: MeasuredRun) -> RunStatistics:
        """Compute the figures of a run.

        The results are read once. What is kept of each does not grow with its calls.

        Args:
            run: The run, or a saved one.
        """
        models: dict[str, ModelTally] = {}
        replays = run.mode in REPLAYS
        for result in run.results:
            if result.model not in models:
                models[result.model] = ModelTally()
            models[result.model].add(result, replays=replays)
        return cls(
            repeats=max((task.attempts for tally in models.values() for task in tally.tasks.values()), default=0),
            models=[tally.statistics(model) for model, tally in models.items()],
        )


class Mean:
    """A mean that values are added to."""

    __slots__ = ("count", "squares", "total")

    def __init__(self) -> None:
        self.count, self.total, self.squares = 0, 0.0, 0.0

    def add(self, value: float) -> None:
        """Add a value."""
        self.count += 1
        self.total += value
        self.squares += value * value

    @property
    def value(self) -> float:
        """The mean; 0 of no values."""
        return self.total / self.count if self.count else 0.0

    def estimate(self) -> Estimate | None:
        """Return the mean of independent scores with its interval; `None` if there are none."""
        if not self.count:
            return None
        mean = clamp_score(self.value)
        low, high = mean_interval(mean, max(self.squares / self.count - mean * mean, 0.0), self.count)
        return Estimate(mean=mean, low=low, high=high, count=self.count)


class TaskTally:
    """The sums over the attempts of a task."""

    __slots__ = (
        "attempts",
        "cost",
        "duration",
        "failure",
        "judge_cost",
        "passes",
        "score",
        "steps",
        "tags",
        "tokens",
        "tool_calls",
        "user_cost",
        "weight",
    )

    def __init__(self) -> None:
        self.attempts, self.passes = 0, 0
        self.score = Mean()
        self.steps, self.tool_calls, self.tokens, self.duration = 0, 0, 0, 0.0
        self.cost: float | None = 0.0
        self.judge_cost, self.user_cost = 0.0, 0.0
        self.weight = 1.0
        self.failure = ""
        self.tags: list[str] = []

    def add(self, result: TaskResult, score: float | None) -> None:
        """Add an attempt."""
        self.attempts += 1
        self.steps += result.steps
        self.tool_calls += result.tool_calls
        self.cost = sum_costs((self.cost, result.cost_usd))
        self.judge_cost += result.judge_usage.cost_usd
        self.user_cost += result.user_usage.cost_usd
        self.weight = result.weight
        self.tokens += result.input_tokens + result.output_tokens
        self.duration += result.duration_ms
        self.tags = result.tags or self.tags
        if score is None:
            return
        self.score.add(score)
        if result.ok:
            self.passes += 1
        elif not self.failure:
            self.failure = result.failure or ""

    @property
    def pass_rate(self) -> float:
        """The share of judged attempts that passed."""
        return self.passes / self.score.count

    def statistics(self, name: str) -> TaskStatistics:
        """Return the figures of the task."""
        judged = self.score.count
        passed = estimate_mean([1.0] * self.passes + [0.0] * (judged - self.passes))
        return TaskStatistics(
            task=name,
            attempts=self.attempts,
            judged=judged,
            passes=self.passes,
            passed=passed,
            score=self.score.estimate(),
            flaky=0 < self.passes < judged,
            steps=self.steps / self.attempts,
            tool_calls=self.tool_calls / self.attempts,
            cost_usd=None if self.cost is None else self.cost / self.attempts,
            judge_cost_usd=self.judge_cost / self.attempts,
            user_cost_usd=self.user_cost / self.attempts,
            tokens=self.tokens / self.attempts,
            duration_ms=self.duration / self.attempts,
            failure=self.failure,
            tags=self.tags,
            weight=self.weight,
        )


class CheckTally:
    """The mean pass rate and score of a check, for each task that has it."""

    __slots__ = ("passed", "score", "weights")

    def __init__(self) -> None:
        self.passed: dict[str, Mean] = {}
        self.score: dict[str, Mean] = {}
        self.weights: dict[str, float] = {}

    def add(self, task: str, passed: bool, score: float, weight: float) -> None:
        """Add the result of the check in an attempt."""
        self.weights[task] = weight
        if task not in self.passed:
            self.passed[task], self.score[task] = Mean(), Mean()
        self.passed[task].add(float(passed))
        self.score[task].add(clamp_score(score))

    def statistics(self, name: str) -> CheckStatistics:
        """Return the figures of the check."""
        passed = estimate_mean(mean.value for mean in self.passed.values())
        score = estimate_mean((mean.value for mean in self.score.values()), self.weights.values())
        assert passed is not None
        assert score is not None
        attempts = sum(mean.count for mean in self.passed.values())
        return CheckStatistics(check=name, tasks=len(self.passed), attempts=attempts, passed=passed, score=score)


class ModelTally:
    """The sums over the attempts with a model."""

    def __init__(self) -> None:
        self.tasks: dict[str, TaskTally] = {}
        self.checks: dict[str, CheckTally] = {}
        self.cost, self.judge_cost, self.user_cost = array("d"), array("d"), array("d")
        self.duration = array("d")
        self.cost_known = True
        self.input_tokens, self.output_tokens = array("d"), array("d")

    def add(self, result: TaskResult, *, replays: bool) -> None:
        """Add an attempt."""
        name = result.name
        if name not in self.tasks:
            self.tasks[name] = TaskTally()
        self.tasks[name].add(result, attempt_score(result, replays=replays))
        if result.cost_usd is None:
            self.cost_known = False
        else:
            self.cost.append(result.cost_usd)
        self.judge_cost.append(result.judge_usage.cost_usd)
        self.user_cost.append(result.user_usage.cost_usd)
        self.duration.append(result.duration_ms)
        self.input_tokens.append(result.input_tokens)
        self.output_tokens.append(result.output_tokens)
        for check in result.checks:
            if not check.judged:
                continue
            if check.name not in self.checks:
                self.checks[check.name] = CheckTally()
            self.checks[check.name].add(name, check.passed, check.score, result.weight)

    def statistics(self, model: str) -> ModelStatistics:
        """Return the figures of the model."""
        tasks = list(self.tasks.values())
        passed, score = _estimate_tasks(tasks)
        steps = self._steps()
        return ModelStatistics(
            model=model,
            tasks=len(tasks),
            attempts=sum(task.attempts for task in tasks),
            judged=sum(task.score.count for task in tasks),
            passes=sum(task.passes for task in tasks),
            passed=passed,
            score=score,
            pass_at_k=dict(self._pass_rates(steps, pass_at_k)),
            pass_hat_k=dict(self._pass_rates(steps, pass_hat_k)),
            cost_usd=Percentiles.of(self.cost) if self.cost_known else None,
            judge_cost_usd=Percentiles.of(self.judge_cost),
            user_cost_usd=Percentiles.of(self.user_cost),
            input_tokens=Percentiles.of(self.input_tokens),
            output_tokens=Percentiles.of(self.output_tokens),
            duration_ms=Percentiles.of(self.duration),
            checks=[tally.statistics(name) for name, tally in self.checks.items()],
            tags=list(self._tags()),
            per_task=[task.statistics(name) for name, task in self.tasks.items()],
        )

    def _steps(self) -> list[int]:
        most = max((task.score.count for task in self.tasks.values()), default=0)
        return sorted({k for k in STEPS if k <= most} | ({most} if most else set()))

    def _pass_rates(
        self, steps: Iterable[int], rate: Callable[[int, int, int], float]
    ) -> Iterator[tuple[int, Estimate]]:
        for k in steps:
            found = estimate_mean(
                rate(task.score.count, task.passes, k) for task in self.tasks.values() if task.score.count >= k
            )
            if found is not None:
                yield k, found

    def _tags(self) -> Iterator[TagStatistics]:
        by_tag: dict[str, list[TaskTally]] = {}
        for task in self.tasks.values():
            for tag in dict.fromkeys(task.tags):
                by_tag.setdefault(tag, []).append(task)
        for tag, tasks in by_tag.items():
            passed, score = _estimate_tasks(tasks)
            yield TagStatistics(
                tag=tag,
                tasks=len(tasks),
                attempts=sum(task.attempts for task in tasks),
                passed=passed,
                score=score,
                cost_usd=sum_costs(task.cost for task in tasks),
                judge_cost_usd=sum(task.judge_cost for task in tasks),
                user_cost_usd=sum(task.user_cost for task in tasks),
            )


def _estimate_tasks(tasks: Iterable[TaskTally]) -> tuple[Estimate | None, Estimate | None]:
    """Estimate the pass rate of tasks like these, and their score with their weights."""
    judged = [task for task in tasks if task.score.count]
    scores = estimate_mean((clamp_score(task.score.value) for task in judged), (task.weight for task in judged))
    return estimate_mean(task.pass_rate for task in judged), scores
