"""Move a session from phase to phase, as the steps of its run go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookline._phase import Phase

if TYPE_CHECKING:
    from hookline.runtime._run import Run
    from hookline.runtime._state import Step

__all__ = ["move_to", "move_to_model", "move_to_tools"]


async def move_to(run: Run, phase: Phase) -> None:
    """Move the session of a run to a phase; a run without a session has no phases."""
    if run.phases is not None:
        await run.phases.move(phase)


async def move_to_model(run: Run) -> None:
    """Move a session to its model call, from wherever the last step ended."""
    phases = run.phases
    if phases is None:
        return
    if phases.phase is Phase.AWAITING_TOOL_APPROVAL:
        await phases.move(Phase.TOOL_DENIED)
    if phases.phase in (Phase.ANALYZING_LLM_RESPONSE, Phase.TOOL_DENIED):
        await phases.move(Phase.PROCESSING_USER_INPUT)
    await phases.move(Phase.AWAITING_LLM_RESPONSE)


async def move_to_tools(run: Run, step: Step) -> None:
    """Move a session to its tools, at the first call of a step."""
    if not step.ran:
        step.ran = True
        await move_to(run, Phase.EXECUTING_TOOL)
