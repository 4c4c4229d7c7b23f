"""Checks of a finished task: its answer, its calls, its limits, or any function of yours."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import msgspec

from hookline.calls import ToolCall, ToolRequest
from hookline.errors import HookUsageError, message_of
from hookline.evals.matching import Matcher, SeenCall, match
from hookline.evals.running import CheckResult
from hookline.evals.trajectories import RecordedOperation
from hookline.events import BeforeCallAgent, BeforeToolCall
from hookline.runtime import OperationResult

__all__ = [
    "Check",
    "FinishedTask",
    "called",
    "max_calls",
    "max_steps",
    "name_of",
    "not_called",
    "output_contains",
    "output_equals",
    "output_matches",
    "run_check",
    "target_of",
]

SHOWN = 300
"""How much of an answer is shown when it is not as expected."""


@dataclass(frozen=True, kw_only=True)
class FinishedTask:
    """A finished task, as checks see it.

    Attributes:
        id: The task.
        prompt: The user's prompt.
        result: The result of the run.
        recorded: The recorded events of the run.
        tools_forbidden: Whether no real tool could run, so that what they would have changed did not change.
    """

    id: str
    prompt: str
    result: OperationResult
    recorded: RecordedOperation
    tools_forbidden: bool = False

    @property
    def output(self) -> str:
        """The final answer."""
        return self.result.output

    @property
    def calls(self) -> list[ToolRequest]:
        """The tool calls, in the order in which the model asked for them."""
        return [
            ToolRequest(
                toolset=event.toolset,
                tool_name=event.tool_name,
                args=dict(event.args),
                tool_call_id=event.tool_call_id,
            )
            for event in self.recorded.calls
        ]

    @property
    def tool_results(self) -> list[str]:
        """The tool results that the model read, in their order."""
        return [message.content for message in self.result.messages if message.role == "tool"]


Check = Callable[[FinishedTask], object]
"""A function of the finished task, sync or async. `None` or True passes. False, a text that says what is missing, a
number from 0 to 1 (the share that is there), or an `AssertionError` fails.

A check that is made in many variants may have an attribute `kind`, one name for all of them: exports have a column for
each kind. It may have a `target`: a text or a list of texts that says what it expects."""


def output_contains(text: str) -> Check:
    """Check that the answer contains a text."""

    def check(task: FinishedTask) -> object:
        return text in task.output or f"the answer is {_format_output(task.output)}"

    return _name_check(check, f"output contains {text!r}", kind="output_contains", target=text)


def output_equals(text: str) -> Check:
    """Check that the answer is exactly a text."""

    def check(task: FinishedTask) -> object:
        return task.output == text or f"the answer is {_format_output(task.output)}"

    return _name_check(check, f"output equals {text!r}", kind="output_equals", target=text)


def output_matches(pattern: str) -> Check:
    """Check that a regular expression matches somewhere in the answer.

    Raises:
        HookUsageError: If the expression is invalid.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise HookUsageError(f"{pattern!r} is not a regular expression: {error}.") from error

    def check(task: FinishedTask) -> object:
        return compiled.search(task.output) is not None or f"the answer is {_format_output(task.output)}"

    return _name_check(check, f"output matches {pattern!r}", kind="output_matches")


def called(tool: str, args: Mapping[str, Any] | None = None, *, times: int | None = None) -> Check:
    """Check that a tool was called.

    Args:
        tool: The tool's path, its name, or a glob.
        args: Arguments that the call must have; it may have others. Any arguments by default.
        times: The exact number of calls. At least one by default.
    """
    matcher = _calls_of(tool, args)

    def check(task: FinishedTask) -> object:
        found = sum(matcher.matches(call) for call in _calls_seen(task))
        if (found == times) if times is not None else found:
            return True
        return f"it was called {found} times so; calls: {_paths(task)}"

    often = "" if times is None else f" {times} times"
    name = f"{tool} called{often}{f' with {dict(args)}' if args else ''}"
    return _name_check(check, name, tool, kind="called")


def not_called(tool: str, args: Mapping[str, Any] | None = None) -> Check:
    """Check that a tool was not called.

    Args:
        tool: The tool's path, its name, or a glob.
        args: Arguments that the call must have; it may have others. Any arguments by default.
    """
    matcher = _calls_of(tool, args)

    def check(task: FinishedTask) -> object:
        found = [call for call in _calls_seen(task) if matcher.matches(call)]
        return not found or f"it was called {len(found)} times, first with {dict(found[0].args)}"

    name = f"{tool} not called{f' with {dict(args)}' if args else ''}"
    return _name_check(check, name, tool, kind="not_called")


