"""The outermost seam: a whole run led through its `AgentCall` hooks, and continued where they ask for that."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from hookline.calls import AgentCall, AgentResult, Message
from hookline.events import CompletionReason
from hookline.runtime._control import RunControl, lead
from hookline.runtime._loop import limit_reached
from hookline.runtime._run import Run
from hookline.runtime._segment import run_segment
from hookline.runtime._state import Decision

__all__ = ["run_agent"]

logger = logging.getLogger("hookline")


async def run_agent(run: Run, decisions: Sequence[Decision] = ()) -> CompletionReason:
    """Run a segment whose `AgentCall` has hooks, and go on with more input as long as they give it.

    Args:
        run: The segment.
        decisions: On a resume, what a person decided.

    Returns:
        Why it ended.
    """
    resumed = bool(decisions) or run.recovering
    given = resumed_input(run) if resumed else run.messages[run.first_input() :]
    while True:
        call = AgentCall(
            input=given,
            instructions=run.instructions,
            tools=run.specs,
            metadata=run.metadata if resumed else {},
            **run.call_ids,
        )
        run.metadata = call.metadata
        reason, continues = await intercepted(run, call, decisions, resumed=resumed)
        decisions, resumed = (), False
        if reason != "done" or not continues or run.interrupted:
            return reason
        if run.continues >= run.agent.max_continues:
            logger.warning(
                "Operation %s: hooks ask to continue it once more, but it was continued %d time(s) already, which is "
                "the agent's `max_continues`",
                run.operation_id,
                run.continues,
            )
            return reason
        limit = limit_reached(run)
        if limit is not None:
            return limit
        run.continues += 1
        given = [Message(role="user", content="\n\n".join(continues))]
        run.history = len(run.messages)
        run.messages.extend(given)
        run.said_from = len(run.messages)


async def intercepted(
    run: Run, call: AgentCall, decisions: Sequence[Decision], *, resumed: bool
) -> tuple[CompletionReason, Sequence[str]]:
    """One run of the chain; why the run ended, and what it is to be continued with."""
    control = RunControl(run, pinned=resumed)
    reason: CompletionReason = "done"
    earlier = run.last_content if resumed else ""

    async def terminal(final: AgentCall) -> AgentResult:
        nonlocal reason
        if not resumed:
            begin(run, call, final)
        reason = await run_segment(run, decisions)
        control.suspended = reason == "waiting_for_human"
        return AgentResult(output=run.last_content, reason=reason)

    passage = await lead(run, call, terminal, control)
    if passage.denied is not None:
        run.denied = passage.denied
        if passage.reached:
            run.withhold(passage.denied)
        elif not resumed:
            run.refused_from = run.first_input()
        if run.text is not None:
            run.text.withheld(AgentCall)
        return "interrupted", ()
    result: AgentResult = passage.result
    if not passage.reached:
        if resumed:
            run.close_step("Not run, because a hook answered in place of the run.")
        else:
            begin(run, call, passage.call)
        run.messages.append(Message(role="assistant", content=result.output))
        run.last_content = result.output
    elif result.output != run.last_content and not control.suspended:
        run.restate(result.output)
    if run.text is not None:
        # A segment that said nothing ends with the words of the one before, which the reader has.
        silent = resumed and run.last_content == earlier and not run.text.keeps
        await run.text.passed(AgentCall, None if silent else run.last_content)
    return reason, passage.continues


def begin(run: Run, given: AgentCall, final: AgentCall) -> None:
    """Take what hooks made of the input, the instructions and the tools into the conversation."""
    if final.tools is not given.tools and final.tools != given.tools:
        run.offered, run.offer = list(final.tools), os.urandom(16).hex()
    before = run.messages[: run.first_input()]
    if final.instructions != given.instructions:
        system = Message(role="system", content=given.instructions)
        before = [message for message in before if message != system]
        if final.instructions:
            before.insert(0, Message(role="system", content=final.instructions))
        run.instructions = final.instructions
    run.messages = [*before, *final.input]
    run.said_from = len(run.messages)


def resumed_input(run: Run) -> list[Message]:
    """What the user said last, for a run that goes on after a pause."""
    return [message for message in run.messages if message.role == "user"][-1:]
