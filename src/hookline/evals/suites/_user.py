"""Suites of your own: an agent or its tools, and tasks with prompts, rules, expected calls and checks."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from hookline._checks import quote
from hookline.calls import ModelResponse, ToolRequest, ToolSpec, Usage
from hookline.dispatcher import HookDispatcher
from hookline.errors import HookUsageError
from hookline.evals.conversations import Conversation, StopConditions, run_conversation
from hookline.evals.datasets import Dataset
from hookline.evals.errors import ForbiddenToolError, ToolExitError, ToolNameError
from hookline.evals.judges import Judge
from hookline.evals.mocking import ToolMocks
from hookline.evals.running import AuxiliaryRuns, CheckResult, TaskOutcome, select_tasks
from hookline.evals.suites._agent_choice import GROUND_TRUTH, AgentChoice, AgentTask
from hookline.evals.suites._task import Task, check_tags
from hookline.evals.suites._task_table import TaskTable
from hookline.evals.suites._tool_names import EXPECTED, FAULTS, LIMITS, MOCKS, AgentTools, tool_patterns_of
from hookline.evals.suites.checks import Check, FinishedTask, name_of, run_check, target_of, within_limits
from hookline.evals.trajectories import EventRecorder, RecordedOperation
from hookline.hooks import AnyHook
from hookline.runtime import Agent, Model, OperationStore, ScriptedModel, Tool, ToolSource, exec_agent

__all__ = ["UserSuite", "check_title"]

AnyTool = Tool | Callable[..., Any]


class UserSuite:
    """Tasks for one agent. `hookline eval FILE.py` runs the one that a module calls `suite`.

    Args:
        name: The suite's name.
        tasks: The tasks, or a `Dataset`. A dataset among them is one task for each of its cases.
        checks: Checks of every task, after its own.
        tools: The agent's tools, or a function that makes them, which gives each task its own state.
        agent: The agent, or a function that makes one; by default a plain one with `tools`.
        instructions: The plain agent's system message.
        cassette_options: Keyword arguments for its `Cassette`s: `{"ignore": ["request_id"]}`.
        tags: Tags of all tasks.

    Raises:
        HookUsageError: If two tasks have one id, a tag is not a text, or both tools and an agent are given.
        DataFileError: If the cases of a dataset cannot be used.
        ToolNameError: If a check or an expectation is about a tool that the agent does not have. Tools that come from a
            source, such as an MCP server, are only known when it is open; such a check fails during the run.
    """

    def __init__(
        self,
        name: str,
        *,
        tasks: Iterable[Task | Dataset[Task]] | Dataset[Task],
        tools: Sequence[AnyTool] | Callable[[], Sequence[AnyTool]] = (),
        agent: Agent | Callable[[], Agent] | None = None,
        instructions: str = "",
        checks: Sequence[Check] = (),
        cassette_options: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.tags = check_tags(f"Suite {name!r}", tags)
        self.cassette_options = dict(cassette_options or {})
        if agent is not None and tools:
            raise HookUsageError(f"Suite {name!r} has an agent, which has its own tools; leave `tools` out.")
        if not all(map(callable, checks)):
            raise HookUsageError(f"`checks` of suite {name!r} is a list of checks; got {quote(checks)}.")
        self._tools = tools
        self._agent = agent
        self._instructions = instructions
        self._checks = tuple(checks)
        self._judges = True
        self.choice: AgentChoice | None = None
        self._tasks = TaskTable(name)
        self._models = dict.fromkeys(name for check in checks if isinstance(check, Judge) for name in check.models)
        self._tags: dict[str, tuple[str, ...]] = {}
        self._check_tools(self._note(task) for task in self._tasks.add(tasks))

    def _check_tools(self, tasks: Iterable[Task]) -> None:
        """Make the agent once, to know its tools and refuse checks and tasks that name others.

        Args:
            tasks: The tasks, each of which is looked at once.
        """
        self._plain = self._make_any_agent()
        self._specs = list(self._plain.specs)
        known = AgentTools(self._plain)
        for problem in _unknown_tools(f"{self.name}/*", _check_patterns(self._checks), known):
            raise problem
        for task in tasks:
            for problem in _unknown_tools(f"{self.name}/{task.id}", _tool_patterns(task), known):
                raise problem

    def __repr__(self) -> str:
        return f"UserSuite({self.name!r}, tasks={len(self._tasks)}, tools={len(self._specs)})"

    @property
    def tool_specs(self) -> list[ToolSpec]:
        """Every tool of the agent."""
        return list(self._specs)

    @property
    def mockable_specs(self) -> list[ToolSpec]:
        """Every tool that rules may be for, including those of sub-agents.

        Empty if a source names its tools only in a run.
        """
        agents = [self._plain]
        for agent in agents:
            agents += agent.sub_agents
        return [] if any(agent.sources for agent in agents) else [spec for agent in agents for spec in agent.specs]

    @property
    def model(self) -> str:
        """The name of the model, or of the agent, that was chosen by `with_agent`; empty for the suite's own."""
        return "" if self.choice is None else self.choice.name

    @property
    def models(self) -> list[str]:
        """Names of the models of the tasks, their judges and their simulated users.

        A model that a function makes for each run is not among them.
        """
        return list(self._models)

    @property
    def task_ids(self) -> list[str]:
        """The tasks, in the given order."""
        return list(self._tasks)

    def select(self, names: Iterable[str] = ()) -> list[str]:
        """Return the tasks with these names, each once, or all tasks if there are no names.

        Raises:
            UnknownTaskError: If there is no such task. The message lists the tasks.
        """
        return select_tasks(self.name, self._tasks, names)

    def task(self, task_id: str) -> Task:
        """Return a task.

        Raises:
            UnknownTaskError: If there is no such task. The message lists the tasks.
        """
        self.select([task_id])
        return self._tasks[task_id]

    def prompt(self, task_id: str) -> str:
        """Return the prompt of a task."""
        return self.task(task_id).prompt

    def tags_of(self, task_id: str) -> list[str]:
        """Return the tags of a task: those of the suite, then its own.

        Raises:
            UnknownTaskError: If there is no such task. The message lists the tasks.
        """
        self.select([task_id])
        return list(dict.fromkeys([*self.tags, *self._tags.get(task_id, ())]))

    def labels(self, task_id: str) -> dict[str, Any]:
        """Return what results say about a task beside its prompt: `expected_output`, `weight` and `metadata`."""
        task = self.task(task_id)
        return {
            "expected_output": task.expected_output,
            "weight": float(task.weight),
            "metadata": dict(task.metadata),
        }

    def is_conversation(self, task_id: str) -> bool:
        """Whether a task is a conversation, each turn of which is an operation of its own."""
        return self.task(task_id).is_conversation

    def ground_truth(self, task_id: str) -> list[ToolRequest]:
        """Return the calls that are expected in a task."""
        expected = self.task(task_id).expected
        return [] if expected is None else expected.ground_truth

    def arrange(self, task_id: str, mocks: ToolMocks) -> None:
        """Add the rules and faults of a task."""
        task = self.task(task_id)
        if task.mocks is not None:
            task.mocks(mocks)
        for spec in task.faults:
            mocks.fault(spec.tool, spec.fault, probability=spec.probability, args=spec.args, name=spec.name)

    def agent_of(self, task_id: str) -> Agent:
        """Return the agent of a task, with its model and with tools of its own."""
        return self._agent_for(self.task(task_id))

    def is_scripted(self, task_id: str) -> bool:
        """Whether a task can be run without asking a real model."""
        task = self.task(task_id)
        if self.choice is not None and not self.choice.plays_ground_truth:
            return isinstance(self.choice.model, ScriptedModel)
        return task.script is not None or isinstance(task.model, ScriptedModel)

    def without_checks(self) -> UserSuite:
        """Return the suite with the same tasks, which are run but not judged."""
        other = copy.copy(self)
        other._judges = False
        return other

    def with_agent(self, choice: AgentChoice) -> UserSuite:
        """Return the suite with the same tasks, run by another model or another agent.

        With a model, the agent keeps its tools and instructions, and scripts are not played. An agent replaces the
        suite's own; it is also given those of the suite's `tools` that it lacks, if the suite has no agent.

        Args:
            choice: The model or the agent.

        Raises:
            HookUsageError: If the ground truth is to be played and a task has no script.
            ToolNameError: If a check, or an expectation, is about a tool that the agent does not have.
        """
        other = copy.copy(self)
        other.choice = choice
        if choice.plays_ground_truth:
            for task_id in self._tasks:
                if self._tasks[task_id].script is None:
                    name = f"{self.name}/{task_id}"
                    raise HookUsageError(f"Task {name!r} has no `script`, so that {GROUND_TRUTH!r} cannot play it.")
        other._models = {choice.name: None}
        for check in self._checks:
            other._models |= dict.fromkeys(check.models if isinstance(check, Judge) else ())
        tasks = (self._tasks[task_id] for task_id in self._tasks)
        if choice.replaces_agent:
            other._check_tools(other._note_others(task) for task in tasks)
        else:
            for task in tasks:
                other._note_others(task)
        return other

    def cassette(self, task_id: str) -> Path | None:
        """Return the cassette file of a task, if it has its own."""
        own = self.task(task_id).cassette
        return None if own is None else Path(own)

    async def run_task(
        self,
        task_id: str,
        *,
        hooks: Iterable[AnyHook] = (),
        dispatcher: HookDispatcher | None = None,
        store: OperationStore | None = None,
        forbid_tools: bool = False,
    ) -> TaskOutcome:
        """Run a task as one operation, a conversation as one for each turn, and check the result.

        Judges and simulated users run beside it, with those of the hooks that sub-agents inherit.

        Args:
            task_id: The task.
            hooks: Hooks of this operation.
            dispatcher: An open dispatcher to share with other runs.
            store: The store of the operation.
            forbid_tools: No real tool may run.

        Raises:
            UnknownTaskError: If there is no such task. The message lists the tasks.
        """
        task = self.task(task_id)
        given = list(hooks)
        ran: list[str] = []
        made = self._agent_for(task)
        opened: list[str] = []
        agent = watch_tools(made, ran, forbid=forbid_tools, opened=opened)
        recorder = EventRecorder(f"{self.name}.checks")
        auxiliary = AuxiliaryRuns(given, dispatcher=dispatcher, store=store)
        judged = auxiliary.separate()

        def finished(talk: Conversation) -> FinishedTask:
            is_talk = task.is_conversation
            return FinishedTask(
                id=task_id,
                prompt=talk.turns[0].user,
                result=talk.result,
                recorded=RecordedOperation.of_conversation([recorder[each.operation_id] for each in talk.results]),
                tools_forbidden=forbid_tools,
                turns=list(talk.turns) if is_talk else (),
                conversation_end=talk.end if is_talk else "",
                expected_output=task.expected_output,
                tags=tuple(dict.fromkeys([*self.tags, *task.tags])),
                metadata=task.metadata,
                auxiliary=auxiliary,
            )

        async def passes(check: Check, talk: Conversation) -> bool:
            result = await run_check(check, finished(talk))
            judged.usage = judged.usage + (result.usage or Usage())
            return result.passed

        if task.is_conversation:
            talk = await run_conversation(
                agent,
                task.prompt,
                turns=task.turns,
                user=task.user,
                stop=task.stop or StopConditions(),
                hooks=[recorder.hooks, *given],
                dispatcher=dispatcher,
                store=store,
                auxiliary=auxiliary,
                passes=passes,
            )
        else:
            result = await exec_agent(
                agent, task.prompt, hooks=[recorder.hooks, *given], dispatcher=dispatcher, store=store
            )
            talk = Conversation.of_prompt(task.prompt, result)
        seen = finished(talk)
        checks = [await run_check(check, seen) for check in self._checks_of(task)]
        # The names of a source's tools are known only once it has opened.
        if made.sources and (opened or talk.result.reason != "error"):
            patterns = [*_tool_patterns(task), *_check_patterns(self._checks)]
            unknown = _unknown_tools(f"{self.name}/{task_id}", patterns, AgentTools(made, opened))
            checks += [
                CheckResult(name=each.what, passed=False, score=0.0, why=each.problem, kind="unknown_tool")
                for each in unknown
            ]
        return TaskOutcome(
            suite=self.name,
            task_id=task_id,
            prompt=seen.prompt,
            result=seen.result,
            utility=_utility(checks),
            tools_run=0 if forbid_tools else len(ran),
            forbidden=len(ran) if forbid_tools else 0,
            checks=checks,
            target=_target(task),
            turns=list(seen.turns),
            conversation_end=seen.conversation_end,
            judge_usage=sum((check.usage for check in checks if check.usage is not None), judged.usage),
            user_usage=talk.usage,
        )

    def _checks_of(self, task: Task) -> list[Check]:
        if not self._judges:
            return []
        return [
            *([] if task.expected is None else [task.expected]),
            *([] if task.limits is None else [within_limits(task.limits)]),
            *task.checks,
            *self._checks,
        ]

    def _note(self, task: Task) -> Task:
        """Note the tags of a task, and the names of its models that are known before the run."""
        own = self._agent.model if isinstance(self._agent, Agent) else None
        asked: object = ScriptedModel([]) if task.script is not None else task.model or own
        name = asked if isinstance(asked, str) else getattr(asked, "name", None)
        if isinstance(name, str):
            self._models[name] = None
        if task.tags:
            self._tags[task.id] = tuple(map(sys.intern, task.tags))
        return self._note_others(task)

    def _note_others(self, task: Task) -> Task:
        """Note the names of the models that judge a task, or that play its user."""
        user = None if task.user is None else task.user.model
        name = user if isinstance(user, str) else getattr(user, "name", None)
        names = [name, *(name for check in task.checks if isinstance(check, Judge) for name in check.models)]
        self._models |= dict.fromkeys(name for name in names if isinstance(name, str))
        return task

    def _agent_for(self, task: Task) -> Agent:
        """Return the agent that runs a task."""
        choice = self.choice
        if choice is None or choice.plays_ground_truth:
            return self._make_agent(_model(task))
        if not choice.replaces_agent:
            return self._make_agent(choice.model)
        return choice.make(self._agent_task(task.id, task.prompt))

    def _agent_task(self, task_id: str, prompt: str) -> AgentTask:
        # The tools of an agent that is replaced are its own.
        given = self._make_agent(ScriptedModel([])).tools if self._agent is None else ()
        return AgentTask(
            suite=self.name, id=task_id, prompt=prompt, tools=[each for each in given if isinstance(each, Tool)]
        )

    def _make_any_agent(self) -> Agent:
        """Return an agent, to know its tools."""
        if self.choice is None or not self.choice.replaces_agent:
            return self._make_agent(ScriptedModel([]))
        task_id = next(iter(self._tasks))
        return self.choice.make(self._agent_task(task_id, self._tasks[task_id].prompt))

    def _make_agent(self, model: Model | None) -> Agent:
        if self._agent is None:
            tools = self._tools if isinstance(self._tools, Sequence) else self._tools()
            return Agent(
                id=self.name, model=model or ScriptedModel([]), tools=list(tools), instructions=self._instructions
            )
        agent = self._agent if isinstance(self._agent, Agent) else self._agent()
        return agent if model is None else dataclasses.replace(agent, model=model)


