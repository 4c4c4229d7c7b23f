"""The loop of a run: one step after another, until the operation ends or waits for a person.

A step is in `_steps`; `_recovery` continues one that a process which died left behind.
"""

from __future__ import annotations

from collections.abc import Sequence

from hookline.calls import StepCall
from hookline.events import CompletionReason
from hookline.runtime._persistence import save
from hookline.runtime._recovery import recover
from hookline.runtime._run import Run
from hookline.runtime._state import Decision
from hookline.runtime._steps import run_step

__all__ = ["run_segment"]


async def run_segment(run: Run, decisions: Sequence[Decision] = ()) -> CompletionReason:
    """Run steps until the operation ends or waits for a person.

    Args:
        run: The segment.
        decisions: On a resume, what a person decided; the first step then takes the place of a model call.

    Returns:
        Why it ended.
    """
    if run.journal.recovered:
        reason = await recover(run)
        if reason is not None:
            return reason
        await save(run, "running")
    while True:
        reason = await run_step(run, decisions)
        decisions = ()
        if reason is not None:
            return reason
        if not next_step_saves_at_once(run):
            await save(run, "running")


def next_step_saves_at_once(run: Run) -> bool:
    """Whether the next step writes the run before anything in it can take long, so that one write serves both.

    Its first write comes before its model call. Interceptors of the step, a summary and the hooks of a phase come
    earlier, and each of them may wait. A run that is cancelled does not come so far.
    """
    return (
        run.journal.durable
        and not run.is_cancelled()
        and StepCall not in run.intercepted
        and run.agent.compaction is None
        and run.phases is None
    )
