"""The events around a step and at the end of a segment, each built only if somebody wants it."""

from __future__ import annotations

import traceback
from time import perf_counter_ns

from hookline.errors import message_of
from hookline.events import AfterStep, BeforeStep, CompletionReason, Event, OnComplete, OnError
from hookline.runtime._result import Step
from hookline.runtime._run import Run

__all__ = ["after_step", "before_step", "endings"]

DETAIL_CHARACTERS = 8_000
"""How much of a traceback `OnError.error_detail` carries, counted from its end."""


def before_step(run: Run) -> Step:
    """Start a step."""
    step = Step(run.steps)
    run.step_index = step.index
    run.steps += 1
    if run.journal is not None:
        run.journal.step = step
    if run.hooked(BeforeStep):
        run.tell(BeforeStep(**run.ids, step_index=step.index))
    return step


def after_step(run: Run, step: Step, *, should_continue: bool) -> None:
    """End a step, whatever happened in it."""
    if not run.hooked(AfterStep):
        return
    now = perf_counter_ns()
    run.tell(
        AfterStep(
            **run.ids,
            step_index=step.index,
            step_type=step.type,
            content=step.content,
            reasoning=step.reasoning,
            tools_calling=step.calling,
            tools_result=step.results(),
            should_continue=should_continue,
            execution_time_ms=(now - step.started) / 1e6,
            elapsed_ms=run.active_ms(),
            step_cost_usd=step.cost_usd,
            total_cost_usd=run.usage.cost_usd,
            total_input_tokens=run.usage.input_tokens,
            total_output_tokens=run.usage.output_tokens,
            total_steps=run.steps,
            total_tool_calls=run.tool_calls,
        )
    )
    if run.journal is not None:
        run.journal.step = None


def endings(run: Run, reason: CompletionReason, error: BaseException | None) -> list[Event]:
    """What is told at the end of a segment, as far as anybody wants it: `onComplete`, then `onError` if it failed."""
    events: list[Event] = []
    failed = reason == "error" and error is not None
    if run.hooked(OnComplete):
        events.append(
            OnComplete(
                **run.ids,
                reason=reason,
                steps=run.steps,
                llm_calls=run.llm_calls,
                tool_calls=run.tool_calls,
                total_tokens=run.usage.input_tokens + run.usage.output_tokens,
                cost_usd=run.usage.cost_usd,
                duration_ms=run.active_ms(),
                last_assistant_content=run.last_content,
                error_type=type(error).__name__ if failed else None,
                error_message=message_of(error) if failed and error else None,
            )
        )
    if failed and error is not None and run.hooked(OnError):
        events.append(
            OnError(
                **run.ids,
                error_message=message_of(error),
                error_type=type(error).__name__,
                error_detail="".join(traceback.format_exception(error))[-DETAIL_CHARACTERS:],
                step_index=run.step_index,
            )
        )
    return events
