"""Ask real tools again what they answered when they were recorded, and only those that change nothing.

Each call is an operation of the task's own agent, with its hooks, whose model asks for nothing but that call. A guard
refuses every other one.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Literal

import anyio
import msgspec

from hookline.calls import Deny, ToolCall, ToolRequest
from hookline.errors import HooklineError, HookUsageError, message_of
from hookline.evals._canonical import canonical
from hookline.evals._equality import json_equal
from hookline.evals.cassette_checks._differences import ResultDifference, check_ignored, compare_results
from hookline.evals.cassettes import Cassette, RecordedCall, to_json_value
from hookline.events import AfterToolCall, OnToolCallError, is_interrupted
from hookline.hooks import Hooks
from hookline.runtime import Agent, InMemoryStore, ScriptedModel, Tool, exec_agent

__all__ = ["LiveCheck", "RepeatedCall", "open_agent", "repeat_calls", "sample_calls"]


class LiveCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Which recorded calls are made again, with real tools.

    A tool is called only if it is declared as `read_only`, or is named in `confirmed`. Calls that a person must approve
    and calls with redacted arguments are never made.

    Attributes:
        sample: How many recordings of each tool are made again at most.
        confirmed: Tools that are called although they are not declared as read-only, by path or name.
        ignore: Dotted fields of the answers that do not count: `["updated_at", "items.*.id"]`.
        seed: The seed of the choice.
        timeout: Seconds that each call may take.

    Raises:
        HookUsageError: If a value is invalid.
    """

    sample: int = 5
    confirmed: Collection[str] = ()
    ignore: Sequence[str] = ()
    seed: int = 0
    timeout: float = 60.0

    def __post_init__(self) -> None:
        if not isinstance(self.sample, int) or isinstance(self.sample, bool) or self.sample < 1:
            raise HookUsageError(f"`sample` is a whole number from 1; got {self.sample!r:.100}.")
        if isinstance(self.confirmed, str) or any("*" in tool or "?" in tool for tool in self.confirmed):
            raise HookUsageError(f"`confirmed` names each tool in full; got {self.confirmed!r:.100}.")
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, int | float) or not self.timeout > 0:
            raise HookUsageError(f"`timeout` is a positive number of seconds; got {self.timeout!r:.100}.")
        check_ignored(self.ignore)

    def confirms(self, tool: str) -> bool:
        """Whether a tool is named in `confirmed`."""
        return tool in self.confirmed or tool.rpartition("/")[2] in self.confirmed