def watch_tools(agent: Agent, ran: list[str], *, forbid: bool, opened: list[str] | None = None) -> Agent:
    """Copy an agent and its sub-agents with tools that note when they run.

    Args:
        agent: The agent.
        ran: A list that collects the path of every tool that runs or was about to.
        forbid: Whether a tool raises `ForbiddenToolError` instead of running.
        opened: A list that collects the paths of the tools that the agent's own sources give.
    """
    own = [each for each in agent.tools if isinstance(each, Tool)]
    return dataclasses.replace(
        agent,
        tools=[
            *(_watch_tool(each, ran, forbid=forbid) for each in own),
            *(_WatchedSource(each, ran, forbid=forbid, opened=opened) for each in agent.sources),
        ],
        sub_agents=[watch_tools(each, ran, forbid=forbid) for each in agent.sub_agents],
    )


class _WatchedSource:
    """A source whose tools note when they run."""

    def __init__(self, source: ToolSource, ran: list[str], *, forbid: bool, opened: list[str] | None) -> None:
        self.source, self.ran, self.forbid, self.opened = source, ran, forbid, opened
        self.toolset = source.toolset

    @asynccontextmanager
    async def open(self) -> AsyncIterator[list[Tool]]:
        async with self.source.open() as tools:
            if self.opened is not None:
                self.opened += [f"{each.toolset}/{each.name}" for each in tools]
            yield [_watch_tool(each, self.ran, forbid=self.forbid) for each in tools]


