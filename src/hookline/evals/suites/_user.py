"""Suites of your own: an agent or its tools, and tasks with prompts, rules, expected calls and checks."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hookline.calls import ModelResponse, ToolRequest, ToolSpec
from hookline.dispatcher import HookDispatcher
from hookline.errors import HookUsageError
from hookline.evals.errors import ForbiddenToolError, ToolNameError
from hookline.evals.mocking import ToolMocks
from hookline.evals.running import CheckResult, TaskOutcome, select_tasks
from hookline.evals.suites._expected import Expected
from hookline.evals.suites._tool_names import EXPECTED, MOCKS, AgentTools, tool_patterns_of
from hookline.evals.suites.checks import Check, FinishedTask, name_of, run_check, target_of
from hookline.evals.trajectories import EventRecorder
from hookline.hooks import AnyHook
from hookline.runtime import Agent, Model, OperationStore, ScriptedModel, Tool, ToolSource, exec_agent

__all__ = ["Task", "UserSuite", "asks", "says"]

AnyTool = Tool | Callable[..., Any]


def asks(*calls: ToolRequest | str, say: str = "", **args: Any) -> ModelResponse:
    """Return a scripted turn in which the model calls tools: `asks("price", item="tea")`.

    Args:
        calls: One tool by name or path, with `args`; or several `ToolRequest`s, which run at the same time.
        say: The text of the turn.
        args: The arguments of the one tool.

    Raises:
        HookUsageError: If several calls are given with arguments for one.
    """
    if args and (len(calls) != 1 or not isinstance(calls[0], str)):
        raise HookUsageError("asks() takes arguments for one tool by name; give several calls as ToolRequests.")
    return ModelResponse(
        content=say,
        tool_calls=[call if isinstance(call, ToolRequest) else tool_request(call, args) for call in calls],
        finish_reason="tool_calls",
    )


def says(text: str) -> ModelResponse:
    """Return the scripted turn that ends a run: the model's answer."""
    return ModelResponse(content=text)


def tool_request(tool: str, args: dict[str, Any]) -> ToolRequest:
    """Return a request for a tool, given by name or path. The suite numbers it."""
    toolset, _, name = tool.rpartition("/")
    return ToolRequest(toolset=toolset or "local", tool_name=name, args=args, tool_call_id="")


@dataclass(frozen=True, kw_only=True)
class Task:
    """A prompt for the agent, and how to judge the result.

    Attributes:
        id: The task's name in its suite.
        prompt: The user's prompt.
        script: The turns of a scripted model; `None` to use `model`, or the agent's own model.
        model: A model, or a function that makes one for each run.
        mocks: Adds rules to the task's `ToolMocks`, in every mode.
        expected: The calls that solve the task.
        checks: Further checks.
        cassette: The task's cassette file, used if no folder of cassettes is given.
        tags: Words by which tasks are selected and reported.
    """

    id: str
    prompt: str
    script: Sequence[ModelResponse] | None = None
    model: Model | Callable[[], Model] | None = None
    mocks: Callable[[ToolMocks], object] | None = None
    expected: Expected | None = None
    checks: Sequence[Check] = ()
    cassette: str | Path | None = None
    tags: Sequence[str] = ()