class RepeatedCall(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A recorded call that was made again, or the reason why it was not.

    Attributes:
        tool: The tool, as `toolset/tool_name`.
        agent: The sub-agent that called it; empty for the main agent.
        args: The arguments as JSON, shortened.
        status: `"same"`; `"changed"`; `"skipped"`, if the call was not made or a hook answered it; `"failed"`, if it
            could not be made.
        why: Why it was skipped or failed.
        differences: The differences between the answers, the gravest first.
    """

    tool: str
    agent: str = ""
    args: str = "{}"
    status: Literal["same", "changed", "skipped", "failed"]
    why: str = ""
    differences: list[ResultDifference] = []

    @property
    def shape_changed(self) -> bool:
        """Whether more than a value of the answer has changed."""
        return any(difference.is_shape for difference in self.differences)


def sample_calls(counts: dict[tuple[str, str], list[Any]], live: LiveCheck) -> set[Any]:
    """Choose the recordings to make again.

    Args:
        counts: Recordings of each tool, by sub-agent and tool; of any kind that can be hashed.
        live: How many of each tool, and the seed.
    """
    chosen: set[Any] = set()
    for (agent, tool), recordings in counts.items():
        draw = random.Random(f"{live.seed}\0{agent}\0{tool}")
        chosen.update(draw.sample(recordings, min(live.sample, len(recordings))))
    return chosen


async def open_agent(agent: Agent, stack: AsyncExitStack) -> Agent:
    """Return an agent with the tools of its sources, which stay open until the stack is closed.

    Raises:
        Exception: Whatever a source raises that cannot be opened.
    """
    tools: list[Tool] = []
    for source in agent.sources:
        tools += await stack.enter_async_context(source.open())
    return agent.equipped(tools)


async def repeat_calls(
    agent: Agent, recordings: Sequence[RecordedCall], cassette: Cassette, live: LiveCheck
) -> list[RepeatedCall]:
    """Make recorded calls again, and compare the answers.

    Args:
        agent: The agent that has the tools, which are open.
        recordings: Its recordings.
        cassette: The cassette, which redacts the new answers as it redacted the recorded ones.
        live: What is allowed.
    """
    tools = {f"{tool.toolset}/{tool.name}": tool for tool in agent.tools if isinstance(tool, Tool)}
    repeated: list[RepeatedCall] = []
    for recording in recordings:
        tool = tools.get(recording.tool)
        reason = _why_not(tool, recording, cassette, live)
        if tool is None or reason is not None:
            repeated.append(_result(recording, "skipped", reason or ""))
        else:
            repeated.append(await _repeat(agent, tool, recording, cassette, live))
    return repeated


def _why_not(tool: Tool | None, recording: RecordedCall, cassette: Cassette, live: LiveCheck) -> str | None:
    """Explain why a call must not be made; `None` if it may."""
    if tool is None:
        return "the agent has no such tool"
    if not tool.read_only and not live.confirms(recording.tool):
        return f"it is not declared as read-only; if it changes nothing, confirm it with --tool {recording.tool}"
    if tool.needs_approval is not False:
        return "a person must approve its calls"
    if cassette.is_redacted(recording):
        return "its arguments were redacted"
    return None


async def _repeat(
    agent: Agent, tool: Tool, recording: RecordedCall, cassette: Cassette, live: LiveCheck
) -> RepeatedCall:
    """Make one call again, in an operation of its own, so that no call depends on how another one went."""
    toolset, _, name = recording.tool.rpartition("/")
    request = ToolRequest(name, recording.args, toolset=toolset, tool_call_id="again")
    caller = dataclasses.replace(
        agent,
        tools=[_limit_time(tool, live.timeout)],
        model=ScriptedModel([request, "done"]),
        sub_agents=(),
        compaction=None,
        max_steps=2,
        cost_limit_usd=None,
    )
    answers: list[AfterToolCall | OnToolCallError] = []
    hooks = [_watching_hooks(request, answers)]
    try:
        result = await exec_agent(caller, "Repeat a recorded call.", hooks=hooks, store=InMemoryStore())
    except HooklineError as error:
        return _result(recording, "failed", message_of(error))
    if result.denied is not None:
        return _result(recording, "skipped", f"hook {result.denied.hook_id!r} denied it: {result.denied.reason}")
    if result.pending:
        return _result(recording, "skipped", "a hook wants a person to approve it")
    if not answers:
        why = f"{type(result.error).__name__}: {message_of(result.error)}" if result.error else result.reason
        return _result(recording, "failed", f"the call was not made ({why})")
    return _compare(recording, answers[0], cassette, live)


class LateAnswerError(TimeoutError):
    """A tool had not answered in time when it was called again."""


def _limit_time(tool: Tool, seconds: float) -> Tool:
    async def run(args: Mapping[str, Any]) -> object:
        with anyio.move_on_after(seconds):
            return await tool.run(args)
        raise LateAnswerError(f"it had not answered within {seconds:g} s")

    return msgspec.structs.replace(tool, run=run)


def _watching_hooks(wanted: ToolRequest, answers: list[AfterToolCall | OnToolCallError]) -> Hooks:
    """Return hooks that refuse every other call, and keep the answer."""
    hooks = Hooks("cassettes.check")

    @hooks.guard(ToolCall)
    def only_recorded_calls(call: ToolCall) -> Deny | None:
        if (wanted.toolset, wanted.tool_name) != (call.toolset, call.tool_name):
            return Deny("only recorded calls of tools that change nothing are made here")
        if not json_equal(to_json_value(wanted.args), to_json_value(call.args)):
            return Deny("a hook of the agent has changed the recorded arguments")
        return None

    hooks.on(AfterToolCall)(answers.append)
    hooks.on(OnToolCallError)(answers.append)
    return hooks


def _compare(
    recording: RecordedCall, answer: AfterToolCall | OnToolCallError, cassette: Cassette, live: LiveCheck
) -> RepeatedCall:
    if answer.mocked or answer.answered_by is not None:
        said = answer.error if isinstance(answer, OnToolCallError) else answer.content
        return _result(recording, "skipped", f"hook {answer.answered_by!r} answered in its place: {said:.200}")
    if isinstance(answer, OnToolCallError) and answer.error_type == LateAnswerError.__name__:
        return _result(recording, "failed", answer.error)
    if isinstance(answer, OnToolCallError) and is_interrupted(answer):
        return _result(recording, "failed", "the call was interrupted")
    present = cassette.recording_of(answer)
    differences = compare_results(recording, present, ignore=live.ignore)
    return _result(recording, "changed" if differences else "same", "", differences)


def _result(
    recording: RecordedCall,
    status: Literal["same", "changed", "skipped", "failed"],
    why: str,
    differences: Iterable[ResultDifference] = (),
) -> RepeatedCall:
    return RepeatedCall(
        tool=recording.tool,
        agent=recording.agent,
        args=f"{canonical(recording.args):.200}",
        status=status,
        why=why,
        differences=list(differences),
    )
