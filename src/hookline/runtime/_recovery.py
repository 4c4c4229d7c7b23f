"""Recover the step that a process which died left behind: no event fires twice, and no tool runs again."""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns

import anyio
import msgspec

from hookline.calls import AgentResult, StepCall, SubAgentCall, ToolCall, ToolRequest, ToolResult
from hookline.errors import (
    OperationBusyError,
    OperationExistsError,
    RunFailedError,
    UnknownToolError,
)
from hookline.events import LOST, LOST_TYPE, CompletionReason
from hookline.runtime._agent import AGENT_IDENTIFIER, Agent
from hookline.runtime._approvals import resume_step
from hookline.runtime._persistence import LOST_HERE
from hookline.runtime._run import Run, after_step
from hookline.runtime._seams import RunControl
from hookline.runtime._state import BegunCall, OpenStep, OperationResult, OperationState, Reject, Step
from hookline.runtime._steps import lead_step, limit_reached, make_job, model_step, run_jobs, run_step
from hookline.runtime._sub_agents import (
    describe_result,
    emit_completed,
    failed_result,
    lead_to_result,
    record_agent_result,
)
from hookline.runtime._tool_calls import Job, emit_result, failed_outcome

__all__ = ["recover", "stored_result"]

WITHHELD = "The tool ran, but its process died before hooks had seen its result, which is lost."


async def recover(run: Run) -> CompletionReason | None:
    """Continue the step that was running, from the last stored state. No event fires twice.

    Returns:
        Why the run ends here, or `None` if a step follows.
    """
    journal = run.journal
    journal.recovered = False
    left = journal.left
    if left is None:
        if journal.taking:
            return await run_step(run, journal.taking)
        if run.pending:
            return "waiting_for_human"  # what was decided had not been written
        return limit_reached(run)
    step = run.step = restore_step(run, left)
    journal.left = None
    reason: CompletionReason | None = "error"
    jobs = settle_begun_calls(run, step)
    try:
        await run.take_turn()
        work = partial(continue_step, run, step, jobs)
        if StepCall in run.intercepted:
            reason = await lead_step(run, step, work, pinned=left.entered)
        else:
            reason = await work() or limit_reached(run)
    except BaseException:
        emit_stopped_agents(run)
        raise
    finally:
        after_step(run, step, should_continue=reason is None)
    run.step_index = None
    return reason


def restore_step(run: Run, left: OpenStep) -> Step:
    """Return the step that was under way."""
    step = Step(left.index)
    step.content, step.reasoning, step.cost_usd = left.content, left.reasoning, left.cost_usd
    step.entered, step.guides = left.entered, left.guides or 0
    run.step_index = left.index
    if run.open_calls and not run.pending:
        step.type, step.calling = "call_tool", list(run.open_calls)
    known = [call.tool_call_id for call in run.open_calls if call.tool_call_id in run.outcomes]
    step.outcomes = {name: run.outcomes[name] for name in known}
    return step


async def continue_step(run: Run, step: Step, jobs: list[Job]) -> CompletionReason | None:
    """Run the rest of a step; `jobs` are the sub-agents that were under way."""
    if not run.open_calls:
        return await model_step(run, step)
    if run.pending:
        decisions = list(run.decisions.values())
        stops = any(isinstance(each, Reject) and not each.and_continue for each in decisions)
        if run.undecided() and not stops:
            step.type = "request_human_approve"
            return "waiting_for_human"
        return await resume_step(run, step, decisions)
    seen = set(step.outcomes) | set(run.journal.begun)
    for calling in run.open_calls:
        if calling.tool_call_id in seen or run.denied is not None:
            continue
        work = await make_job(run, step, calling)
        if work is not None:
            jobs.append(work)
    return await run_jobs(run, step, jobs)


def emit_stopped_agents(run: Run) -> None:
    """Emit the end of the sub-agents that could not continue, because their caller was stopped."""
    begun = run.journal.begun
    for name, each in list(begun.items()):
        if each.child is not None and not each.ended:
            emit_completed(run, restore_agent_call(run, each), each.child, success=False)
            begun.pop(name)


