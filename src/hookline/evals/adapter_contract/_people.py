"""The clauses of the contract about people, who approve tool calls and reject them."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from hookline.calls import Ask, ToolCall
from hookline.evals.adapter_contract._scenes import PLAIN, complete, decided, step, stopped, tool_pair, waiting
from hookline.evals.adapter_contract._stage import Ran, Scene, Stage
from hookline.evals.adapter_contract._witness import Witness, expect, holds, same, told, toolset_of
from hookline.events import AfterStep, BeforeHumanIntervention, BeforeStep, HookType
from hookline.hooks import Hooks
from hookline.runtime import Approve, Reject

__all__ = ["approve", "ask", "reject", "reject_and_continue"]

APPROVAL = msgspec.structs.replace(PLAIN, approval=frozenset({"add"}))


async def approve(stage: Stage) -> Witness:
    """A call that needs a person's approval waits for it, and runs once it is given."""
    witness, ran = await _paused(stage, APPROVAL)
    witness.forget()
    ran = await _resumed(ran, Approve("t1"), witness)

    pair = tool_pair(toolset_of(stage), content="3", step_index=1)
    witness.heard(
        [*step(1, decided("approve"), *pair), *step(2, last=True, content="done"), complete(steps=3, tool_calls=1)]
    )
    told(ran, "3")
    return witness


async def reject(stage: Stage) -> Witness:
    """A rejection ends the run, by an exception in some frameworks; the tool does not run."""
    witness, ran = await _paused(stage, APPROVAL)
    witness.forget()
    with suppress(Exception):
        await _resumed(ran, Reject("t1", reason="not today"), witness)

    decision = decided("reject", reason="not today")
    witness.heard(
        [
            expect(BeforeStep, step_index=1),
            decision,
            stopped("not today"),
            expect(AfterStep, step_index=1, should_continue=False),
            complete("interrupted", steps=2, tool_calls=0),
        ]
    )
    return witness


async def reject_and_continue(stage: Stage) -> Witness:
    """A rejection with `and_continue` is told to the model, and the run goes on."""
    witness, ran = await _paused(stage, APPROVAL)
    witness.forget()
    ran = await _resumed(ran, Reject("t1", reason="not today", and_continue=True), witness)

    decision = decided("rejectAndContinue", reason="not today")
    witness.heard([*step(1, decision), *step(2, last=True, content="done"), complete(steps=3, tool_calls=0)])
    told(ran, "not today")
    return witness


async def ask(stage: Stage) -> Witness:
    """A hook may ask a person about a call; where nobody can be asked, that is a denial."""
    witness, hooks = Witness(stage), Hooks("asks")
    hooks.guard(ToolCall, id="asker")(lambda call: Ask("may I?"))
    if not stage.capabilities.asks:
        ran = await stage.play(PLAIN, [hooks, witness.hooks])
        same("Calls that wait.", list(ran.pending), [])
        for after in (event for event in witness.events if event.hook_type == HookType.AFTER_TOOL_CALL):
            holds("A call about which nobody can be asked is denied.", not after.success)
        return witness
    ran = await stage.play(PLAIN, [hooks, witness.hooks])
    witness.heard(waiting())
    same("Calls that wait.", list(ran.pending), ["t1"])
    for paused in witness.of(BeforeHumanIntervention):
        same("What the person is asked.", [each.prompt for each in paused.pending_tools], ["may I?"])
    witness.forget()
    assert ran.resume is not None
    ran = await ran.resume([Approve("t1")], [hooks, witness.hooks])

    witness.heard(
        [
            *step(1, decided("approve"), *tool_pair(toolset_of(stage), content="3", step_index=1)),
            *step(2, last=True, content="done"),
            complete(steps=3, tool_calls=1),
        ]
    )
    told(ran, "3")
    return witness


async def _paused(stage: Stage, scene: Scene) -> tuple[Witness, Ran]:
    witness = Witness(stage)
    ran = await stage.play(scene, [witness.hooks])
    witness.heard(waiting())
    same("Calls that wait.", list(ran.pending), ["t1"])
    for paused in witness.of(BeforeHumanIntervention):
        shown = [(each.toolset, each.tool_name, each.args) for each in paused.pending_tools]
        same("What the person is shown.", shown, [(toolset_of(stage), "add", {"a": 1, "b": 2})])
    return witness, ran


async def _resumed(ran: Ran, decision: Approve | Reject, witness: Witness) -> Ran:
    assert ran.resume is not None, "A run that waits for a person can be resumed."
    return await ran.resume([decision], [witness.hooks])
