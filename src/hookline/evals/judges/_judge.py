"""A check that asks one or more models to judge a task by a rubric."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any, Literal, get_args

import msgspec

from hookline._checks import quote
from hookline.calls import Message, ModelCall
from hookline.errors import HookUsageError, message_of
from hookline.evals.judges._grading import Grade, instructions, question, read_grade
from hookline.evals.running import CheckResult, FinishedTask, Judgement, JudgeVerdict
from hookline.hooks import Hooks
from hookline.runtime import Agent, Model

__all__ = ["Combine", "Judge", "judge"]

Combine = Literal["mean", "median", "min"]
"""How the scores of several models become one. With `"median"` most of them must be content, with `"min"` all."""

COMBINED: dict[Combine, Callable[[Sequence[float]], float]] = {"mean": fmean, "median": median, "min": min}

AnyModel = Model | str | Callable[[], Model]

NAMED = 60
"""How much of a rubric is in the name of a check."""

TOLERANCE = 1e-9
"""The tolerated rounding error of a mean score."""


def judge(
    rubric: str,
    *,
    model: AnyModel | Sequence[AnyModel],
    threshold: float = 0.75,
    name: str | None = None,
    grades: int = 5,
    combine: Combine = "mean",
    required: bool = True,
    tools: bool = True,
    settings: Mapping[str, Any] | None = None,
    attempts: int = 2,
) -> Judge:
    """Make a check in which a model judges a task by a rubric.

    The model reads the rubric and the whole conversation, and gives a grade with a reason. The grade becomes a score
    from 0 to 1; with five grades 0, 0.25, 0.5, 0.75 and 1. Several models each give a grade.

    An answer without a grade, a refusal and an error of the model are no verdict: the check is not judged, with the
    model's text as the reason. It has never passed then. Of several models, more than half must have a verdict.

    Args:
        rubric: What a good result is, for the model.
        model: The model: a `Model`, a name such as `"openai:gpt-5"`, or a function that makes one; a list of several.
        threshold: The score from which the check passes, from 0 to 1.
        name: The name of the check in results. By default it begins with `judge`, followed by the rubric.
        grades: The number of grades, from 2 to 100; 2 for yes and no.
        combine: How the scores of several models become one: `"mean"`, `"median"` or `"min"`.
        required: Whether a task fails if the check is not judged. If not, the check is left out of its result.
        tools: Whether the model reads the agent's tool calls and their results.
        settings: Settings of the model calls, such as `{"temperature": 0}`.
        attempts: How often a model is asked for an answer with a grade, from 1.

    Raises:
        HookUsageError: If an argument is invalid.
        AgentDefinitionError: If no installed adapter knows a model's name.
    """
    return Judge(
        rubric,
        models=list(model) if isinstance(model, Sequence) and not isinstance(model, str) else [model],
        threshold=threshold,
        name=name,
        grades=grades,
        combine=combine,
        required=required,
        tools=tools,
        settings=settings,
        attempts=attempts,
    )


class Judge:
    """A check in which one or more models judge a task; `judge` makes it.

    Attributes:
        name: The name of the check in results.
        rubric: What a good result is.
        threshold: The score from which the check passes.
        models: The names of the models.
    """

    def __init__(
        self,
        rubric: str,
        *,
        models: Sequence[AnyModel],
        threshold: float,
        name: str | None,
        grades: int,
        combine: Combine,
        required: bool,
        tools: bool,
        settings: Mapping[str, Any] | None,
        attempts: int,
    ) -> None:
        if not isinstance(rubric, str) or not rubric.strip():
            raise HookUsageError(
                f"A judge needs a rubric, a text that says what a good result is; got {quote(rubric)}."
            )
        if not models:
            raise HookUsageError("A judge needs a model; give one, or a list of at least one.")
        if not _is_share(threshold):
            raise HookUsageError(f"`threshold` of a judge is a score from 0 to 1; got {quote(threshold)}.")
        if name is not None and (not isinstance(name, str) or not name):
            raise HookUsageError(f"`name` of a judge is a text; got {quote(name)}.")
        _check_count("grades", grades, 2, 100)
        _check_count("attempts", attempts, 1, 10)
        if combine not in get_args(Combine):
            raise HookUsageError(f"`combine` of a judge is one of {', '.join(COMBINED)}; got {quote(combine)}.")
        if settings is not None and not isinstance(settings, Mapping):
            raise HookUsageError(f"`settings` of a judge is a mapping; got {quote(settings)}.")
        self.rubric = rubric
        self.threshold = float(threshold)
        self.name = name or _default_name(rubric)
        self.__name__ = self.name
        self._grades, self._attempts = grades, attempts
        self._combine: Combine = combine
        self._required, self._tools = required, tools
        self._agents = _number([_agent_of(model, instructions(grades), settings) for model in models])

    def __repr__(self) -> str:
        return f"judge({self.rubric!r:.60}, model={self.models!r})"

    @property
    def models(self) -> list[str]:
        """The names of the models, in the order in which they are asked."""
        return [_model_name(agent) for agent in self._agents]

    async def __call__(self, task: FinishedTask) -> CheckResult:
        """Ask the models about a task.

        Args:
            task: The task. One whose run did not end well is not judged.
        """
        if task.result.reason != "done":
            return self._not_judged(f"the run ended with reason {task.result.reason!r}", [])
        asked = question(self.rubric, task.conversation, expected_output=task.expected_output, tools=self._tools)
        verdicts = [await self._verdict(agent, asked, task) for agent in self._agents]
        scores = [verdict.score for verdict in verdicts if verdict.score is not None]
        if len(scores) * 2 <= len(verdicts):
            missing = [verdict for verdict in verdicts if verdict.score is None]
            return self._not_judged(_reasons(missing, alone=len(verdicts) == 1), verdicts)
        score = COMBINED[self._combine](scores)
        passed = score >= self.threshold - TOLERANCE
        reason = _reasons(verdicts, alone=len(verdicts) == 1)
        return CheckResult(
            name=self.name,
            passed=passed,
            score=score,
            why="" if passed else f"{score:.2f} is below {self.threshold:g}: {reason or 'no reason was given'}",
            required=self._required,
            judgement=Judgement(threshold=self.threshold, reason=reason, verdicts=verdicts),
        )

    def _not_judged(self, why: str, verdicts: list[JudgeVerdict]) -> CheckResult:
        return CheckResult(
            name=self.name,
            passed=False,
            score=0.0,
            why=why,
            judged=False,
            required=self._required,
            judgement=Judgement(threshold=self.threshold, reason=why, verdicts=verdicts),
        )

    async def _verdict(self, agent: Agent, asked: str, task: FinishedTask) -> JudgeVerdict:
        """Ask one model until its answer has a grade, or it has been asked often enough."""
        messages = [Message(role="user", content=asked)]
        grade = Grade(score=None, reason="it was not asked")
        for _ in range(self._attempts):
            result = await task.ask(agent, messages)
            if result.reason != "done":
                told = "" if result.error is None else f": {type(result.error).__name__}: {message_of(result.error)}"
                grade = Grade(score=None, reason=f"asking it ended with reason {result.reason!r}{told}")
                break
            grade = read_grade(result.output, self._grades)
            if grade.score is not None:
                break
            again = "That was not the JSON object that I asked for. Answer with it, and with nothing else."
            answered = [Message(role="assistant", content=result.output), Message(role="user", content=again)]
            messages = [*messages, *answered]
        return JudgeVerdict(model=_model_name(agent), score=grade.score, reason=grade.reason)


def _agent_of(given: object, told: str, settings: Mapping[str, Any] | None) -> Agent:
    """Return the agent that asks a model."""
    model: Any = given
    if not isinstance(given, str) and not hasattr(given, "respond") and callable(given):
        try:
            model = given()
        except Exception as error:
            told = f"{type(error).__name__}: {message_of(error)}".rstrip(".")
            raise HookUsageError(f"The model of a judge cannot be made: {told}.") from error
    hooks = Hooks("judge")
    if settings:

        @hooks.before(ModelCall, id="judge.settings")
        def use_settings(call: ModelCall) -> ModelCall:
            return msgspec.structs.replace(call, settings={**call.settings, **settings})

    return Agent(id="judge", model=model, instructions=told, hooks=[hooks] if settings else [], max_steps=1)


def _number(agents: Sequence[Agent]) -> list[Agent]:
    """Give agents with the same model ids of their own, so that a tape tells their equal questions apart."""
    counts = Counter[str]()
    found: list[Agent] = []
    for agent in agents:
        counts[_model_name(agent)] += 1
        number = counts[_model_name(agent)]
        found.append(agent if number == 1 else dataclasses.replace(agent, id=f"{agent.id}-{number}"))
    return found


def _model_name(agent: Agent) -> str:
    return str(getattr(agent.model, "name", "") or type(agent.model).__name__)


def _reasons(verdicts: Sequence[JudgeVerdict], *, alone: bool) -> str:
    if alone:
        return "; ".join(verdict.reason for verdict in verdicts)
    return "; ".join(
        f"{verdict.model}: {'no verdict' if verdict.score is None else f'{verdict.score:.2f}'}, {verdict.reason}"
        for verdict in verdicts
    )


def _default_name(rubric: str) -> str:
    text = " ".join(rubric.split())
    return f"judge: {text if len(text) <= NAMED else f'{text[: NAMED - 1]}…'}"


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value <= 1


def _check_count(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise HookUsageError(f"`{name}` of a judge is a whole number from {least} to {most}; got {quote(value)}.")
