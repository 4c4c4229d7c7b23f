"""Bundles compiled: per event class, the one callable that runs or queues its observers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from typing import Any

from hookline.events import BeforeToolCall, Event
from hookline.execution import Observer, compile_askable, compile_inline, compile_observer
from hookline.hooks import AnyHook, Hook, Hooks, Interceptor

__all__ = ["Entry", "Plan", "Run", "compile_batch", "compiled", "merged"]

Run = Callable[[Event, Any], None]
"""Tells the observers of one event: `(event, dispatcher) -> None`. Does not know a dispatcher until it is called."""

Queue = tuple[object, tuple[Observer, ...], Run]
"""A lane, its observers of one event, and what queues the event for them."""

Entry = tuple[Callable[[Any], object] | None, Run, Observer | None, tuple[tuple[Queue, ...], tuple[Run, ...]]]
"""What a dispatcher's table holds: the run and, where that is one plain handler for every event, that handler itself
and whose it is, so that the commonest case costs one frame less; last what the run is made of: queues, and plain
observers."""


class Plan:
    """One bundle (or the plain hooks of one call) compiled: per event class, what to run."""

    __slots__ = ("askable", "entries", "events", "left_out")

    def __init__(
        self, sections: Iterable[tuple[tuple[Observer, type[Event]], object]], left_out: tuple[str, ...] = ()
    ) -> None:
        self.left_out = left_out
        """Ids of the interceptors that came along, which only a run can call."""
        by_event: dict[type[Event], list[tuple[Observer, object]]] = {}
        for (observer, event), lane in sections:
            by_event.setdefault(event, []).append((observer, lane))
        askable = by_event.pop(BeforeToolCall, [])
        self.askable = tuple(compile_askable(observer) for observer, _ in askable)
        self.entries = tuple((event, _compile_entry(entries)) for event, entries in by_event.items())
        self.events = tuple(by_event)


def compile_batch(batch: Sequence[AnyHook]) -> tuple[Plan, ...]:
    """The plans of one `register` call."""
    bundles = [entry for entry in batch if isinstance(entry, Hooks)]
    if len(bundles) == len(batch) == len(set(bundles)):
        return tuple(compiled(entry) for entry in bundles)
    lane = object()
    left_out = tuple(hook_id for entry in batch for hook_id in _left_out(entry))
    return (Plan((section for entry in batch for section in _sections(entry, lane)), left_out),)


def compiled(bundle: Hooks) -> Plan:
    """The plan of a bundle, which all operations with this bundle share."""
    plan: Plan | None = bundle._compiled
    if plan is None:
        plan = bundle._compiled = Plan(_sections(bundle, bundle.lane), _left_out(bundle))
    return plan


def _sections(entry: AnyHook, lane: object) -> list[tuple[tuple[Observer, type[Event]], object]]:
    if isinstance(entry, Hook):
        return [((compile_observer(entry, entry.tenant_id), entry.event), lane)]
    if not isinstance(entry, Hooks):
        return []  # interceptors and phase hooks: the chains and the phase machine of a run are theirs
    return [
        ((compile_observer(hook, entry.tenant_id, recorded=entry.recorded), hook.event), entry.lane)
        for hook in entry.observers
    ]


def _left_out(entry: AnyHook) -> tuple[str, ...]:
    if isinstance(entry, Hooks):
        return tuple(hook.id for hook in entry.interceptors)
    return (entry.id,) if isinstance(entry, Interceptor) else ()


def _compile_entry(entries: list[tuple[Observer, object]]) -> Entry:
    lanes: dict[int, tuple[object, list[Observer]]] = {}
    for observer, lane in entries:
        if observer.is_async:
            lanes.setdefault(id(lane), (lane, []))[1].append(observer)
    queues = tuple(_queue(lane, tuple(observers)) for lane, observers in lanes.values())
    plain = [observer for observer, _ in entries if not observer.is_async]
    inline = (compile_inline(plain),) if plain else ()
    run = _in_turn(queues, inline)
    if not queues and len(plain) == 1 and plain[0].matches is None:
        return plain[0].handler, run, plain[0], (queues, inline)
    return None, run, None, (queues, inline)


def _queue(lane: object, observers: tuple[Observer, ...]) -> Queue:
    return lane, observers, _compile_queue(lane, observers)


def _compile_queue(lane: object, observers: tuple[Observer, ...]) -> Run:
    if all(observer.matches is None for observer in observers):

        def queue(event: Event, dispatcher: Any) -> None:
            dispatcher._host.push(event.operation_id, lane, (event, copy_context(), observers))

        return queue

    def queue_matching(event: Event, dispatcher: Any) -> None:
        wanted = tuple(observer for observer in observers if observer.matches is None or observer.matches(event))
        if wanted:
            dispatcher._host.push(event.operation_id, lane, (event, copy_context(), wanted))

    return queue_matching


def merged(entries: Sequence[Entry]) -> Entry:
    """One entry for some that were registered one after the other; one queue for each lane."""
    if len(entries) == 1:
        return entries[0]
    queues: dict[int, Queue] = {}
    inline: list[Run] = []
    for _, _, _, (theirs, plain) in entries:
        for queue in theirs:
            lane, observers, _ = queue
            present = queues.get(id(lane))
            queues[id(lane)] = queue if present is None else _queue(lane, present[1] + observers)
        inline += plain
    parts = tuple(queues.values()), tuple(inline)
    return None, _in_turn(*parts), None, parts


def _in_turn(queues: tuple[Queue, ...], inline: tuple[Run, ...]) -> Run:
    """Queues first: what a plain observer dispatches or sets in its turn comes after the event that it saw."""
    runs = (*(queue for _, _, queue in queues), *inline)
    if len(runs) == 1:
        return runs[0]

    def run(event: Event, dispatcher: Any) -> None:
        for each in runs:
            each(event, dispatcher)

    return run
