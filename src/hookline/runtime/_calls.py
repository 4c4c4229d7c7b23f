"""What a step leads to: tool calls and sub-agent calls, each with its pair of events."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from time import perf_counter_ns
from typing import Any

import anyio
import msgspec

from hookline._frozen import ReadOnlyDict, read_only
from hookline.calls import SubAgentCall, ToolCall, ToolCalling, ToolResult, tool_failure
from hookline.errors import ToolArgumentsError, UnknownToolError, message_of
from hookline.events import (
    AfterCallAgent,
    AfterToolCall,
    BeforeCallAgent,
    BeforeToolCall,
    OnCallAgentError,
    OnToolCallError,
    ToolOutcome,
)
from hookline.runtime._agent import AGENT_IDENTIFIER, Agent
from hookline.runtime._run import OperationResult, Run, Step, new_operation_id
from hookline.runtime._tools import Tool, as_result

__all__ = ["answer_calls", "call_of", "run_call", "run_sub_agent", "shown_args"]

INTERRUPTED = "The run was interrupted before the tool had finished."


def parsed_args(calling: ToolCalling) -> tuple[ReadOnlyDict, str | None]:
    """The arguments as a read-only object, and what is wrong with the model's text if it is none."""
    given: object = calling.args
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given) if given.strip() else {}
        except (ValueError, RecursionError) as error:
            return ReadOnlyDict(), f"not JSON: {error}"
    if not isinstance(given, Mapping):
        return ReadOnlyDict(), f"expected a JSON object, got {type(given).__name__}"
    try:
        return read_only(given), None
    except RecursionError:
        return ReadOnlyDict(), "nested too deeply"


def shown_args(args: object) -> dict[str, Any] | str:
    """The arguments as the model gave them, read-only, for everybody to see and for every store to keep."""
    try:
        if isinstance(args, Mapping):
            return read_only(args)
        if isinstance(args, str):
            return args.encode(errors="backslashreplace").decode()  # half of a surrogate pair cannot be stored
        return repr(args)
    except RecursionError:
        return "(arguments that are nested too deeply)"


def call_of(run: Run, step: Step, calling: ToolCalling, tool: Tool | None) -> tuple[ToolCall, str | None]:
    """The call that is about to happen, and what is wrong with its arguments."""
    args, problem = parsed_args(calling)
    identifier = tool.identifier if tool else calling.identifier
    api_name = tool.name if tool else calling.api_name
    call = ToolCall(
        identifier=identifier,
        api_name=api_name,
        args=args,
        tool_call_id=calling.tool_call_id,
        call_index=run.call_indices.get(f"{identifier}/{api_name}", 0) + 1,
        step_index=step.index,
        operation_id=run.operation_id,
        tenant_id=run.tenant_id,
    )
    return call, problem