def _watch_tool(real: Tool, ran: list[str], *, forbid: bool) -> Tool:
    path = f"{real.toolset}/{real.name}"

    async def run(args: Any) -> object:
        ran.append(path)
        if forbid:
            raise ForbiddenToolError(path)
        try:
            return await real.run(args)
        except SystemExit as error:  # asyncio would end its loop, and with it all other tasks
            raise ToolExitError(path, error.code) from error

    return msgspec.structs.replace(real, run=run)


def check_title(check: Check) -> str:
    """Name a check in the error about a tool that does not exist."""
    return f"check {name_of(check)!r}"


Pattern = tuple[str, str, bool]
"""The part of a task that names a tool, the name, and whether tools of sub-agents count."""


def _tool_patterns(task: Task) -> Iterator[Pattern]:
    """Yield each tool that a task names."""
    for pattern in tool_patterns_of(task.expected):
        yield EXPECTED, pattern, False
    for pattern in tool_patterns_of(task.mocks):
        yield MOCKS, pattern, True
    for fault in task.faults:
        yield FAULTS, fault.tool, True
    if task.limits is not None:
        for pattern in task.limits.max_calls_per_tool:
            yield LIMITS, pattern, False
    if task.stop is not None and task.stop.check is not None:
        yield from _check_patterns([task.stop.check])
    yield from _check_patterns(task.checks)


