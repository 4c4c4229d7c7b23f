"""Checks of a finished task: its answer, its calls, its limits, or any function of yours."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, get_args

from hookline._checks import quote
from hookline.calls import ToolCall
from hookline.errors import HookUsageError
from hookline.evals.matching import Matcher, SeenCall, match
from hookline.evals.running import Check, CheckResult, ConversationEnd, FinishedTask, name_of, run_check
from hookline.evals.trajectories import Limits
from hookline.events import BeforeCallAgent, BeforeToolCall

__all__ = [
    "Check",
    "ExpectedOutput",
    "FinishedTask",
    "any_output_contains",
    "called",
    "conversation_ended",
    "max_calls",
    "max_steps",
    "name_of",
    "not_called",
    "output_as_expected",
    "output_contains",
    "output_equals",
    "output_matches",
    "run_check",
    "target_of",
    "within_limits",
]

SHOWN = 300
"""How much of an answer is shown when it is not as expected."""


def output_contains(text: str) -> Check:
    """Check that the final answer contains a text."""

    def check(task: FinishedTask) -> object:
        return text in task.output or f"the answer is {_format_output(task.output)}"

    return _name_check(check, f"output contains {text!r}", kind="output_contains", target=text)


def any_output_contains(text: str) -> Check:
    """Check that the answer of some turn of a conversation contains a text."""

    def check(task: FinishedTask) -> object:
        found = any(text in output for output in task.outputs)
        return found or f"the answers are {', '.join(map(_format_output, task.outputs))}"

    return _name_check(check, f"any output contains {text!r}", kind="any_output_contains")


def output_equals(text: str) -> Check:
    """Check that the final answer is exactly a text."""

    def check(task: FinishedTask) -> object:
        return task.output == text or f"the answer is {_format_output(task.output)}"

    return _name_check(check, f"output equals {text!r}", kind="output_equals", target=text)


def output_matches(pattern: str) -> Check:
    """Check that a regular expression matches somewhere in the final answer.

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


ExpectedOutput = Literal["contains", "equals"]
"""How an answer is compared with the one that a task expects."""


def output_as_expected(how: ExpectedOutput = "contains") -> Check:
    """Check that the final answer contains, or equals, the `expected_output` of its task.

    A task without one is not judged by this check, and does not fail for it.

    Args:
        how: `"contains"` or `"equals"`.

    Raises:
        HookUsageError: If it is anything else.
    """
    if how not in get_args(ExpectedOutput):
        raise HookUsageError(f"output_as_expected takes 'contains' or 'equals'; got {quote(how)}.")
    name = "output as expected" if how == "contains" else "output equals the expected one"

    def check(task: FinishedTask) -> object:
        wanted = task.expected_output
        if wanted is None:
            why = "the task has no expected output"
            return CheckResult(name=name, passed=False, score=0.0, why=why, judged=False, required=False)
        good = wanted in task.output if how == "contains" else wanted == task.output
        return good or f"expected {_format_output(wanted)}; the answer is {_format_output(task.output)}"

    return _name_check(check, name, kind="output_as_expected")


def conversation_ended(*how: ConversationEnd) -> Check:
    """Check how a conversation ended, for example `conversation_ended("user")`: the simulated user was done.

    Args:
        how: The accepted ends: `"turns"`, `"max_turns"`, `"phrase"`, `"check"`, `"user"`, `"reason"`.

    Raises:
        HookUsageError: If there is no such end.
    """
    known = [each for each in get_args(ConversationEnd) if each]
    if not how or not set(how) <= set(known):
        raise HookUsageError(f"A conversation ends by {', '.join(known)}; got {', '.join(map(quote, how)) or 'none'}.")

    def check(task: FinishedTask) -> object:
        return task.conversation_end in how or f"it ended by {task.conversation_end or 'its only answer'}"

    return _name_check(check, f"conversation ended by {' or '.join(how)}", kind="conversation_ended")


def within_limits(limits: Limits) -> Check:
    """Check that the task, with all turns of a conversation, kept to limits of calls, steps, tokens and cost."""
    if not isinstance(limits, Limits):
        raise HookUsageError(f"within_limits takes Limits; got {quote(limits)}.")

    def check(task: FinishedTask) -> object:
        return " ".join(limits.check(task.recorded)) or True

    return _name_check(check, "within limits", *limits.max_calls_per_tool, kind="limits")


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


def _paths(task: FinishedTask) -> str:
    return ", ".join(f"{call.toolset}/{call.tool_name}" for call in _calls_seen(task)) or "none"


def _format_output(text: str) -> str:
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r} and {len(text) - SHOWN} characters more"
