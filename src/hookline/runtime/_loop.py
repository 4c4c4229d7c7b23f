"""The loop: the order of events in one segment of a run, from top to bottom.

`run_segment` is the whole, `run_step` one turn, `ask_model` the model call; tool calls, sub-agent calls and compaction
have their seams in files of their own. Each seam is one function, so that what is to stand around it has one place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import msgspec

from hookline.calls import Message, ModelCall, ModelResponse, ToolCalling
from hookline.events import (
    AfterHumanIntervention,
    BeforeHumanIntervention,
    CompletionReason,
    OnStopByHumanIntervention,
    PendingTool,
    ToolOutcome,
)
from hookline.runtime._agent import Agent
from hookline.runtime._calls import INTERRUPTED, answer_calls, call_of, run_call, run_sub_agent, shown_args
from hookline.runtime._compaction import compact_if_needed
from hookline.runtime._models import respond
from hookline.runtime._run import Run, Step
from hookline.runtime._state import Decision, Reject
from hookline.runtime._tools import Tool

__all__ = ["run_segment"]

Job = Callable[[], Coroutine[Any, Any, None]]


async def run_segment(run: Run, decisions: Sequence[Decision] = ()) -> CompletionReason:
    """Run steps until the operation ends or waits for a person.

    Args:
        run: The segment.
        decisions: On a resume, what a person decided; the first step then takes the place of a model call.

    Returns:
        Why it ended.
    """
    while True:
        reason = await run_step(run, decisions)
        decisions = ()
        if reason is not None:
            return reason
        await run.save("running")


async def run_step(run: Run, decisions: Sequence[Decision]) -> CompletionReason | None:
    """One turn of the loop, between its two events.

    Returns:
        Why the run ends here, or `None` if another step follows.
    """
    step = run.before_step()
    reason: CompletionReason | None = "error"
    try:
        await run.take_turn()
        if decisions:
            reason = await resume_step(run, step, decisions)
        else:
            reason = await model_step(run, step)
        reason = reason or limit_reached(run)
    finally:
        run.after_step(step, should_continue=reason is None)
    run.step_index = None
    return reason


async def model_step(run: Run, step: Step) -> CompletionReason | None:
    """A step that asks the model, and does what it asks for."""
    await compact_if_needed(run, step)
    call = ModelCall(
        messages=list(run.messages),
        tools=run.agent.specs,
        model=getattr(run.agent.model, "name", ""),
        operation_id=run.operation_id,
        tenant_id=run.tenant_id,
    )
    response = await ask_model(run, call)
    run.count(step, response)
    step.calling = with_own_ids(response.tool_calls)
    run.messages.append(Message(role="assistant", content=response.content, tool_calls=step.calling))
    if not step.calling:
        return "done"
    step.type = "call_tool"
    run.open_calls = step.calling
    jobs: list[Job] = []
    pending: list[PendingTool] = []
    for calling in step.calling:
        job = await job_of(run, step, calling)
        if isinstance(job, PendingTool):
            pending.append(job)
        else:
            jobs.append(job)
    await answer_calls(jobs)
    if not pending:
        run.close_step(INTERRUPTED)
        return None
    step.type = "request_human_approve"
    run.pending = pending
    if run.hooked(BeforeHumanIntervention):
        run.tell(BeforeHumanIntervention(**run.ids, step_index=step.index, pending_tools=pending))
    return "waiting_for_human"


async def ask_model(run: Run, call: ModelCall) -> ModelResponse:
    """The seam around one model call."""
    return await respond(run.agent.model, call, run.agent.retry)


async def job_of(run: Run, step: Step, calling: ToolCalling) -> Job | PendingTool:
    """What one call of the model comes to: something to run now, or something to ask a person about."""
    found = run.agent.find(calling)
    if isinstance(found, Agent):
        return partial(keep, run, step, calling, partial(run_sub_agent, run, calling, found))
    call, problem = call_of(run, step, calling, found)
    if found is not None and problem is None and found.needs_approval is not False and await found.asks_first(call):
        return PendingTool(
            identifier=found.identifier, api_name=found.name, tool_call_id=calling.tool_call_id, args=call.args
        )
    run.count_call(call)
    return partial(keep, run, step, calling, partial(run_call, run, call, found, problem))


async def keep(run: Run, step: Step, calling: ToolCalling, work: Callable[[], Awaitable[ToolOutcome]]) -> None:
    """Run one call and note what the model is to be told."""
    run.outcomes[calling.tool_call_id] = step.outcomes[calling.tool_call_id] = await work()


async def resume_step(run: Run, step: Step, decisions: Sequence[Decision]) -> CompletionReason | None:
    """A step that takes a person's decisions in place of a model call."""
    step.type = "request_human_approve"
    for decision in decisions:
        run.decisions[decision.tool_call_id] = decision
        if run.hooked(AfterHumanIntervention):
            run.tell(decided(run, decision))
    stopped_by = next((each for each in decisions if isinstance(each, Reject) and not each.and_continue), None)
    if stopped_by is not None:
        stop(run, stopped_by)
        return "interrupted"
    if run.undecided():
        return "waiting_for_human"
    step.type = "call_tool"
    asked = {calling.tool_call_id: calling for calling in run.open_calls}
    jobs: list[Job] = []
    for pending in run.pending:
        step.calling.append(asked[pending.tool_call_id])
        decision = run.decisions[pending.tool_call_id]
        calling = as_calling(pending)
        if isinstance(decision, Reject):
            refused = told(pending, rejection(decision))
            run.outcomes[pending.tool_call_id] = step.outcomes[pending.tool_call_id] = refused
            continue
        found = run.agent.find(calling)
        tool = found if isinstance(found, Tool) else None
        call, problem = call_of(run, step, calling, tool)
        run.count_call(call)
        jobs.append(partial(keep, run, step, calling, partial(run_call, run, call, tool, problem)))
    await answer_calls(jobs)
    run.close_step(INTERRUPTED)
    return None


