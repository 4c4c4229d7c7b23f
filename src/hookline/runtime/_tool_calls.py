"""Run the tool calls of a step, each through its interceptors and between its pair of events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any

import anyio
import msgspec
from msgspec import UNSET

from hookline._readonly import ReadOnlyDict, keep_jsonable, read_only
from hookline.calls import (
    AddedContext,
    Ask,
    Denial,
    ToolCall,
    ToolRequest,
    ToolResult,
    append_context,
    context_takers,
    merge_context,
    tool_failure,
)
from hookline.errors import ToolArgumentsError, UnknownToolError
from hookline.events import (
    INTERRUPTED,
    INTERRUPTED_TYPE,
    AfterToolCall,
    BeforeToolCall,
    OnToolCallError,
    PendingTool,
    ToolOutcome,
    tool_event_fields,
)
from hookline.interceptors import Traversal
from hookline.runtime._agent import Agent
from hookline.runtime._persistence import LOST_HERE, checkpoint
from hookline.runtime._phase_moves import move_to_tools
from hookline.runtime._run import Run
from hookline.runtime._seams import RunControl, instrument, run_through_chain
from hookline.runtime._state import Step, WaitingCall
from hookline.runtime._tools import Tool, as_result

__all__ = [
    "INTERRUPTED",
    "InterceptedToolJob",
    "Job",
    "ToolJob",
    "call_tool",
    "emit_result",
    "failed_outcome",
    "freeze_args",
    "make_call",
    "parse_args",
    "record_outcome",
    "run_overlapping",
    "to_pending",
    "tool_job",
]

Job = Callable[[], Coroutine[Any, Any, None]]
"""One call of a step, ready to run; calling it runs it and records what the model is told."""


def parse_args(request: ToolRequest) -> tuple[ReadOnlyDict, str | None]:
    """Return a call's arguments as a read-only object, and what is wrong with the model's text if it is none."""
    given: object = request.args
    if given.__class__ is ReadOnlyDict:
        return given, None
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given) if given.strip() else {}
        except (ValueError, RecursionError) as error:
            return ReadOnlyDict(), f"not JSON: {error}"
    if not isinstance(given, dict | Mapping):
        return ReadOnlyDict(), f"expected a JSON object, got {type(given).__name__}"
    try:
        return read_only(given), None
    except RecursionError:
        return ReadOnlyDict(), "nested too deeply"


def freeze_args(args: object) -> dict[str, Any] | str:
    """Return arguments as the model gave them, read-only, so that everybody may see and every store keep them."""
    try:
        if isinstance(args, dict | Mapping):
            return read_only(args)
        if isinstance(args, str):
            return args.encode(errors="backslashreplace").decode()  # half of a surrogate pair cannot be stored
        return repr(args)
    except RecursionError:
        return "(arguments that are nested too deeply)"


def make_call(run: Run, step: Step, request: ToolRequest, tool: Tool | None) -> tuple[ToolCall, str | None]:
    """Return the call that is about to happen, and what is wrong with its arguments."""
    args, problem = parse_args(request)
    waiting = run.waiting.get(request.tool_call_id) if run.waiting else None
    toolset = tool.toolset if tool else request.toolset
    tool_name = tool.name if tool else request.tool_name
    call = ToolCall(
        toolset=toolset,
        tool_name=tool_name,
        args=args,
        tool_call_id=request.tool_call_id,
        call_index=waiting.call_index if waiting else run.call_indices.get(f"{toolset}/{tool_name}", 0) + 1,
        step_index=step.index,
        metadata=dict(waiting.metadata) if waiting else {},
        operation_id=run.operation_id,
        agent_id=run.agent_id,
        user_id=run.user_id,
        tenant_id=run.tenant_id,
        parent_operation_id=run.parent_operation_id,
        tags=run.tags,
    )
    return call, problem


async def run_overlapping(run: Run, jobs: Sequence[Job]) -> None:
    """Run the calls of one step; several run at the same time."""
    if len(jobs) <= 1:
        for job in jobs:
            await job()
        return
    try:
        async with anyio.create_task_group() as group:
            for job in jobs:
                group.start_soon(partial(_run_and_write, run, job) if run.journal.durable else job)
    except BaseExceptionGroup as failures:
        lost: BaseException | None = failures.subgroup(LOST_HERE)
        while isinstance(lost, BaseExceptionGroup):
            lost = lost.exceptions[0]
        if lost is not None:
            raise lost from None  # no failure of the operation, whatever else came of it
        if len(failures.exceptions) == 1:
            raise failures.exceptions[0] from None
        raise


async def _run_and_write(run: Run, job: Job) -> None:
    """Run one of several calls, and write the run when it has ended, since others may take long."""
    try:
        await job()
        await checkpoint(run)
    except LOST_HERE:
        run.journal.lost = True
        raise


class ToolJob(msgspec.Struct, eq=False):
    """One tool call of a step without interceptors. Calling the job runs it.

    Attributes:
        run: The run.
        step: The step.
        request: The call as the model asked for it.
        call: The call as it will run.
        tool: The tool, if there is one.
        problem: What is wrong with its arguments.
    """

    run: Run
    step: Step
    request: ToolRequest
    call: ToolCall
    tool: Tool | None
    problem: str | None

    async def __call__(self) -> None:
        run, step, call = self.run, self.step, self.call
        run.tool_calls += 1
        record_outcome(run, step, self.request, call, await call_tool(run, step, call, self.tool, self.problem))


class InterceptedToolJob(msgspec.Struct, eq=False):
    """One tool call of a step that goes through interceptors; calling the job runs it.

    The interceptors may let it run, change it, answer it, deny it, or have a person asked.

    Attributes:
        run: The run.
        step: The step.
        request: The call as the model asked for it.
        call: The call before its interceptors run.
        tool: The tool, if there is one.
        problem: What is wrong with its arguments.
        approved: Whether a person has approved it.
        asked_by: The hook that had the person asked, where hooks further inside were not asked.
        context: The texts that hooks had added for the model before the call waited for a person; after the call, all
            that the model reads with its result.
    """

    run: Run
    step: Step
    request: ToolRequest
    call: ToolCall
    tool: Tool | None
    problem: str | None
    approved: bool = False
    asked_by: tuple[str, int] | None = None
    context: Sequence[AddedContext] = ()

    async def __call__(self) -> None:
        run, step, approved = self.run, self.step, self.approved
        control = RunControl(
            run,
            run.watch,
            pinned=approved,
            decided=approved,
            approved=approved,
            asked_by=self.asked_by,
            ask=self._ask,
        )
        traversal = await run_through_chain(run, self.call, self._reach_tool, control)
        final: ToolCall = traversal.call if traversal.reached else reindex_call(run, traversal.call, self.call)
        if traversal.asked is not None and not run.can_ask:
            hook_id = traversal.asked_by.id if traversal.asked_by is not None else ""
            traversal.denied = Denial(hook_id=hook_id, reason=f"Nobody can be asked here: {traversal.asked.prompt}")
        elif traversal.asked is not None:
            self._wait_for_person(final, traversal, traversal.asked)
            return
        if traversal.denied is not None and traversal.stop:
            run.denied = traversal.denied
        if traversal.reached:
            result = traversal.result if traversal.denied is None else withheld_result(traversal.denied)
        else:
            run.tool_calls += 1
            result = await emit_unrun_tool(run, step, final, traversal)
        if traversal.context:
            self.context = merge_context(self.context, traversal.context)
        record_outcome(run, step, self.request, final, result, self.context)

    def _reach_tool(self, final: ToolCall) -> Awaitable[ToolResult]:
        """Run the tool of the call as its interceptors have left it."""
        run = self.run
        run.tool_calls += 1
        if run.journal.durable and (taker := context_takers.get(id(final.metadata))) is not None and taker.context:
            self._keep_context(taker.context)
        if final is self.call:
            return call_tool(run, self.step, final, self.tool, self.problem)
        tool, problem = self._target_of(final)
        return call_tool(run, self.step, reindex_call(run, final, self.call), tool, problem)

    def _keep_context(self, context: Sequence[AddedContext]) -> None:
        """Keep the texts of hooks with the state, so that the model reads them even if this process dies."""
        waiting, name = self.run.waiting, self.request.tool_call_id
        waiting[name] = msgspec.structs.replace(waiting[name], context=list(merge_context(self.context, context)))

    def _target_of(self, final: ToolCall) -> tuple[Tool | None, str | None]:
        """Return the tool of a call that interceptors have changed, and what is wrong with its arguments."""
        call = self.call
        tool: Tool | Agent | None = self.tool
        if (final.toolset, final.tool_name) != (call.toolset, call.tool_name):
            tool = self.run.find(final)
        return tool if isinstance(tool, Tool) else None, self.problem if final.args is call.args else None

    def _ask(self, final: ToolCall) -> Awaitable[Ask | None] | None:
        """Return whether a person must approve the call because its tool says so; see `RunPolicy.ask`."""
        tool, problem = (self.tool, self.problem) if final is self.call else self._target_of(final)
        if tool is None or problem is not None or tool.needs_approval is False:
            return None
        return _ask_if_needed(tool, final)

    def _wait_for_person(self, final: ToolCall, traversal: Traversal, asked: Ask) -> None:
        """Note that the call waits for a person, and who had the person asked."""
        asker = traversal.asked_by
        self.run.waiting[self.request.tool_call_id] = WaitingCall(
            call_index=final.call_index,
            metadata=keep_jsonable(final.metadata),
            asked_by=(asker.id, traversal.asked_nth) if asker is not None else None,
            context=list(merge_context(self.context, traversal.context)) or UNSET,
        )
        self.step.asked[self.request.tool_call_id] = to_pending(
            final, asked.prompt, asked_by="" if asker is None else asker.id
        )


def tool_job(
    run: Run,
    step: Step,
    request: ToolRequest,
    call: ToolCall,
    tool: Tool | None,
    problem: str | None,
    *,
    approved: bool = False,
    asked_by: tuple[str, int] | None = None,
) -> ToolJob | InterceptedToolJob:
    """Make the job of one tool call, and reserve the call's index.

    Args:
        run: The run.
        step: The step.
        request: The call as the model asked for it.
        call: The call before its interceptors run.
        tool: The tool, if there is one.
        problem: What is wrong with its arguments.
        approved: Whether a person has approved it.
        asked_by: The hook that had the person asked, where hooks further inside were not asked.
    """
    run.reserve_index(call)
    if ToolCall in run.intercepted:
        waiting = run.waiting.get(request.tool_call_id) if run.waiting else None
        context = (waiting.context or ()) if waiting is not None else ()
        return InterceptedToolJob(run, step, request, call, tool, problem, approved, asked_by, context)
    return ToolJob(run, step, request, call, tool, problem)


def reindex_call(run: Run, final: ToolCall, call: ToolCall) -> ToolCall:
    """Return the final call; one that became a call of another tool gets an index of that tool."""
    if final is call or (final.toolset, final.tool_name) == (call.toolset, call.tool_name):
        return final
    path = f"{final.toolset}/{final.tool_name}"
    final = msgspec.structs.replace(final, call_index=run.call_indices.get(path, 0) + 1)
    run.reserve_index(final)
    return final


async def _ask_if_needed(tool: Tool, call: ToolCall) -> Ask | None:
    """Ask a person if the tool says that this call needs approval."""
    return Ask("") if await tool.asks_first(call) else None


def to_pending(call: ToolCall, prompt: str = "", *, asked_by: str = "") -> PendingTool:
    """Return a call as a person is shown it.

    Args:
        call: The call.
        prompt: The question to the person.
        asked_by: The id of the hook that asks; `""` if the tool says so itself.
    """
    return PendingTool(
        toolset=call.toolset,
        tool_name=call.tool_name,
        tool_call_id=call.tool_call_id,
        args=keep_jsonable(call.args),  # as every store keeps them: what a person sees is what runs
        prompt=prompt,
        asked_by=asked_by,
    )


def withheld_result(denial: Denial) -> ToolResult:
    """Return the result for the model of a call whose result was withheld."""
    return ToolResult(
        content=f"The tool ran, but hook {denial.hook_id!r} withheld its result: {denial.reason}", success=False
    )


def failed_outcome(request: ToolRequest | PendingTool, content: str, waiting: WaitingCall | None = None) -> ToolOutcome:
    """Return the outcome of a call that did not run, or whose result is lost.

    Args:
        request: The call.
        content: The result for the model.
        waiting: The call as it was stored, with the texts that hooks have added to it.
    """
    if waiting is not None and waiting.context:
        content = append_context(content, waiting.context)
    return ToolOutcome(
        toolset=request.toolset,
        tool_name=request.tool_name,
        tool_call_id=request.tool_call_id,
        content=content,
        success=False,
    )


async def emit_unrun_tool(run: Run, step: Step, call: ToolCall, traversal: Traversal) -> ToolResult:
    """Emit the pair of events of a call that a hook denied or answered.

    Returns:
        The result for the model.
    """
    await move_to_tools(run, step)
    started = perf_counter_ns()
    answer: ToolResult = traversal.answer
    result: ToolResult = traversal.result
    answered_by = traversal.answered_by
    mocked = traversal.denied is None
    if traversal.denied is not None:
        answer = result = ToolResult(content=traversal.denied.reason, success=False)
        answered_by = traversal.denied.hook_id
    try:
        if run.hooked(BeforeToolCall):
            event = BeforeToolCall(**run.ids, **tool_event_fields(call))
            event.__dict__["standing"] = True  # observers see the call; their mocks come too late
            denial = await run.ask_observers(event)
            if denial is not None and traversal.denied is None:
                answer = result = denial
                answered_by, mocked = event.answered_by, False
    finally:
        emit_result(run, call, answer, started, answered_by=answered_by, mocked=mocked)
    return result


def record_outcome(
    run: Run,
    step: Step,
    request: ToolRequest,
    call: ToolCall,
    result: ToolResult,
    context: Sequence[AddedContext] = (),
) -> None:
    """Record the result of a tool call for the model, with the texts that hooks have added to the call."""
    content = f"{result.error_type}: {result.content}" if result.error_type else result.content
    if context:
        content = append_context(content, context)
    if run.waiting:
        run.waiting.pop(request.tool_call_id, None)
    outcome = ToolOutcome(
        toolset=call.toolset,
        tool_name=call.tool_name,
        tool_call_id=request.tool_call_id,
        content=content,
        success=result.success and result.error_type is None,
    )
    if run.journal.durable:
        outcome = run.journal.close_call(outcome)
    run.outcomes[request.tool_call_id] = step.outcomes[request.tool_call_id] = outcome


async def call_tool(run: Run, step: Step, call: ToolCall, tool: Tool | None, problem: str | None) -> ToolResult:
    """Call a tool, inside of its interceptors: `beforeToolCall` → mock or tool → its second event."""
    if run.phases is not None:
        await move_to_tools(run, step)
    step.ran = True
    started = perf_counter_ns()
    event: BeforeToolCall | None = None
    try:
        result = None
        if run.hooked(BeforeToolCall):
            event = BeforeToolCall(
                operation_id=run.operation_id,
                agent_id=run.agent_id,
                user_id=run.user_id,
                tenant_id=run.tenant_id,
                parent_operation_id=run.parent_operation_id,
                tags=run.tags,
                toolset=call.toolset,
                tool_name=call.tool_name,
                args=call.args,
                call_index=call.call_index,
                step_index=call.step_index,
                tool_call_id=call.tool_call_id,
            )
            result = await run.ask_observers(event)
        if result is None:
            event = None
            if run.journal.durable and run.writes_ahead:
                await checkpoint(run)
            work = run_tool(run, call, tool, problem)
            result = await (instrument(run, call, work) if ToolCall in run.enclosing else work)
    except BaseException as error:
        interrupted = ToolResult(content=INTERRUPTED, success=False, error_type=INTERRUPTED_TYPE)
        cancelled = isinstance(error, anyio.get_cancelled_exc_class())
        emit_result(run, call, interrupted if cancelled else tool_failure(error), started)
        raise
    answered_by = event.answered_by if event is not None else None
    emit_result(run, call, result, started, answered_by=answered_by, mocked=event is not None and event.mocked)
    return result


async def run_tool(run: Run, call: ToolCall, tool: Tool | None, problem: str | None) -> ToolResult:
    """Run the tool itself. An `Exception` that it raises becomes its result."""
    try:
        if tool is None:
            raise UnknownToolError(
                f"{call.toolset}/{call.tool_name}", [f"{spec.toolset}/{spec.name}" for spec in run.specs]
            )
        if problem is not None:
            raise ToolArgumentsError(call.tool_name, problem)
        return as_result(call.tool_name, await tool.run(call.args))
    except Exception as error:
        return tool_failure(error)
    except anyio.get_cancelled_exc_class() as error:
        if run.nobody_cancelled():
            return tool_failure(error)
        raise


def emit_result(
    run: Run, call: ToolCall, result: ToolResult, started: int, *, answered_by: str | None = None, mocked: bool = False
) -> None:
    """Emit the second event of the pair."""
    kind = AfterToolCall if result.error_type is None else OnToolCallError
    if not run.hooked(kind):
        return
    if result.error_type is None:
        run.emit(
            AfterToolCall(
                operation_id=run.operation_id,
                agent_id=run.agent_id,
                user_id=run.user_id,
                tenant_id=run.tenant_id,
                parent_operation_id=run.parent_operation_id,
                tags=run.tags,
                toolset=call.toolset,
                tool_name=call.tool_name,
                args=call.args,
                call_index=call.call_index,
                step_index=call.step_index,
                tool_call_id=call.tool_call_id,
                content=result.content,
                success=result.success,
                mocked=mocked,
                answered_by=answered_by,
                metadata=result.metadata,
                execution_time_ms=(perf_counter_ns() - started) / 1e6,
            )
        )
    else:
        run.emit(
            OnToolCallError(
                **run.ids,
                **tool_event_fields(call),
                error=result.content,
                error_type=result.error_type,
                mocked=mocked,
                answered_by=answered_by,
                metadata=result.metadata,
                execution_time_ms=(perf_counter_ns() - started) / 1e6,
            )
        )
