"""AgentDojo's four suites: real tools over real environments, with their own checks.

Source:
    AgentDojo 0.1.35, suites v1.2.2 (https://github.com/ethz-spylab/agentdojo).
"""

from __future__ import annotations

import copy
import functools
import importlib.metadata
import importlib.resources
import importlib.util
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from hookline.calls import ModelResponse, ToolRequest, ToolResult, ToolSpec
from hookline.dispatcher import HookDispatcher
from hookline.errors import HookUsageError, MissingExtraError, message_of
from hookline.evals.errors import ForbiddenToolError, UnknownSuiteError
from hookline.evals.mocking import ToolMocks
from hookline.evals.running import CheckResult, TaskOutcome, select_tasks
from hookline.evals.suites._agent_choice import GROUND_TRUTH, AgentChoice, AgentTask
from hookline.evals.suites._user import watch_tools
from hookline.hooks import AnyHook
from hookline.runtime import Agent, OperationResult, OperationStore, ScriptedModel, Tool, exec_agent

__all__ = ["SUITES", "VERSION", "AgentDojoSuite", "load_suite"]

SUITES = ("banking", "workspace", "travel", "slack")
"""The suites that there are."""

VERSION = "v1.2.2"
"""The version of the suites."""


class AgentDojoTask:
    """One user task, ready to run: its environment, and the calls that solve it.

    Attributes:
        id: The task's name in its suite.
        source: AgentDojo's object.
        before: The environment as it was.
        environment: The environment that the tools work on.
        ground_truth: The calls that solve the task.
    """

    def __init__(self, task_id: str, source: Any, environment: Any) -> None:
        self.id = task_id
        self.source = source
        self.environment = source.init_environment(environment.model_copy(deep=True))
        self.before = self.environment.model_copy(deep=True)
        self.ground_truth = source.ground_truth(self.before.model_copy(deep=True))

    def script(self, suite: str) -> list[ModelResponse]:
        """Return the turns of a model that solves the task: one per call, then the answer."""
        turns = [
            ModelResponse(
                tool_calls=[
                    ToolRequest(
                        toolset=suite, tool_name=call.function, args=dict(call.args), tool_call_id=f"call_{number}"
                    )
                ],
                finish_reason="tool_calls",
            )
            for number, call in enumerate(self.ground_truth, start=1)
        ]
        return [*turns, ModelResponse(content=self.source.GROUND_TRUTH_OUTPUT)]

    def utility(self, result: OperationResult) -> bool:
        """Whether the task is solved, as the suite judges it.

        Source:
            AgentDojo `TaskSuite._check_user_task_utility`: what was called decides where a task judges that, else the
            environment and the answer.
        """
        trace = [
            _agentdojo().FunctionCall(function=call.tool_name, args=call.args, id=call.tool_call_id)
            for message in result.messages
            for call in message.tool_calls
            if isinstance(call.args, Mapping)
        ]
        before = _share_unchanged(self.before, self.environment)
        judged = self.source.utility_from_traces(result.output, before, self.environment, trace)
        if judged is None:
            judged = self.source.utility(result.output, before, self.environment)
        return bool(judged)