async def answer_calls(jobs: list[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Run the calls of one step; several overlap."""
    if len(jobs) <= 1:
        for job in jobs:
            await job()
        return
    try:
        async with anyio.create_task_group() as group:
            for job in jobs:
                group.start_soon(job)
    except BaseExceptionGroup as failures:
        if len(failures.exceptions) == 1:
            raise failures.exceptions[0] from None
        raise


async def run_call(run: Run, call: ToolCall, tool: Tool | None, problem: str | None) -> ToolOutcome:
    """One tool call of the model, from its arguments to what the model is told."""
    result = await call_tool(run, call, tool, problem)
    content = f"{result.error_type}: {result.content}" if result.error_type else result.content
    return ToolOutcome(
        identifier=call.identifier,
        api_name=call.api_name,
        tool_call_id=call.tool_call_id,
        content=content,
        success=result.success and result.error_type is None,
    )


async def call_tool(run: Run, call: ToolCall, tool: Tool | None, problem: str | None) -> ToolResult:
    """The seam around one tool call: `beforeToolCall` → mock or tool → `afterToolCall` or `onToolCallError`."""
    started = perf_counter_ns()
    event: BeforeToolCall | None = None
    try:
        result = None
        if run.hooked(BeforeToolCall):
            event = BeforeToolCall(**run.ids, **_of(call))
            result = await run.dispatcher.dispatch_before_tool_call(event)
        if result is None:
            event = None
            result = await run_tool(run, call, tool, problem)
    except BaseException as error:
        interrupted = ToolResult(content=INTERRUPTED, success=False, error_type="Interrupted")
        cancelled = isinstance(error, anyio.get_cancelled_exc_class())
        tell_result(run, call, interrupted if cancelled else tool_failure(error), started, None)
        raise
    tell_result(run, call, result, started, event)
    return result


async def run_tool(run: Run, call: ToolCall, tool: Tool | None, problem: str | None) -> ToolResult:
    """The tool itself. Whatever `Exception` it raises is its result."""
    try:
        if tool is None:
            known = [f"{spec.identifier}/{spec.name}" for spec in run.agent.specs]
            raise UnknownToolError(f"{call.identifier}/{call.api_name}", known)
        if problem is not None:
            raise ToolArgumentsError(call.api_name, problem)
        return as_result(call.api_name, await tool.run(call.args))
    except Exception as error:
        return tool_failure(error)
    except anyio.get_cancelled_exc_class() as error:
        if run.nobody_cancelled():
            return tool_failure(error)
        raise


def tell_result(run: Run, call: ToolCall, result: ToolResult, started: int, answered: BeforeToolCall | None) -> None:
    """The second event of the pair."""
    mocked: dict[str, Any] = {
        "mocked": answered is not None,
        "answered_by": answered.answered_by if answered is not None else None,
        "metadata": result.metadata,
        "execution_time_ms": (perf_counter_ns() - started) / 1e6,
    }
    if result.error_type is not None:
        if run.hooked(OnToolCallError):
            run.tell(
                OnToolCallError(**run.ids, **_of(call), error=result.content, error_type=result.error_type, **mocked)
            )
    elif run.hooked(AfterToolCall):
        run.tell(AfterToolCall(**run.ids, **_of(call), content=result.content, success=result.success, **mocked))


def _of(call: ToolCall) -> dict[str, Any]:
    return {
        "identifier": call.identifier,
        "api_name": call.api_name,
        "args": call.args,
        "call_index": call.call_index,
        "step_index": call.step_index,
        "tool_call_id": call.tool_call_id,
    }


async def run_sub_agent(run: Run, calling: ToolCalling, agent: Agent) -> ToolOutcome:
    """One call of a sub-agent, from its arguments to what the model is told."""
    args, problem = parsed_args(calling)
    instruction = args.get("instruction")
    if problem is None and not isinstance(instruction, str):
        problem = "`instruction` must be a string"
    call = SubAgentCall(
        callee_id=agent.id,
        instruction=instruction if isinstance(instruction, str) else "",
        operation_id=run.operation_id,
        tenant_id=run.tenant_id,
    )
    content, success = await call_sub_agent(run, call, agent, problem)
    return ToolOutcome(
        identifier=AGENT_IDENTIFIER,
        api_name=agent.id,
        tool_call_id=calling.tool_call_id,
        content=content,
        success=success,
    )


async def call_sub_agent(run: Run, call: SubAgentCall, agent: Agent, problem: str | None) -> tuple[str, bool]:
    """The seam around one sub-agent call: `beforeCallAgent` → child → `afterCallAgent` or `onCallAgentError`."""
    child_id = new_operation_id()
    if run.hooked(BeforeCallAgent):
        run.tell(BeforeCallAgent(**run.ids, callee_id=agent.id, instruction=call.instruction))
    try:
        if problem is not None:
            raise ToolArgumentsError(f"{AGENT_IDENTIFIER}/{agent.id}", problem)
        result = await run.exec_child(run, agent, call.instruction, child_id)
        if result.reason == "error":
            raise result.error or RuntimeError("unknown error")
    except Exception as error:
        if run.hooked(OnCallAgentError):
            run.tell(OnCallAgentError(**run.ids, callee_id=agent.id, error=message_of(error)))
        return f"The agent {agent.id!r} failed: {type(error).__name__}: {message_of(error)}", False
    except BaseException:
        tell_completed(run, agent, child_id, success=False)
        raise
    tell_completed(run, agent, child_id, success=result.reason == "done")
    return answer_of(agent, result), result.reason == "done"


def tell_completed(run: Run, agent: Agent, child_id: str, *, success: bool) -> None:
    """The second event of the pair, for a sub-agent that came to an end."""
    if run.hooked(AfterCallAgent):
        run.tell(
            AfterCallAgent(
                **run.ids, callee_id=agent.id, sub_operation_id=child_id, thread_id=child_id, success=success
            )
        )


def answer_of(agent: Agent, result: OperationResult) -> str:
    """What the calling model reads of a sub-agent that did not fail."""
    if result.reason == "done":
        return result.output
    if result.reason == "waiting_for_human":
        return (
            f"The agent {agent.id!r} waits for a person to decide about {len(result.pending)} tool call(s) in "
            f"operation {result.operation_id}; its work is not done."
        )
    said = f" It last said: {result.output}" if result.output else ""
    return f"The agent {agent.id!r} stopped early ({result.reason}).{said}"
