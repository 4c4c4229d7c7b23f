"""Collect what a comparison needs of a run in one pass: small rows of figures, and where each result lies."""

from __future__ import annotations

from array import array

from hookline.errors import HookUsageError
from hookline.evals._costs import sum_costs
from hookline.evals.reports._saved_runs import SavedRun
from hookline.evals.running import REPLAYS, TaskKey, TaskResult, attempt_score, describe_key, impossible_in
from hookline.evals.statistics import ModelStatistics, ModelTally

__all__ = ["RunRows", "TaskRow"]


class TaskRow:
    """The figures of one task of a run with one model.

    Attributes:
        places: Where its attempts are among the results.
        passes: How many attempts passed, with those that nothing judged.
        judged_passes: How many judged attempts passed.
        scores: The score of each judged attempt.
        tool_calls: The tool calls of all attempts.
        cost_usd: The cost of the agent in all attempts; `None` if it is unknown.
        weight: The weight of the task in mean scores.
        failure: Why the first failed attempt failed; empty if none did.
        first_pass: The place of the first attempt that passed.
        first_fail: The place of the first attempt that failed.
    """

    __slots__ = (
        "cost_usd",
        "failure",
        "first_fail",
        "first_pass",
        "judged_passes",
        "passes",
        "places",
        "scores",
        "tool_calls",
        "weight",
    )

    def __init__(self) -> None:
        self.places = array("L")
        self.scores = array("d")
        self.passes, self.judged_passes, self.tool_calls, self.failure = 0, 0, 0, ""
        self.cost_usd: float | None = 0.0
        self.weight = 1.0
        self.first_pass: int | None = None
        self.first_fail: int | None = None

    def add(self, place: int, result: TaskResult, score: float | None) -> None:
        """Add an attempt."""
        self.places.append(place)
        self.tool_calls += result.tool_calls
        self.cost_usd = sum_costs((self.cost_usd, result.cost_usd))
        self.weight = result.weight
        if score is not None:
            self.scores.append(score)
        if result.ok:
            self.passes += 1
            self.judged_passes += score is not None
            self.first_pass = place if self.first_pass is None else self.first_pass
        elif self.first_fail is None:
            self.first_fail, self.failure = place, result.failure or ""

    @property
    def attempts(self) -> int:
        """The number of attempts."""
        return len(self.places)

    @property
    def score(self) -> float | None:
        """The mean score of the judged attempts; `None` if none was judged."""
        return min(max(sum(self.scores) / len(self.scores), 0.0), 1.0) if self.scores else None

    @property
    def mean_tool_calls(self) -> float:
        """The tool calls of an attempt, in the mean; a whole number if there is one attempt."""
        return self.tool_calls if self.attempts == 1 else self.tool_calls / self.attempts

    @property
    def mean_cost_usd(self) -> float | None:
        """The cost of an attempt, in the mean; `None` if it is unknown."""
        return None if self.cost_usd is None else self.cost_usd / self.attempts

    @property
    def flaky(self) -> bool:
        """Whether judged attempts passed and failed."""
        return 0 < self.judged_passes < len(self.scores)


class RunRows:
    """The rows of one run with one model.

    Args:
        run: The run. Its results are read once.
        model: The model; `None` if the run has one only.
        name: The name of the run in errors: `"A"`.
        replays: Whether an attempt without checks is scored by its recording.

    Attributes:
        run: The run.
        model: The model.
        tasks: The rows by the name of the task, in the order of the run.
        not_run: Names of the tasks of which an attempt with the model is missing.

    Raises:
        HookUsageError: If the run has a task twice, an invalid score or cost, several models and none is chosen, or not
            the model that is chosen.
    """

    def __init__(self, run: SavedRun, model: str | None, name: str, *, replays: bool) -> None:
        self.run = run
        self.tasks: dict[str, TaskRow] = {}
        self._tally = ModelTally()
        keys: set[TaskKey] = set()
        models: dict[str, None] = dict.fromkeys(run.models)
        for place, result in enumerate(run.results):
            problem = f"it has the task {describe_key(result.key)} twice" if result.key in keys else None
            problem = problem or impossible_in(result)
            if problem is not None:
                raise HookUsageError(f"Run {name} cannot be compared: {problem}.")
            keys.add(result.key)
            models[result.model] = None
            if model not in (None, result.model):
                continue
            if result.name not in self.tasks:
                self.tasks[result.name] = TaskRow()
            self.tasks[result.name].add(place, result, attempt_score(result, replays=replays))
            self._tally.add(result, replays=run.mode in REPLAYS)
        self.model = _choose_model(models, model, name)
        several = run.repeat > 1 or len(run.models) > 1  # then a task can have results and yet not have run in full
        seen = set() if several else set(self.tasks)
        for task in run.not_run:
            if task in seen:
                raise HookUsageError(f"Run {name} cannot be compared: it has the task {task!r} twice.")
            seen.add(task)
        self.not_run = [task for task in run.not_run if self._attempts_of(task) < run.repeat]

    def _attempts_of(self, task: str) -> int:
        return self.tasks[task].attempts if task in self.tasks else 0

    @property
    def repeats(self) -> int:
        """The most attempts of a task."""
        return max((row.attempts for row in self.tasks.values()), default=0)

    @property
    def attempts(self) -> int:
        """The number of attempts of all tasks."""
        return sum(row.attempts for row in self.tasks.values())

    @property
    def passes(self) -> int:
        """The number of attempts that passed."""
        return sum(row.passes for row in self.tasks.values())

    @property
    def tool_calls(self) -> int:
        """The tool calls of all tasks."""
        return sum(row.tool_calls for row in self.tasks.values())

    @property
    def cost_usd(self) -> float | None:
        """The cost of the agent in all tasks; `None` if it is unknown."""
        return sum_costs(row.cost_usd for row in self.tasks.values())

    @property
    def statistics(self) -> ModelStatistics:
        """The figures of the model."""
        return self._tally.statistics(self.model)


def _choose_model(models: dict[str, None], model: str | None, name: str) -> str:
    known = [each for each in models if each] or [""]
    if model is None:
        if len(models) > 1:
            raise HookUsageError(
                f"Run {name} has several models: {', '.join(filter(None, models))}. Choose the one to compare with "
                "`model=`, or --model on the command line."
            )
        return known[0]
    if model not in models:
        had = f"it has {', '.join(known)}" if known != [""] else "its suite's own model answered"
        raise HookUsageError(f"Run {name} has no model {model!r}: {had}.")
    return model