class AgentDojoSuite:
    """One of AgentDojo's suites, as tools and tasks of hookline. `load_suite` makes it.

    Args:
        name: The suite; the `toolset` of its tools too.
        source: AgentDojo's object.
    """

    def __init__(self, name: str, source: Any) -> None:
        self.name = name
        self.versions = {"AgentDojo": importlib.metadata.version("agentdojo"), "AgentDojo suites": VERSION}
        self.choice: AgentChoice | None = None
        self._tasks: dict[str, Any] = dict(
            sorted(source.user_tasks.items(), key=lambda task: int(task[0].rpartition("_")[2]))
        )
        self._functions = list(source.tools)
        self._environment = source.load_and_inject_default_environment({})
        self._specs = {
            function.name: {
                "toolset": name,
                "name": function.name,
                "description": function.description,
                "schema": function.parameters.model_json_schema(),
            }
            for function in self._functions
        }

    def __repr__(self) -> str:
        return f"AgentDojoSuite({self.name!r}, tasks={len(self._tasks)}, tools={len(self._functions)})"

    @property
    def task_ids(self) -> list[str]:
        """The user tasks, by number."""
        return list(self._tasks)

    @property
    def tool_specs(self) -> list[ToolSpec]:
        """The suite's tools, as a model sees them."""
        return [ToolSpec(**spec) for spec in self._specs.values()]

    def prompt(self, task_id: str) -> str:
        """Return the prompt of a task."""
        self.select([task_id])
        return str(self._tasks[task_id].PROMPT)

    def tags_of(self, task_id: str) -> list[str]:
        """Return the difficulty of a task: `easy`, `medium` or `hard`."""
        self.select([task_id])
        difficulty = getattr(self._tasks[task_id], "DIFFICULTY", None)
        return [] if difficulty is None else [difficulty.name.lower()]

    def ground_truth(self, task_id: str) -> list[ToolRequest]:
        """Return the calls that solve a task, as the suite gives them."""
        return [call for turn in self.task(task_id).script(self.name) for call in turn.tool_calls]

    @property
    def model(self) -> str:
        """The name of the model, or of the agent, that was chosen by `with_agent`; empty for the ground truth."""
        return "" if self.choice is None else self.choice.name

    @property
    def models(self) -> list[str]:
        """The name of the model of the tasks: the ground truth, unless another one was chosen."""
        return [self.model or GROUND_TRUTH]

    def with_agent(self, choice: AgentChoice) -> AgentDojoSuite:
        """Return the suite with the same tasks, run by a model or an agent in place of the ground truth.

        The agent works with the tools of the suite on the environment of each task. The suite's checks judge it.

        Args:
            choice: The model or the agent.

        Raises:
            HookUsageError: If the agent that a function makes has none of the tools of the suite.
        """
        other = copy.copy(self)
        other.choice = choice
        if choice.replaces_agent:
            task_id = next(iter(self._tasks))
            made = choice.make(AgentTask(suite=self.name, id=task_id, prompt="", tools=self.forbidden_tools()))
            if not any(spec.name in self._specs for spec in made.specs):
                raise HookUsageError(
                    f"Agent {choice.name!r} has none of the tools of suite {self.name!r}; give it `task.tools`."
                )
        return other

    def agent_of(self, task_id: str) -> Agent:
        """Return the agent of a task, with the suite's tools over a fresh environment."""
        task = self.task(task_id)
        return self.make_agent(task, self.tools(task.environment))

    def make_agent(self, task: AgentDojoTask, tools: list[Tool]) -> Agent:
        """Return an agent for a task: the chosen one, or else one whose model plays the ground truth.

        A chosen model is given AgentDojo's system message.

        Args:
            task: The task.
            tools: The suite's tools over its environment.
        """
        choice = self.choice
        if choice is not None and choice.replaces_agent:
            given = AgentTask(suite=self.name, id=task.id, prompt=str(task.source.PROMPT), tools=tools)
            return choice.make(given)
        model = None if choice is None else choice.model
        if model is None:
            model = ScriptedModel(task.script(self.name), name=GROUND_TRUTH)
            return Agent(id=f"agentdojo-{self.name}", model=model, tools=tools)
        return Agent(id=f"agentdojo-{self.name}", model=model, tools=tools, instructions=_system_message())

    def is_scripted(self, task_id: str) -> bool:
        """Whether a task can be run without asking a real model."""
        return self.choice is None or self.choice.plays_ground_truth

    def arrange(self, task_id: str, mocks: ToolMocks) -> None:
        """Do nothing: the suite has no rules."""

    def select(self, names: Iterable[str] = ()) -> list[str]:
        """Return the tasks with these names, each once, or all tasks if there are no names.

        Raises:
            UnknownTaskError: If there is no such task. The message lists the tasks.
        """
        return select_tasks(self.name, self._tasks, names)

    def task(self, task_id: str) -> AgentDojoTask:
        """Return a task with a fresh environment.

        Raises:
            UnknownTaskError: If there is no such task. The message lists the tasks.
        """
        self.select([task_id])
        return AgentDojoTask(task_id, self._tasks[task_id], self._environment)

    def tools(self, environment: Any, ran: list[str] | None = None) -> list[Tool]:
        """Return the suite's tools over one environment.

        Args:
            environment: The environment that they read and change.
            ran: A list that collects the name of every tool that ran.
        """
        runtime = _agentdojo().FunctionsRuntime(self._functions)
        return [
            Tool(**spec, run=_runner(runtime, environment, name, [] if ran is None else ran))
            for name, spec in self._specs.items()
        ]

    def forbidden_tools(self, touched: list[str] | None = None) -> list[Tool]:
        """Return tools that look the same to a model, but raise `ForbiddenToolError` when run.

        Args:
            touched: A list that collects the name of every tool that was about to run.
        """
        touched = [] if touched is None else touched
        return [Tool(**spec, run=_refuser(self.name, name, touched)) for name, spec in self._specs.items()]

    async def run_task(
        self,
        task_id: str,
        *,
        hooks: Iterable[AnyHook] = (),
        dispatcher: HookDispatcher | None = None,
        store: OperationStore | None = None,
        forbid_tools: bool = False,
    ) -> TaskOutcome:
        """Run a task by its ground truth, or the chosen model or agent, as one operation.

        Args:
            task_id: The task.
            hooks: Hooks of this operation.
            dispatcher: An open dispatcher to share with other runs.
            store: The store of the operation.
            forbid_tools: No real tool may run; then there is no utility to check.

        Raises:
            UnknownTaskError: If there is no such task. The message lists the tasks.
        """
        task = self.task(task_id)
        ran: list[str] = []
        tools = self.forbidden_tools(ran) if forbid_tools else self.tools(task.environment, ran)
        agent = self.make_agent(task, tools)
        if self.choice is not None and self.choice.replaces_agent:  # it may have further tools
            ran = []
            agent = watch_tools(agent, ran, forbid=forbid_tools)
        result = await exec_agent(agent, task.source.PROMPT, hooks=hooks, dispatcher=dispatcher, store=store)
        utility, checks = (None, []) if forbid_tools else _judge(task, result)
        return TaskOutcome(
            suite=self.name,
            task_id=task_id,
            prompt=task.source.PROMPT,
            result=result,
            utility=utility,
            tools_run=0 if forbid_tools else len(ran),
            forbidden=len(ran) if forbid_tools else 0,
            checks=checks,
            target=[str(task.source.GROUND_TRUTH_OUTPUT)] if task.source.GROUND_TRUTH_OUTPUT else [],
        )


