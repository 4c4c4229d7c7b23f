"""Apply what people decided about the tool calls of a paused run."""

from __future__ import annotations

from collections.abc import Sequence
from time import time_ns
from typing import Literal, TypeAlias

from hookline.calls import ToolRequest
from hookline.events import (
    AfterHumanIntervention,
    BeforeHumanIntervention,
    CompletionReason,
    OnStopByHumanIntervention,
    PendingTool,
)
from hookline.phases import Phase
from hookline.runtime._phase_moves import move_to
from hookline.runtime._run import Run
from hookline.runtime._state import Approve, Decision, Reject, Step
from hookline.runtime._tool_calls import INTERRUPTED, Job, failed_outcome, make_call, run_overlapping, tool_job
from hookline.runtime._tools import Tool

__all__ = [
    "DECIDED",
    "DECISIONS",
    "Action",
    "action_of",
    "ask_person",
    "decision_of",
    "emit_decision",
    "emit_pause",
    "emit_stop",
    "note_decisions",
    "note_pending",
    "rejection_text",
    "resume_step",
]

Action: TypeAlias = Literal["approve", "reject", "rejectAndContinue"]

DECISIONS: dict[str, str] = {
    "approve": "approve",
    "rejectAndContinue": "reject and continue",
    "reject": "reject and stop",
}
"""What a person can choose, in the order in which it is offered."""

DECIDED: dict[str, str] = {
    "approve": "approved",
    "rejectAndContinue": "rejected and continued",
    "reject": "rejected and stopped",
}
"""What a person has chosen, in the past tense."""


def action_of(decision: Decision) -> Action:
    """Return the name of a decision on the wire.

    Args:
        decision: What was decided.
    """
    if isinstance(decision, Approve):
        return "approve"
    return "rejectAndContinue" if decision.and_continue else "reject"


def decision_of(action: str, tool_call_id: str, reason: str = "") -> Decision:
    """Make a decision of its name on the wire.

    Args:
        action: What was decided.
        tool_call_id: About which call.
        reason: Why; an approval has none.
    """
    if action == "approve":
        return Approve(tool_call_id)
    return Reject(tool_call_id, reason, and_continue=action == "rejectAndContinue")


def note_decisions(run: Run, step: Step, decisions: Sequence[Decision]) -> None:
    """Note the decisions of a person, and emit the event of each."""
    step.type = "request_human_approve"
    for decision in decisions:
        run.decisions[decision.tool_call_id] = decision
        emit_decision(run, decision)
    run.journal.settle_decisions()


async def resume_step(run: Run, step: Step, decisions: Sequence[Decision]) -> CompletionReason | None:
    """Run a step that applies a person's decisions in place of a model call."""
    stopped_by = next((each for each in decisions if isinstance(each, Reject) and not each.and_continue), None)
    if stopped_by is not None:
        await move_to(run, Phase.TOOL_DENIED)
        stop_run(run, stopped_by)
        return "interrupted"
    if run.undecided():
        return "waiting_for_human"
    step.type = "call_tool"
    asked = {calling.tool_call_id: calling for calling in run.open_calls}
    jobs: list[Job] = []
    for pending in run.pending:
        step.calling.append(asked[pending.tool_call_id])
        if pending.tool_call_id in step.outcomes:
            continue  # a process that died had seen to it
        decision = run.decisions[pending.tool_call_id]
        calling = to_request(pending)
        if isinstance(decision, Reject):
            known = run.waiting.get(pending.tool_call_id)
            refused = failed_outcome(pending, rejection_text(decision), known)
            run.outcomes[pending.tool_call_id] = step.outcomes[pending.tool_call_id] = refused
            continue
        found = run.find(calling)
        tool = found if isinstance(found, Tool) else None
        waiting = run.waiting.get(calling.tool_call_id)
        asked_by = waiting.asked_by if waiting is not None else None
        call, problem = make_call(run, step, calling, tool)
        jobs.append(tool_job(run, step, calling, call, tool, problem, approved=True, asked_by=asked_by))
    await run_overlapping(run, jobs)
    if step.ran:
        await move_to(run, Phase.PROCESSING_TOOL_RESULT)
    if step.asked and run.denied is None:  # a control has changed what was approved
        for name in step.asked:
            del run.decisions[name]
        return await ask_person(run, step)
    if not step.ran:
        await move_to(run, Phase.TOOL_DENIED)
        await move_to(run, Phase.PROCESSING_USER_INPUT)
    run.close_step(INTERRUPTED)
    return None if run.denied is None else "interrupted"


async def ask_person(run: Run, step: Step) -> CompletionReason:
    """Pause the run, because a person must decide about some of the step's calls."""
    note_pending(
        run, step, [step.asked[calling.tool_call_id] for calling in step.calling if calling.tool_call_id in step.asked]
    )
    if not step.ran:
        await move_to(run, Phase.AWAITING_TOOL_APPROVAL)
    emit_pause(run, step)
    return "waiting_for_human"


def note_pending(run: Run, step: Step, pending: list[PendingTool]) -> None:
    """Note which calls of a step wait for a person from now on."""
    step.type = "request_human_approve"
    run.pending = pending
    run.waiting_since_unix_nano = time_ns()


def emit_pause(run: Run, step: Step) -> None:
    """Emit the event of a run that waits for a person."""
    if run.hooked(BeforeHumanIntervention):
        run.emit(BeforeHumanIntervention(**run.ids, step_index=step.index, pending_tools=run.pending))


def emit_stop(run: Run, decision: Reject) -> None:
    """Emit the event of a rejection that ends the run."""
    if run.hooked(OnStopByHumanIntervention):
        run.emit(
            OnStopByHumanIntervention(
                **run.ids, tool_call_id=decision.tool_call_id, rejection_reason=decision.reason or None
            )
        )


def stop_run(run: Run, decision: Reject) -> None:
    """End the run because a person refused; the conversation says what became of every call."""
    emit_stop(run, decision)
    for pending in run.pending:
        own = run.decisions.get(pending.tool_call_id)
        if isinstance(own, Reject):
            known = run.waiting.get(pending.tool_call_id)
            run.outcomes[pending.tool_call_id] = failed_outcome(pending, rejection_text(own), known)
    run.close_step("Not run, because a person stopped the run.")


def to_request(pending: PendingTool) -> ToolRequest:
    """Return the model's request for a pending call."""
    return ToolRequest(
        toolset=pending.toolset,
        tool_name=pending.tool_name,
        args=pending.args,
        tool_call_id=pending.tool_call_id,
    )


def rejection_text(decision: Reject) -> str:
    """Return what the model reads of a call that a person rejected."""
    return f"A person refused this call: {decision.reason}" if decision.reason else "A person refused this call."


def emit_decision(run: Run, decision: Decision) -> None:
    """Emit the event of one decision."""
    if run.hooked(AfterHumanIntervention):
        reason = decision.reason or None if isinstance(decision, Reject) else None
        run.emit(
            AfterHumanIntervention(
                **run.ids, action=action_of(decision), tool_call_id=decision.tool_call_id, rejection_reason=reason
            )
        )