def max_calls(count: int, tool: str = "*") -> Check:
    """Check that there were at most this many tool calls.

    Args:
        count: The largest allowed number.
        tool: Count only calls of this tool, given by path, name or glob.
    """
    matcher = match.tool(tool)

    def check(task: FinishedTask) -> object:
        calls = task.recorded.calls if tool == "*" else _calls_seen(task)
        found = sum(matcher.matches(call) for call in calls)
        return found <= count or f"there were {found}: {_paths(task)}"

    name = f"at most {count} calls{'' if tool == '*' else f' of {tool}'}"
    return _name_check(check, name, tool, kind="max_calls")


def max_steps(count: int) -> Check:
    """Check that there were at most this many steps."""

    def check(task: FinishedTask) -> object:
        return task.result.steps <= count or f"there were {task.result.steps}"

    return _name_check(check, f"at most {count} steps", kind="max_steps")


async def run_check(check: Check, task: FinishedTask) -> CheckResult:
    """Run a check and return its result. A check that raises has failed, whatever it raised."""
    result = await _run_check(check, task)
    kind = getattr(check, "kind", "")
    if result.kind or not isinstance(kind, str):
        return result
    return msgspec.structs.replace(result, kind=kind)


async def _run_check(check: Check, task: FinishedTask) -> CheckResult:
    name = name_of(check)
    try:
        said = check(task)
        if inspect.isawaitable(said):
            said = await said
    except AssertionError as error:
        return CheckResult(name=name, passed=False, score=0.0, why=message_of(error) or "the assertion failed")
    except (KeyboardInterrupt, GeneratorExit, anyio.get_cancelled_exc_class()):
        raise
    except BaseException as error:  # `pytest.fail` and `sys.exit` raise BaseExceptions
        why = f"the check itself failed with {type(error).__name__}: {message_of(error)}"
        return CheckResult(name=name, passed=False, score=0.0, why=why)
    if isinstance(said, CheckResult):
        if 0 <= said.score <= 1:
            return said
        why = f"a score is a number from 0 to 1; this one is {said.score!r:.100}"
        return CheckResult(name=said.name, passed=False, score=0.0, why=why)
    if said is None or said is True:
        return CheckResult(name=name, passed=True, score=1.0)
    if said is False or isinstance(said, str):
        return CheckResult(name=name, passed=False, score=0.0, why=said or "")
    if isinstance(said, int | float) and 0 <= said <= 1:
        why = "" if said == 1 else f"only {said:.2f} of 1"
        return CheckResult(name=name, passed=said == 1, score=float(said), why=why)
    why = f"a check gives None, True, False, a text or a number from 0 to 1; this one gave {said!r:.100}"
    return CheckResult(name=name, passed=False, score=0.0, why=why)


def _calls_of(tool: str, args: Mapping[str, Any] | None) -> Matcher:
    matcher = match.tool(tool)
    return matcher if args is None else matcher & match.args(args, mode="superset")


def _name_check(check: Check, name: str, *tools: str, kind: str, target: str = "") -> Check:
    check.__name__ = name
    check.tool_patterns = tools  # type: ignore[attr-defined]  # a suite looks whether there are such tools
    check.kind, check.target = kind, target  # type: ignore[attr-defined]  # for exports
    return check


def target_of(check: Check) -> list[str]:
    """Return what a check expects, as texts; an empty list if it does not say."""
    found = getattr(check, "target", "")
    texts = [found] if isinstance(found, str) else found if isinstance(found, list | tuple) else []
    return [text for text in texts if isinstance(text, str) and text]


def _calls_seen(task: FinishedTask) -> list[SeenCall]:
    """Return the calls of tools and of sub-agents, which a model calls as the tools `agent/<id>`."""
    agents = Counter[str]()
    found: list[SeenCall] = []
    for event in task.recorded.events:
        if isinstance(event, BeforeToolCall):
            found.append(event)
        elif isinstance(event, BeforeCallAgent):
            agents[event.callee_id] += 1
            found.append(
                ToolCall(
                    toolset="agent",
                    tool_name=event.callee_id,
                    args={"instruction": event.instruction},
                    tool_call_id="",
                    call_index=agents[event.callee_id],
                    step_index=0,
                )
            )
    return found


def name_of(check: Check) -> str:
    """Return the name of a check in results."""
    return str(getattr(check, "__name__", None) or type(check).__name__)


def _paths(task: FinishedTask) -> str:
    return ", ".join(f"{call.toolset}/{call.tool_name}" for call in _calls_seen(task)) or "none"


def _format_output(text: str) -> str:
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r} and {len(text) - SHOWN} characters more"
