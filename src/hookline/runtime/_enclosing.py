"""What a run does for the bundles that stand around its own work: they enter and leave in the run's own task.

Callers ask whether the class of the call is in `run.enclosing`, so that a run without such bundles pays nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TypeVar

from hookline.calls import Call, StepCall
from hookline.hooks import AnyHook
from hookline.instrumentation import EnclosingHooks, Segment
from hookline.runtime._run import Run

__all__ = ["begin_enclosing", "enclosed", "enclosed_step", "end_enclosing", "failed_step"]

R = TypeVar("R")


def begin_enclosing(run: Run, bundles: Sequence[EnclosingHooks]) -> Sequence[AnyHook]:
    """Let bundles begin a segment.

    Returns:
        The hooks of the run without those that want to hear nothing of this segment.
    """
    segment = segment_of(run)
    silent: list[EnclosingHooks] = []
    for hooks in bundles:
        begun, wanted = hooks.begin(segment)
        run.begun.append((hooks, begun))
        if not wanted:
            silent.append(hooks)
        else:
            for call in hooks.encloses:
                run.enclosing[call] = (*run.enclosing.get(call, ()), hooks)
        traceparent = hooks.carried(begun)
        if traceparent is not None and run.traceparents is segment.traceparents:
            run.traceparents = (*segment.traceparents[:1], traceparent)
    for hooks, begun in run.begun:
        hooks.attach(begun)
    if not silent and len(bundles) == sum(isinstance(entry, EnclosingHooks) for entry in run.hooks):
        return run.hooks
    # One that the agent and the caller have both given would count everything twice.
    return [
        entry
        for at, entry in enumerate(run.hooks)
        if not isinstance(entry, EnclosingHooks) or (entry not in silent and entry not in run.hooks[:at])
    ]


def end_enclosing(run: Run) -> None:
    """The segment is over, whatever it came to."""
    for hooks, begun in reversed(run.begun):
        hooks.end(begun)


def enclosed(run: Run, call: Call, work: Awaitable[R]) -> Awaitable[R]:
    """The run's own work for a call, with the bundles around it."""
    bundles = run.enclosing[call.__class__]
    return _by_one(bundles[0], call, work) if len(bundles) == 1 else _by_each(bundles, call, work)


def enclosed_step(run: Run, step_index: int, work: Awaitable[R]) -> Awaitable[R]:
    """What a step comes to, with the bundles around it."""
    return enclosed(run, StepCall(step_index=step_index, **run.call_ids), work)


def failed_step(run: Run, step_index: int, error: BaseException) -> None:
    """Let the bundles know what ended a step, where they could not stand around it: another framework has made it."""
    call = StepCall(step_index=step_index, **run.call_ids)
    for hooks in run.enclosing.get(StepCall, ()):
        hooks.leave(hooks.enter(call), None, error)


async def _by_one(hooks: EnclosingHooks, call: Call, work: Awaitable[R]) -> R:
    entered = hooks.enter(call)
    try:
        result = await work
    except BaseException as error:
        hooks.leave(entered, None, error)
        raise
    hooks.leave(entered, result, None)
    return result


async def _by_each(bundles: Sequence[EnclosingHooks], call: Call, work: Awaitable[R]) -> R:
    inside = [(hooks, hooks.enter(call)) for hooks in bundles]
    inside.reverse()
    try:
        result = await work
    except BaseException as error:
        for hooks, entered in inside:
            hooks.leave(entered, None, error)
        raise
    for hooks, entered in inside:
        hooks.leave(entered, result, None)
    return result


def segment_of(run: Run) -> Segment:
    """What is known of a segment when it begins."""
    resumed = run.version is not None and (bool(run.pending) or run.recovering)
    return Segment(
        **run.ids,
        conversation_id=run.conversation_id,
        model=told(run.agent.model, "name"),
        provider=told(run.agent.model, "provider"),
        resumed=resumed,
        traceparents=run.traceparents,
        waiting_since_unix_nano=run.waiting_since_unix_nano,
        llm_calls=run.llm_calls,
        tool_calls=run.tool_calls,
        input_tokens=run.usage.input_tokens,
        output_tokens=run.usage.output_tokens,
        input=() if resumed else run.messages[run.first_input() :],
        instructions=run.instructions,
        tools=run.specs,
        dispatcher=run.dispatcher,
    )


def told(model: object, name: str) -> str:
    """What a model says of itself; whether it can is no business of a run."""
    try:
        return str(getattr(model, name, ""))
    except Exception:
        return ""