def _check_patterns(checks: Iterable[Check]) -> Iterator[Pattern]:
    for check in checks:
        for pattern in tool_patterns_of(check):
            yield check_title(check), pattern, False


def _unknown_tools(name: str, patterns: Iterable[Pattern], known: AgentTools) -> Iterator[ToolNameError]:
    """Yield an error for each tool that is named and that does not exist."""
    for what, pattern, sub_agents in patterns:
        problem = known.problem_with(pattern, sub_agents=sub_agents)
        if problem is not None:
            yield ToolNameError(name, what, pattern, problem)


def _model(task: Task) -> Model | None:
    if task.script is not None:
        return ScriptedModel(_number_calls(task.script), name=f"script of {task.id}")
    if task.model is None or hasattr(task.model, "respond"):
        return task.model  # type: ignore[return-value]  # what can respond is a model
    return task.model()


def _number_calls(turns: Sequence[ModelResponse]) -> list[ModelResponse]:
    number = 0
    found: list[ModelResponse] = []
    for turn in turns:
        calls: list[ToolRequest] = []
        for call in turn.tool_calls:
            number += 1
            calls.append(call if call.tool_call_id else msgspec.structs.replace(call, tool_call_id=f"call_{number}"))
        found.append(msgspec.structs.replace(turn, tool_calls=calls))
    return found


def _target(task: Task) -> list[str]:
    """Return what the answer should be or have; if no check says it, the expected calls."""
    if task.expected_output is not None:
        return [task.expected_output]
    texts = [text for check in task.checks for text in target_of(check)]
    return texts or ([] if task.expected is None else task.expected.target)


def _utility(checks: Sequence[CheckResult]) -> bool | None:
    counted = [check for check in checks if not check.left_out]
    return all(check.passed for check in counted) if counted else None
