"""The clauses about people, who approve and reject tool calls."""

from __future__ import annotations

import msgspec

from hookline.calls import Ask, ToolCall
from hookline.evals.adapter_contract._scenes import (
    PLAIN,
    decision_event,
    end_event,
    pause_events,
    step_events,
    stop_event,
    tool_events,
)
from hookline.evals.adapter_contract._stage import Ran, Scene, Stage
from hookline.evals.adapter_contract._witness import (
    Witness,
    check_equal,
    check_tool_results,
    check_true,
    expect,
    expect_stopped,
    toolset_of,
)
from hookline.events import AfterStep, BeforeHumanIntervention, BeforeStep, HookType
from hookline.hooks import Hooks
from hookline.runtime import Approve, Reject

__all__ = ["approve", "ask", "reject", "reject_and_continue"]

APPROVAL = msgspec.structs.replace(PLAIN, approval=frozenset({"add"}))


async def approve(stage: Stage) -> Witness:
    """A call that needs a person's approval waits for it, and runs once it is given."""
    witness, ran = await _play_until_pause(stage, APPROVAL)
    witness.forget()
    ran = await _resume(ran, Approve("t1"), witness)

    pair = tool_events(toolset_of(stage), content="3", step_index=1)
    witness.heard(
        [
            *step_events(1, decision_event("approve"), *pair),
            *step_events(2, last=True, content="done"),
            end_event(steps=3, tool_calls=1),
        ]
    )
    check_tool_results(ran, "3")
    return witness


async def reject(stage: Stage) -> Witness:
    """A rejection ends the run with `RunStopped`; the tool does not run."""
    witness, ran = await _play_until_pause(stage, APPROVAL)
    witness.forget()
    with expect_stopped(stage, "not today"):
        await _resume(ran, Reject("t1", reason="not today"), witness)

    decision = decision_event("reject", reason="not today")
    witness.heard(
        [
            expect(BeforeStep, step_index=1),
            decision,
            stop_event("not today"),
            expect(AfterStep, step_index=1, should_continue=False),
            end_event("interrupted", steps=2, tool_calls=0),
        ]
    )
    return witness


async def reject_and_continue(stage: Stage) -> Witness:
    """The model reads a rejection with `and_continue`, and the run continues."""
    witness, ran = await _play_until_pause(stage, APPROVAL)
    witness.forget()
    ran = await _resume(ran, Reject("t1", reason="not today", and_continue=True), witness)

    decision = decision_event("rejectAndContinue", reason="not today")
    witness.heard(
        [*step_events(1, decision), *step_events(2, last=True, content="done"), end_event(steps=3, tool_calls=0)]
    )
    check_tool_results(ran, "not today")
    return witness


async def ask(stage: Stage) -> Witness:
    """A hook may ask a person about a call. If the framework cannot ask anyone, the call is denied."""
    witness, hooks = Witness(stage), Hooks("asks")
    hooks.guard(ToolCall, id="asker")(lambda call: Ask("may I?"))
    if not stage.capabilities.asks:
        ran = await stage.play(PLAIN, [hooks, witness.hooks])
        check_equal("The calls that wait.", list(ran.pending), [])
        for after in (event for event in witness.events if event.hook_type == HookType.AFTER_TOOL_CALL):
            check_true("A call about which nobody can be asked is denied.", not after.success)
        return witness
    ran = await stage.play(PLAIN, [hooks, witness.hooks])
    witness.heard(pause_events())
    check_equal("The calls that wait.", list(ran.pending), ["t1"])
    for paused in witness.of(BeforeHumanIntervention):
        check_equal("The prompt for the person.", [each.prompt for each in paused.pending_tools], ["may I?"])
    witness.forget()
    assert ran.resume is not None
    ran = await ran.resume([Approve("t1")], [hooks, witness.hooks])

    witness.heard(
        [
            *step_events(1, decision_event("approve"), *tool_events(toolset_of(stage), content="3", step_index=1)),
            *step_events(2, last=True, content="done"),
            end_event(steps=3, tool_calls=1),
        ]
    )
    check_tool_results(ran, "3")
    return witness


async def _play_until_pause(stage: Stage, scene: Scene) -> tuple[Witness, Ran]:
    witness = Witness(stage)
    ran = await stage.play(scene, [witness.hooks])
    witness.heard(pause_events())
    check_equal("The calls that wait.", list(ran.pending), ["t1"])
    for paused in witness.of(BeforeHumanIntervention):
        shown = [(each.toolset, each.tool_name, each.args) for each in paused.pending_tools]
        check_equal("The calls that the person sees.", shown, [(toolset_of(stage), "add", {"a": 1, "b": 2})])
    return witness, ran


async def _resume(ran: Ran, decision: Approve | Reject, witness: Witness) -> Ran:
    assert ran.resume is not None, "A run that waits for a person can be resumed."
    return await ran.resume([decision], [witness.hooks])
