"""Record the events of runs, and replay recorded events to telemetry."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio

from hookline.cli.errors import TraceTargetError
from hookline.dispatcher import HookDispatcher
from hookline.evals.trajectories import read_events
from hookline.events import EVENTS, BeforeToolCall, Event
from hookline.hooks import Hooks
from hookline.otel import TracingHooks

__all__ = ["EventRecording", "load_events", "replay_events"]


class EventRecording:
    """A bundle of observers that keeps all events of its runs, in order.

    Attributes:
        hooks: The bundle, to give to runs.
        events: The events so far.
    """

    def __init__(self) -> None:
        self.hooks = Hooks("recording", inherit=True)
        self.events: list[Event] = []
        for kind in EVENTS.values():
            self.hooks.on(kind, id=f"recording.{kind.hook_type}")(self.events.append)


def load_events(target: str) -> list[Event]:
    """Return the events of a recorded run.

    Raises:
        TraceTargetError: If there is no such file, or nothing in it.
        EventFileError: If a line of it is not an event.
    """
    if not Path(target).exists():
        raise TraceTargetError(target, "there is no such file, and a suite is written agentdojo:banking")
    events = read_events(target)
    if not events:
        raise TraceTargetError(target, "it has no events")
    return events


def replay_events(tracing: TracingHooks, events: Sequence[Event]) -> None:
    """Dispatch recorded events to a bundle, as their run did."""
    anyio.run(partial(_replay, tracing, events))


async def _replay(tracing: TracingHooks, events: Sequence[Event]) -> None:
    async with HookDispatcher() as dispatcher:
        for group in group_operations(events):
            operations = list(dict.fromkeys(event.operation_id for event in group))
            for operation_id in operations:
                dispatcher.register(operation_id, [tracing])
            for event in group:
                if isinstance(event, BeforeToolCall):
                    await dispatcher.dispatch_before_tool_call(event)
                else:
                    dispatcher.dispatch(event)
            tracing.close(max(event.time_unix_nano for event in group))
            for operation_id in operations:
                await dispatcher.unregister(operation_id)


def group_operations(events: Sequence[Event]) -> list[list[Event]]:
    """Group events of operations that called one another; each group keeps the order of the recording."""
    parents = {event.operation_id: event.parent_operation_id for event in events}
    tops: dict[str, str] = {}
    groups: dict[str, list[Event]] = {}
    for event in events:
        operation_id = event.operation_id
        if operation_id not in tops:
            seen, top = {operation_id}, operation_id
            while (parent := parents.get(top)) in parents and parent is not None and parent not in seen:
                seen.add(parent)
                top = parent
            tops[operation_id] = top
        groups.setdefault(tops[operation_id], []).append(event)
    return list(groups.values())
