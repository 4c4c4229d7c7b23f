"""Call sub-agents: each is an operation of its own, between a pair of events on its parent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from hookline.calls import AgentResult, SubAgentCall, ToolRequest
from hookline.errors import ToolArgumentsError, UnknownToolError, message_of
from hookline.events import AfterCallAgent, BeforeCallAgent, OnCallAgentError, ToolOutcome
from hookline.interceptors import Traversal
from hookline.runtime._agent import AGENT_IDENTIFIER, Agent
from hookline.runtime._inputs import new_operation_id
from hookline.runtime._persistence import LOST_HERE, checkpoint
from hookline.runtime._phase_moves import move_to_tools
from hookline.runtime._run import Run
from hookline.runtime._seams import RunControl, instrument, run_through_chain
from hookline.runtime._state import OperationResult, Step
from hookline.runtime._tool_calls import parse_args

__all__ = [
    "SubAgentJob",
    "describe_result",
    "emit_called",
    "emit_completed",
    "emit_failed",
    "emit_unrun_agent",
    "failed_result",
    "lead_agent_call",
    "lead_to_result",
    "record_agent_result",
]


class SubAgentJob(msgspec.Struct, eq=False):
    """One call of a sub-agent in a step, from its arguments to the result for the model. Calling the job runs it.

    Attributes:
        run: The run that calls it.
        step: The step.
        request: The call as the model asked for it.
        agent: The sub-agent.
    """

    run: Run
    step: Step
    request: ToolRequest
    agent: Agent

    async def __call__(self) -> None:
        run, request = self.run, self.request
        args, problem = parse_args(request)
        instruction = args.get("instruction")
        if problem is None and not isinstance(instruction, str):
            problem = "`instruction` must be a string"
        call = SubAgentCall(
            callee_id=self.agent.id,
            instruction=instruction if isinstance(instruction, str) else "",
            **run.ids,
        )
        await move_to_tools(run, self.step)
        if SubAgentCall in run.intercepted:
            result = await lead_sub_agent(run, call, problem, request)
        else:
            result = await call_sub_agent(run, call, problem, request)
        record_agent_result(run, self.step, request, self.agent.id, result)


def record_agent_result(run: Run, step: Step, calling: ToolRequest, callee_id: str, result: AgentResult) -> None:
    """Record the result of a sub-agent for the model."""
    outcome = ToolOutcome(
        toolset=AGENT_IDENTIFIER,
        tool_name=callee_id,
        tool_call_id=calling.tool_call_id,
        content=result.output,
        success=result.reason == "done",
    )
    run.outcomes[calling.tool_call_id] = step.outcomes[calling.tool_call_id] = run.journal.close_call(outcome)


async def lead_sub_agent(run: Run, call: SubAgentCall, problem: str | None, calling: ToolRequest) -> AgentResult:
    """Run one sub-agent call through its interceptors."""

    async def terminal(final: SubAgentCall) -> AgentResult:
        return await call_sub_agent(run, final, problem if final.instruction == call.instruction else None, calling)

    return await lead_to_result(run, call, terminal, RunControl(run, run.watch))


async def lead_to_result(
    run: Run, call: SubAgentCall, terminal: Callable[[SubAgentCall], Awaitable[AgentResult]], control: RunControl
) -> AgentResult:
    """Run a call of a sub-agent through its interceptors, and return a result in every case.

    Returns:
        The result for the model, also of a call that was denied or failed.
    """
    try:
        traversal = await lead_agent_call(run, call, terminal, control)
    except LOST_HERE:
        raise
    except Exception as error:  # the terminal raises none: a hook has answered with it
        emit_called(run, call)
        return failed_result(run, call, error)
    if not traversal.reached:
        return emit_unrun_agent(run, traversal)
    if traversal.denied is not None:
        output = f"The agent ran, but hook {traversal.denied.hook_id!r} withheld its answer: {traversal.denied.reason}"
        return AgentResult(output=output, reason="interrupted")
    result: AgentResult = traversal.result
    return result


async def lead_agent_call(
    run: Run,
    call: SubAgentCall,
    terminal: Callable[[SubAgentCall], Awaitable[AgentResult]],
    control: RunControl | None = None,
) -> Traversal:
    """Run a call of a sub-agent through its interceptors, and note a denial that ends the run."""
    traversal = await run_through_chain(run, call, terminal, control)
    if traversal.denied is not None and traversal.stop:
        run.denied = traversal.denied
    return traversal


def emit_unrun_agent(run: Run, traversal: Traversal) -> AgentResult:
    """Emit the pair of events of a call that a hook denied or answered.

    Returns:
        The result for the model.
    """
    call: SubAgentCall = traversal.call
    emit_called(run, call)
    if traversal.denied is not None:
        emit_failed(run, call, traversal.denied.reason)
        return AgentResult(output=traversal.denied.reason, reason="interrupted")
    answer: AgentResult = traversal.result
    if answer.reason == "error":
        emit_failed(run, call, answer.output)
    else:
        emit_completed(run, call, "", success=answer.reason == "done")
    return answer


def failed_result(run: Run, call: SubAgentCall, error: BaseException, *, announced: bool = False) -> AgentResult:
    """Return the result of a failed sub-agent for the model.

    Args:
        run: The run that called it.
        call: The call.
        error: What it failed with.
        announced: Whether its closing event has fired.
    """
    if not announced:
        emit_failed(run, call, message_of(error))
    output = f"The agent {call.callee_id!r} failed: {type(error).__name__}: {message_of(error)}"
    return AgentResult(output=output, reason="error")


def emit_called(run: Run, call: SubAgentCall) -> None:
    """Emit the first event of the pair."""
    if run.hooked(BeforeCallAgent):
        run.emit(BeforeCallAgent(**run.ids, callee_id=call.callee_id, instruction=call.instruction))


def emit_failed(run: Run, call: SubAgentCall, error: str) -> None:
    """Emit the second event of the pair, of a sub-agent that failed or was refused."""
    if run.hooked(OnCallAgentError):
        run.emit(OnCallAgentError(**run.ids, callee_id=call.callee_id, error=error))


async def call_sub_agent(run: Run, call: SubAgentCall, problem: str | None, calling: ToolRequest) -> AgentResult:
    """Call a sub-agent, inside of the interceptors: `beforeCallAgent` → child → its second event."""
    child_id = new_operation_id()
    run.journal.begin_agent(call, calling.tool_call_id, child_id)
    emit_called(run, call)
    work = run_sub_agent(run, call, problem, child_id)
    try:
        return await (instrument(run, call, work) if SubAgentCall in run.enclosing else work)
    finally:
        run.journal.end_call(calling.tool_call_id)  # however it ended, hooks were told


async def run_sub_agent(run: Run, call: SubAgentCall, problem: str | None, child_id: str) -> AgentResult:
    """Run the sub-agent itself, and emit the second event of the pair."""
    try:
        await checkpoint(run)
    except BaseException as error:
        failed_result(run, call, error)
        raise
    try:
        if problem is not None:
            raise ToolArgumentsError(f"{AGENT_IDENTIFIER}/{call.callee_id}", problem)
        agent = run.find(ToolRequest(toolset=AGENT_IDENTIFIER, tool_name=call.callee_id, tool_call_id=""))
        if not isinstance(agent, Agent):
            raise UnknownToolError(
                f"{AGENT_IDENTIFIER}/{call.callee_id}", [f"{spec.toolset}/{spec.name}" for spec in run.specs]
            )
        result = await run.exec_child(run, agent, call.instruction, child_id, None)
        result.raise_for_error()
    except Exception as error:
        answer = failed_result(run, call, error)
        if run.journal.durable and isinstance(error, LOST_HERE):
            raise  # the parent cannot go on either, and both are gone on with elsewhere
        return answer
    except BaseException:
        emit_completed(run, call, child_id, success=False)
        raise
    emit_completed(run, call, child_id, success=result.reason == "done")
    return AgentResult(output=describe_result(agent.id, result), reason=result.reason)


def emit_completed(run: Run, call: SubAgentCall, child_id: str, *, success: bool) -> None:
    """Emit the second event of the pair, of a sub-agent that came to an end."""
    if run.hooked(AfterCallAgent):
        run.emit(
            AfterCallAgent(
                **run.ids, callee_id=call.callee_id, sub_operation_id=child_id, thread_id=child_id, success=success
            )
        )


def describe_result(agent_id: str, result: OperationResult) -> str:
    """Return what the calling model reads of a sub-agent that did not fail."""
    if result.reason == "done":
        return result.output
    if result.reason == "waiting_for_human":
        return (
            f"The agent {agent_id!r} waits for a person to decide about {len(result.pending)} tool call(s) in "
            f"operation {result.operation_id}; its work is not done."
        )
    said = f" It last said: {result.output}" if result.output else ""
    return f"The agent {agent_id!r} stopped early ({result.reason}).{said}"