def settle_begun_calls(run: Run, step: Step) -> list[Job]:
    """Report the tools that were under way as lost.

    Returns:
        The jobs that continue the sub-agents that were under way.
    """
    journal = run.journal
    jobs: list[Job] = []
    callings = {calling.tool_call_id: calling for calling in run.open_calls}
    for name, begun in list(journal.begun.items()):
        calling = callings.get(name, begun.call)
        if begun.child is not None:
            jobs.append(RecoveredAgentJob(run, step, calling, begun))
            continue
        content = WITHHELD
        if not begun.ended:
            call = ToolCall(
                toolset=begun.call.toolset,
                tool_name=begun.call.tool_name,
                args=begun.call.args if isinstance(begun.call.args, dict) else {},
                tool_call_id=name,
                call_index=begun.call_index,
                step_index=step.index,
                **run.ids,
            )
            emit_result(run, call, ToolResult(content=LOST, success=False, error_type=LOST_TYPE), perf_counter_ns())
            content = f"{LOST_TYPE}: {LOST}"
        step.ran = True
        run.outcomes[name] = step.outcomes[name] = journal.close_call(
            failed_outcome(begun.call, content, run.waiting.get(name))
        )
    return jobs


def restore_agent_call(run: Run, begun: BegunCall) -> SubAgentCall:
    """Return the call of a sub-agent that was under way, as hooks had left it."""
    instruction = str(begun.call.args["instruction"]) if isinstance(begun.call.args, dict) else ""
    return SubAgentCall(callee_id=begun.call.tool_name, instruction=instruction, **run.ids)


class RecoveredAgentJob(msgspec.Struct, eq=False):
    """The call of a sub-agent that was under way when its process died; calling the job continues it.

    A sub-agent that has ended meanwhile does not run: its result is taken from the store.

    Attributes:
        run: The run that calls it.
        step: The step.
        request: The call as the model asked for it.
        begun: The call as it was stored.
    """

    run: Run
    step: Step
    request: ToolRequest
    begun: BegunCall

    async def __call__(self) -> None:
        run = self.run
        call = restore_agent_call(run, self.begun)
        self.step.ran = True

        async def terminal(final: SubAgentCall) -> AgentResult:
            return await continue_agent(run, final, self.begun)

        if SubAgentCall in run.intercepted:
            result = await lead_to_result(run, call, terminal, RunControl(run, run.watch, pinned=True))
        else:
            result = await terminal(call)
        record_agent_result(run, self.step, self.request, call.callee_id, result)


async def continue_agent(run: Run, call: SubAgentCall, begun: BegunCall) -> AgentResult:
    """Continue a sub-agent that was under way, and emit its end if that was not emitted before.

    Returns:
        The result for the model.
    """
    child_id = begun.child or ""
    agent = run.find(ToolRequest(toolset=AGENT_IDENTIFIER, tool_name=call.callee_id, tool_call_id=""))
    if not isinstance(agent, Agent):  # this process has another version of the agent
        outcome = None
        error: BaseException = UnknownToolError(f"{AGENT_IDENTIFIER}/{call.callee_id}", [])
    else:
        outcome = await load_or_run_child(run, agent, call.instruction, child_id)
        error = outcome.error or RunFailedError("", "")
        if isinstance(error, LOST_HERE):
            raise error
    announced, name = begun.ended, begun.call.tool_call_id
    run.journal.end_call(name)
    if outcome is None or outcome.reason == "error":
        return failed_result(run, call, error, announced=announced)
    if not announced:
        emit_completed(run, call, child_id, success=outcome.reason == "done")
    assert isinstance(agent, Agent)
    return AgentResult(output=describe_result(agent.id, outcome), reason=outcome.reason)


async def load_or_run_child(run: Run, agent: Agent, instruction: str, child_id: str) -> OperationResult:
    """Return the result of a sub-agent, from the store if it has ended, else by running it on."""
    for pause in (0.0, 0.05, 0.5):
        await anyio.sleep(pause)
        state = await run.store.load(child_id)
        if state is not None and state.status != "running":
            return stored_result(state, state.status)
        try:
            return await run.exec_child(run, agent, instruction, child_id, state)
        except (OperationBusyError, OperationExistsError) as error:  # a last write of its process came in between
            busy = error
    raise busy


def stored_result(state: OperationState, reason: CompletionReason) -> OperationResult:
    """Return the result of an operation as far as the store knows it."""
    return OperationResult(
        operation_id=state.operation_id,
        reason=reason,
        output=state.last_content,
        messages=list(state.messages),
        steps=state.steps,
        usage=state.usage,
        tool_calls=state.tool_calls,
        pending=[each for each in state.pending if each.tool_call_id not in state.decisions],
        error=RunFailedError(state.error_type or "", state.error_message or "") if reason == "error" else None,
    )