class UserSuite:
    """Tasks for one agent. `hookline eval FILE.py` runs the one that a module calls `suite`.

    Args:
        name: The suite's name.
        tasks: The tasks.
        tools: The agent's tools, or a function that makes them, which gives each task its own state.
        agent: The agent, or a function that makes one; by default a plain one with `tools`.
        instructions: The plain agent's system message.
        cassette_options: Keyword arguments for its `Cassette`s: `{"ignore": ["request_id"]}`.
        tags: Tags of all tasks.

    Raises:
        HookUsageError: If two tasks have one id, a tag is not a text, or both tools and an agent are given.
        ToolNameError: If a check or an expectation is about a tool that the agent does not have. Tools that come from a
            source, such as an MCP server, are only known when it is open; such a check fails during the run.
    """

    def __init__(
        self,
        name: str,
        *,
        tasks: Iterable[Task],
        tools: Sequence[AnyTool] | Callable[[], Sequence[AnyTool]] = (),
        agent: Agent | Callable[[], Agent] | None = None,
        instructions: str = "",
        cassette_options: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.tags = _check_tags(f"Suite {name!r}", tags)
        self.cassette_options = dict(cassette_options or {})
        self._tasks: dict[str, Task] = {}
        for task in tasks:
            if task.id in self._tasks:
                raise HookUsageError(f"Suite {name!r} has two tasks {task.id!r}; rename one.")
            _check_tags(f"Task {task.id!r} of suite {name!r}", task.tags)
            self._tasks[task.id] = task
        if agent is not None and tools:
            raise HookUsageError(f"Suite {name!r} has an agent, which has its own tools; leave `tools` out.")
        self._tools = tools
        self._agent = agent
        self._instructions = instructions
        self._plain = self._make_agent(ScriptedModel([]))
        self._specs = list(self._plain.specs)
        known = AgentTools(self._plain)
        for task in self._tasks.values():
            for problem in _unknown_tools(f"{name}/{task.id}", task, known):
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
    def models(self) -> list[str]:
        """Names of the models of the tasks; a model that a function makes for each run is not among them."""
        agents_own = self._agent.model if isinstance(self._agent, Agent) else None
        used = [
            ScriptedModel([]) if task.script is not None else task.model or agents_own for task in self._tasks.values()
        ]
        names = (getattr(model, "name", None) for model in used)
        return list(dict.fromkeys(name for name in names if isinstance(name, str)))

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
        """Return the tags of a task: those of the suite, then its own."""
        return list(dict.fromkeys([*self.tags, *self.task(task_id).tags]))

    def ground_truth(self, task_id: str) -> list[ToolRequest]:
        """Return the calls that are expected in a task."""
        expected = self.task(task_id).expected
        return [] if expected is None else expected.ground_truth

    def arrange(self, task_id: str, mocks: ToolMocks) -> None:
        """Add the rules of a task."""
        rules = self.task(task_id).mocks
        if rules is not None:
            rules(mocks)

    def agent_of(self, task_id: str) -> Agent:
        """Return the agent of a task, with its model and with tools of its own."""
        return self._make_agent(_model(self.task(task_id)))

    def is_scripted(self, task_id: str) -> bool:
        """Whether a task can be run without asking a real model."""
        task = self.task(task_id)
        return task.script is not None or isinstance(task.model, ScriptedModel)

    def without_checks(self) -> UserSuite:
        """Return the suite with the same tasks, which are run but not judged."""
        return UserSuite(
            self.name,
            tasks=[dataclasses.replace(task, expected=None, checks=()) for task in self._tasks.values()],
            tools=self._tools,
            agent=self._agent,
            instructions=self._instructions,
            cassette_options=self.cassette_options,
        )

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
        """Run a task as one operation, and check the result.

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
        ran: list[str] = []
        made = self._make_agent(_model(task))
        opened: list[str] = []
        agent = watch_tools(made, ran, forbid=forbid_tools, opened=opened)
        recorder = EventRecorder(f"{self.name}.checks")
        result = await exec_agent(
            agent, task.prompt, hooks=[recorder.hooks, *hooks], dispatcher=dispatcher, store=store
        )
        finished = FinishedTask(
            id=task_id,
            prompt=task.prompt,
            result=result,
            recorded=recorder[result.operation_id],
            tools_forbidden=forbid_tools,
        )
        wanted: list[Check] = [*([] if task.expected is None else [task.expected]), *task.checks]
        checks = [await run_check(check, finished) for check in wanted]
        # The names of a source's tools are known only once it has opened.
        if made.sources and (opened or result.reason != "error"):
            unknown = _unknown_tools(f"{self.name}/{task_id}", task, AgentTools(made, opened))
            checks += [
                CheckResult(name=each.what, passed=False, score=0.0, why=each.problem, kind="unknown_tool")
                for each in unknown
            ]
        return TaskOutcome(
            suite=self.name,
            task_id=task_id,
            prompt=task.prompt,
            result=result,
            utility=_utility(checks),
            tools_run=0 if forbid_tools else len(ran),
            forbidden=len(ran) if forbid_tools else 0,
            checks=checks,
            target=_target(task),
        )

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
        return await real.run(args)

    return msgspec.structs.replace(real, run=run)


def check_title(check: Check) -> str:
    """Name a check in the error about a tool that does not exist."""
    return f"check {name_of(check)!r}"


def _unknown_tools(name: str, task: Task, known: AgentTools) -> Iterator[ToolNameError]:
    """Yield an error for each tool that a task names and that does not exist."""
    given: list[tuple[str, object, bool]] = [
        (EXPECTED, task.expected, False),
        (MOCKS, task.mocks, True),
        *((check_title(check), check, False) for check in task.checks),
    ]
    for what, thing, sub_agents in given:
        for pattern in tool_patterns_of(thing):
            problem = known.problem_with(pattern, sub_agents=sub_agents)
            if problem is not None:
                yield ToolNameError(name, what, pattern, problem)


def _check_tags(owner: str, tags: object) -> list[str]:
    if isinstance(tags, str) or not isinstance(tags, Sequence) or not all(isinstance(tag, str) and tag for tag in tags):
        raise HookUsageError(f"{owner} has the tags {tags!r:.100}; give a list of texts.")
    return list(tags)


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
    texts = [text for check in task.checks for text in target_of(check)]
    return texts or ([] if task.expected is None else task.expected.target)


def _utility(checks: Sequence[CheckResult]) -> bool | None:
    return all(check.passed for check in checks) if checks else None