def _share_unchanged(before: Any, after: Any) -> Any:
    """Return what was before with the very objects of what is after wherever the two are equal.

    The checks compare environments with DeepDiff, which does not look into one and the same object: two thirds of the
    time that all tasks took were its comparison of what no tool had touched.
    """
    if before == after:
        return after
    if isinstance(before, dict) and isinstance(after, dict):
        return {key: _share_unchanged(value, after[key]) if key in after else value for key, value in before.items()}
    if isinstance(before, _agentdojo().BaseModel) and type(before) is type(after):
        return before.model_copy(update=_share_unchanged(vars(before), vars(after)))
    return before


def _judge(task: AgentDojoTask, result: OperationResult) -> tuple[bool, list[CheckResult]]:
    """Judge a run as the suite does. A check that raises counts as failed."""
    try:
        return task.utility(result), []
    except Exception as error:
        why = f"the check itself failed with {type(error).__name__}: {message_of(error)}"
        return False, [CheckResult(name="utility", passed=False, score=0.0, why=why)]


@functools.cache
def load_suite(name: str) -> AgentDojoSuite:
    """Load one of the four suites. The first time in a process takes about a second.

    Raises:
        UnknownSuiteError: If there is no such suite. The message lists the suites.
        MissingExtraError: If AgentDojo is not installed.
    """
    if name not in SUITES:
        raise UnknownSuiteError(name, list(SUITES))
    return AgentDojoSuite(name, _agentdojo().get_suite(VERSION, name))


@functools.cache
def _agentdojo() -> SimpleNamespace:
    """Import what is needed of AgentDojo, on first use."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _defer_module("agentdojo.agent_pipeline")
            _defer_module("agentdojo.agent_pipeline.llms.google_llm", EMPTY_FUNCTION_NAME="<empty-function-name>")
            from agentdojo.agent_pipeline.tool_execution import tool_result_to_str
            from agentdojo.functions_runtime import FunctionCall, FunctionsRuntime
            from agentdojo.task_suite.load_suites import get_suite
            from pydantic import BaseModel
    except ModuleNotFoundError as error:
        raise MissingExtraError("agentdojo", "Running AgentDojo's suites") from error
    return SimpleNamespace(
        BaseModel=BaseModel,
        get_suite=get_suite,
        FunctionCall=FunctionCall,
        FunctionsRuntime=FunctionsRuntime,
        tool_result_to_str=tool_result_to_str,
    )


def _defer_module(name: str, **known: object) -> None:
    """Make a module importable, and those of a package, without what it imports itself.

    `agentdojo.agent_pipeline` imports the clients of every model provider, and so does what a suite imports for a
    constant of `google_llm`: 1.6 s of the 1.8 s that a suite took to import, which needs none of them. The module runs
    when somebody asks for a name that it defines.

    Args:
        name: The module.
        known: Values of names of the module for which it need not run.
    """
    spec = importlib.util.find_spec(name)
    if name in sys.modules or spec is None or spec.loader is None:
        return
    loader, module, loading = spec.loader, importlib.util.module_from_spec(spec), threading.RLock()
    begun = False

    def load(attribute: str) -> object:
        nonlocal begun
        with loading:  # other threads wait until it is whole
            if not begun and attribute not in vars(module) and attribute != "__path__":  # any import asks for that
                begun = True
                try:
                    loader.exec_module(module)
                except BaseException:
                    begun = False
                    raise
            if attribute not in vars(module):
                raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
            return vars(module)[attribute]

    vars(module).update(known)
    module.__getattr__ = load  # type: ignore[method-assign]
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    setattr(sys.modules[parent], child, module)


@functools.cache
def _system_message() -> str:
    import yaml

    text = (importlib.resources.files("agentdojo") / "data" / "system_messages.yaml").read_text(encoding="utf-8")
    return str(yaml.safe_load(text)["default"])


def _runner(
    runtime: Any, environment: Any, name: str, ran: list[str]
) -> Callable[[Mapping[str, Any]], Awaitable[ToolResult]]:
    async def run(args: Mapping[str, Any]) -> ToolResult:
        ran.append(name)
        # A copy, since some tools put their arguments into the environment.
        result, error = runtime.run_function(environment, name, copy.deepcopy(args))
        if error is not None:
            return ToolResult(content=error, success=False)
        return ToolResult(content=_agentdojo().tool_result_to_str(result))

    return run


def _refuser(suite: str, name: str, touched: list[str]) -> Callable[[Mapping[str, Any]], Awaitable[ToolResult]]:
    async def run(args: Mapping[str, Any]) -> ToolResult:
        touched.append(name)
        raise ForbiddenToolError(f"{suite}/{name}")

    return run