def stop(run: Run, decision: Reject) -> None:
    """End the run because a person refused; the conversation says what became of every call."""
    if run.hooked(OnStopByHumanIntervention):
        run.tell(
            OnStopByHumanIntervention(
                **run.ids, tool_call_id=decision.tool_call_id, rejection_reason=decision.reason or None
            )
        )
    for pending in run.pending:
        own = run.decisions.get(pending.tool_call_id)
        if isinstance(own, Reject):
            run.outcomes[pending.tool_call_id] = told(pending, rejection(own))
    run.close_step("Not run, because a person stopped the run.")


def limit_reached(run: Run) -> CompletionReason | None:
    """Why no further step may follow, if one of the agent's limits is reached."""
    if run.steps >= run.agent.max_steps:
        return "max_steps"
    limit = run.agent.cost_limit_usd
    if limit is not None and run.usage.cost_usd >= limit:
        return "cost_limit"
    return None


def with_own_ids(callings: Sequence[ToolCalling]) -> list[ToolCalling]:
    """The calls of one answer, each with an id that no other of them has, and with arguments nobody can edit."""
    seen: set[str] = set()
    unique = []
    for position, calling in enumerate(callings):
        name = calling.tool_call_id if isinstance(calling.tool_call_id, str) else ""
        while not name or name in seen:
            name = f"{name or 'call'}_{position}"
        seen.add(name)
        unique.append(msgspec.structs.replace(calling, tool_call_id=name, args=shown_args(calling.args)))
    return unique


def told(pending: PendingTool, content: str) -> ToolOutcome:
    """What the model is told of a call that did not run."""
    return ToolOutcome(
        identifier=pending.identifier,
        api_name=pending.api_name,
        tool_call_id=pending.tool_call_id,
        content=content,
        success=False,
    )


def as_calling(pending: PendingTool) -> ToolCalling:
    """A pending call as the model's call."""
    return ToolCalling(
        identifier=pending.identifier,
        api_name=pending.api_name,
        args=pending.args,
        tool_call_id=pending.tool_call_id,
    )


def rejection(decision: Reject) -> str:
    """What the model is told of a refused call."""
    return f"A person refused this call: {decision.reason}" if decision.reason else "A person refused this call."


def decided(run: Run, decision: Decision) -> AfterHumanIntervention:
    """The event of one decision."""
    if not isinstance(decision, Reject):
        return AfterHumanIntervention(**run.ids, action="approve", tool_call_id=decision.tool_call_id)
    return AfterHumanIntervention(
        **run.ids,
        action="rejectAndContinue" if decision.and_continue else "reject",
        tool_call_id=decision.tool_call_id,
        rejection_reason=decision.reason or None,
    )
