"""Choose the model or the agent that runs the tasks of a suite, in place of the suite's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hookline._checks import quote
from hookline.calls import ToolSpec
from hookline.errors import HooklineError, HookUsageError, MissingExtraError, message_of
from hookline.evals.running import Case
from hookline.evals.suites._imports import ImportProblem, import_target
from hookline.runtime import Agent, Model, Tool, model_by_name

__all__ = ["GROUND_TRUTH", "AgentChoice", "AgentTask", "choose_agents"]

GROUND_TRUTH = "ground-truth"
"""The name of the model that plays the calls which solve a task, as the suite gives them."""

AGENT = "agent"
"""The name in a module of an agent that is named by its file alone."""


@dataclass(frozen=True, kw_only=True)
class AgentTask:
    """The task for which a function makes an agent.

    Attributes:
        suite: The suite.
        id: The task.
        prompt: The user's prompt.
        tools: The tools of the suite for this task.
    """

    suite: str
    id: str
    prompt: str
    tools: Sequence[Tool]


MakeAgent = Callable[..., Agent]
"""A function that makes an agent: of no argument, or of an `AgentTask`."""


class AgentChoice:
    """A model, an agent, or both, that run tasks in place of a suite's own.

    Args:
        model: A model, its name (`"openai:gpt-5"`), or `"ground-truth"`; `None` for the agent's own.
        agent: An agent, which is also given the tools of the suite that it lacks; a function that makes one for each
            task, of no argument or of an `AgentTask`; or the import path of either: `package.module:name`, `file.py`.
        name: The name in results; by default that of the model, else that of the agent.

    Attributes:
        model: The model.
        plays_ground_truth: Whether the calls of the suite are played.
        name: The name in results.
        names: The names of the model and of the agent, with which another process can make the same choice; `None` if
            one of them is an object.

    Raises:
        HookUsageError: If neither is given, one of them is something else, or there is no such model.
        MissingExtraError: If the model needs a package that is not installed.
    """

    def __init__(
        self,
        *,
        model: Model | str | None = None,
        agent: Agent | MakeAgent | str | None = None,
        name: str | None = None,
    ) -> None:
        by_name = isinstance(model, str | None) and isinstance(agent, str | None)
        self.names = (model, agent) if by_name else None
        path = agent if isinstance(agent, str) else None
        if isinstance(agent, str):
            agent = load_agent(agent)
        if model is None and agent is None:
            raise HookUsageError("Choose a `model`, an `agent`, or both.")
        if agent is not None and not callable(agent) and not isinstance(agent, Agent):
            raise HookUsageError(f"`agent` is an Agent or a function that makes one; got {quote(agent)}.")
        self.plays_ground_truth = model == GROUND_TRUTH
        if self.plays_ground_truth and agent is not None:
            raise HookUsageError(f"{GROUND_TRUTH!r} plays the calls of the suite, and asks no agent; leave one out.")
        self.model: Model | None = None
        if isinstance(model, str):
            self.model = None if self.plays_ground_truth else _find_model(model)
        elif model is not None:
            if not callable(getattr(model, "respond", None)):
                raise HookUsageError(f"`model` is a model or its name; got {quote(model)}.")
            self.model = model
        self._agent: Agent | MakeAgent | None = agent
        given = model if isinstance(model, str) else getattr(model, "name", None)
        self.name = str(name or given or path or getattr(agent, "id", None) or getattr(agent, "__name__", AGENT))

    @property
    def replaces_agent(self) -> bool:
        """Whether the suite's own agent does not run at all."""
        return self._agent is not None

    def make(self, task: AgentTask) -> Agent:
        """Return the agent for a task.

        Raises:
            HookUsageError: If the function that makes it returns something else, or is async.
        """
        agent, completed = self._agent, False
        if not isinstance(agent, Agent):
            assert agent is not None
            agent, completed = _call(agent, task)
        lacking = [] if completed else [each for each in task.tools if not _has(agent, each)]
        changes: dict[str, Any] = {"tools": [*agent.tools, *lacking]} if lacking else {}
        if self.model is not None:
            changes["model"] = self.model
        return replace(agent, **changes) if changes else agent


def _has(agent: Agent, wanted: ToolSpec) -> bool:
    return any(spec.name == wanted.name and spec.toolset in (wanted.toolset, "local") for spec in agent.specs)


def _call(make: MakeAgent, task: AgentTask) -> tuple[Agent, bool]:
    """Return the agent that a function makes, and whether it was told of the task and so has chosen the tools."""
    what = f"The function {getattr(make, '__name__', make)!r} that makes the agent"
    if inspect.iscoroutinefunction(make):
        raise HookUsageError(f"{what} is async; create the agent in a plain function.")
    try:
        takes_task = bool(inspect.signature(make).parameters)
    except (TypeError, ValueError):
        takes_task = False
    agent = make(task) if takes_task else make()
    if not isinstance(agent, Agent):
        raise HookUsageError(f"{what} returned {quote(agent)} instead of an Agent.")
    return agent, takes_task


def _find_model(name: str) -> Model:
    try:
        return model_by_name(name, "`model`")
    except MissingExtraError:
        raise
    except HooklineError as error:
        raise HookUsageError(f"The model {name} cannot be used: {error}") from error


def load_agent(target: str) -> Agent | MakeAgent:
    """Import an agent, or a function that makes one.

    Args:
        target: `package.module:name` or `folder/file.py:name`; the name is `agent` by default.

    Raises:
        HookUsageError: If it cannot be imported, or is something else.
    """
    try:
        found = import_target(target, AGENT)
    except ImportProblem as problem:
        raise HookUsageError(f"The agent {target} cannot be used: {message_of(problem)}.") from problem.__cause__
    if not isinstance(found, Agent) and not callable(found):
        raise HookUsageError(f"The agent {target} must be an Agent or a function that returns one; got {quote(found)}.")
    return found  # type: ignore[no-any-return]  # what can be called is taken as a function that makes one


def choose_agents(cases: Iterable[Case], *, models: Sequence[str] = (), agent: str | None = None) -> list[Case]:
    """Return tasks that run with other models, or with another agent, than their suites'.

    Args:
        cases: The tasks.
        models: Names of models. Each task is there once for each model.
        agent: The import path of an agent, or of a function that makes one.

    Raises:
        HookUsageError: If a model is named twice or there is no such model, the agent cannot be imported, or a suite
            cannot use another one.
        MissingExtraError: If a model needs a package that is not installed.
        ToolNameError: If a check is about a tool that the agent does not have.
    """
    found = list(cases)
    if not models and agent is None:
        return found
    for name in models:
        if list(models).count(name) > 1:
            raise HookUsageError(f"The model {name!r} is given twice; name each once.")
    choices = [AgentChoice(model=model, agent=agent) for model in (*models,) or (None,)]
    chosen: list[Case] = []
    for choice in choices:
        suites: dict[int, Any] = {}
        for suite, task_id in found:
            if id(suite) not in suites:
                use = getattr(suite, "with_agent", None)
                if use is None:
                    raise HookUsageError(
                        f"Suite {suite.name!r} has no method `with_agent`, so that it cannot be run with {choice.name}."
                    )
                suites[id(suite)] = use(choice)
            chosen.append((suites[id(suite)], task_id))
    return chosen
