"""Lanes: the queues of async observers, one per bundle and operation, and the host that owns their tasks.

A lane is made by the first event queued in it and is gone when it has run dry, so an idle operation costs nothing; only
its two counts stay until it is unregistered. On asyncio a lane's task comes straight from the loop, because a task
group's `start_soon` costs four times as much; everything that a task group would do, the host does here.
"""

from __future__ import annotations

import asyncio
import types
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextvars import Context, copy_context
from types import TracebackType
from typing import Any

import anyio
import anyio.abc

from hookline._deadlines import (
    ENDED,
    Bounded,
    CoroutineAlarm,
    bounded_anyio,
    bounded_asyncio,
    present_asyncio_task,
    runs_on_asyncio,
)
from hookline.events import Event
from hookline.execution import (
    Observer,
    finish_queued,
    logger,
    own_failure,
    record_dropped,
    refuse_decision,
    report,
    run_queued,
    start_task,
)
from hookline.signals import hook_executed

__all__ = ["LaneHost", "queue_event"]

EXIT_DRAIN_SECONDS = 5.0
"""How long a clean exit waits for lanes that nobody unregistered."""

GRACE_SECONDS = 1.0
"""How long a cancelled handler may take to clean up before it is left behind."""


Queued = tuple[Event, Context, tuple[Observer, ...]]
"""One event in a lane, the context in which it was dispatched, and the observers that get it."""


@types.coroutine
def call_observer(handler: Callable[[Event], Any], event: Event) -> Generator[Any, Any, None]:
    """Run an async handler, and refuse a decision that it returns.

    A generator, since `next` steps it without the iterator that a coroutine needs for that.
    """
    outcome = yield from handler(event)
    if outcome is not None:
        refuse_decision(outcome)


class Lane:
    """The queue of one bundle's async observers in one operation, while it is not empty."""

    # Class-level defaults instead of slots: a lane is made for every burst, and most bursts need none of these changed.
    running: Queued | None = None
    unfinished: tuple[Observer, ...] = ()
    started = False
    delivered = 0
    dropped = 0
    detached = False
    cancelled = False
    ended: anyio.Event | bool = False
    task: asyncio.Task[None] | anyio.CancelScope | None = None
    task_id: int | None = None

    def __init__(self, host: LaneHost, operation_id: str, key: object) -> None:
        self.host = host
        self.operation_id = operation_id
        self.key = key
        self.queue: deque[Queued] = deque()

    async def work(self) -> None:
        """Run everything queued, one event after the other, then end."""
        queue, host = self.queue, self.host
        stepwise, alarm = host.stepwise, None
        receivers = hook_executed.receivers  # one dictionary, which a signal changes in place
        self.started = True
        try:
            while queue:
                self.running = item = queue.popleft()
                event, context, observers = item
                if stepwise and not receivers:
                    for observer in observers:
                        if len(observers) > 1:  # each has a context of its own: none sees what another one sets
                            context = item[1].copy()
                        try:
                            coroutine = call_observer(observer.handler, event)
                            waits_for = context.run(next, coroutine, ENDED)
                        except BaseException as error:
                            self.unfinished = observers[observers.index(observer) :]
                            report(observer, event, own_failure(error))
                            continue
                        if waits_for is ENDED:
                            continue
                        alarm = alarm or CoroutineAlarm()
                        self.unfinished = observers[observers.index(observer) :]
                        await finish_queued(observer, event, coroutine, waits_for, context, host.hook_timeout, alarm)
                        if self.cancelled:
                            return
                else:
                    for position, observer in enumerate(observers):
                        self.unfinished = observers[position:]
                        if len(observers) > 1:
                            context = item[1].copy()
                        await run_queued(observer, event, context, host.bounded, host.hook_timeout, host.sender)
                        if self.cancelled:  # the handler swallowed that
                            return
                self.delivered += 1
            self.running = None
        except GeneratorExit as error:
            if not self.is_running():  # nobody's failure: an event loop that has ended closes what is left
                raise
            self.fail(error)
        except anyio.get_cancelled_exc_class():  # asked behind it, because it fails where no event loop runs
            raise
        except BaseException as error:
            self.fail(error)
        finally:
            if alarm is not None:
                alarm.close()
            if self.running is not None:
                self.give_up("its lane was cancelled")
            host.lane_ended(self)

    def fail(self, error: BaseException) -> None:
        """End the dispatcher by a handler's `BaseException`, unless that comes of its cancellation alone."""
        rest: BaseException | None = error
        if isinstance(error, BaseExceptionGroup):
            rest = error.split(anyio.get_cancelled_exc_class())[1]
        if isinstance(rest, Exception):
            logger.error("Operation %s: a handler raised while it was cancelled", self.operation_id, exc_info=rest)
        elif rest is not None:
            self.host.crash(rest)

    async def work_in_scope(self, scope: anyio.CancelScope) -> None:
        """Do the work of the lane on a backend whose tasks are cancelled through a scope."""
        self.task_id = anyio.get_current_task().id
        with scope:
            await self.work()

    def overflow(self, item: Queued) -> None:
        """Refuse an event, because the lane is full."""
        self.dropped += 1
        event, _, observers = item
        record_dropped(observers, event, self.host.sender, f"{len(self.queue)} events were queued already")

    def give_up(self, why: str, *, running: bool = True) -> None:
        """Drop the queued events and, by default, count the running event as lost."""
        if running and self.running is not None:
            self.dropped += 1
            record_dropped(self.unfinished, self.running[0], self.host.sender, why)
            self.running = None
        while self.queue:
            event, _, observers = self.queue.popleft()
            self.dropped += 1
            record_dropped(observers, event, self.host.sender, why)

    def cancel(self, why: str) -> None:
        """Stop the running handler and drop the rest."""
        self.cancelled = True
        self.give_up(why)
        # A task cancelled before its first step never runs its `finally`; one that finds nothing to do just ends.
        if self.task is not None and self.started:
            self.task.cancel()

    def is_current(self) -> bool:
        """Return whether the caller runs inside of this lane."""
        if isinstance(self.task, asyncio.Task):
            return asyncio.current_task() is self.task
        return anyio.get_current_task().id == self.task_id

    def is_running(self) -> bool:
        """Return whether an event loop runs this lane right now."""
        try:
            return self.is_current()
        except RuntimeError:  # no event loop runs
            return False

    async def wait(self) -> None:
        """Wait until the lane has ended."""
        if self.ended is True:
            return
        if self.ended is False:
            self.ended = anyio.Event()
        await self.ended.wait()


def queue_event(key: object, observers: tuple[Observer, ...], event: Event, dispatcher: Any) -> None:
    """Queue an event in a lane with the present context; the lane is started if it is not running.

    Args:
        key: The key of the lane.
        observers: The observers that get the event.
        event: The event.
        dispatcher: The dispatcher of its operation.
    """
    host: LaneHost = dispatcher._host
    lanes = host.lanes.get(event.operation_id)
    lane = lanes.get(key) if lanes is not None else None
    if lane is None:
        lane = host.start(event.operation_id, key)
    elif len(lane.queue) >= host.max_queued:
        lane.overflow((event, copy_context(), observers))
        return
    lane.queue.append((event, copy_context(), observers))


class LaneHost:
    """Owns the lanes of one dispatcher: starts, counts, drains and cancels them.

    It is made in the task that enters the dispatcher.
    """

    def __init__(self, hook_timeout: float, max_queued: int, *, sender: object) -> None:
        self.hook_timeout = hook_timeout
        self.max_queued = max_queued
        self.sender = sender
        self._task: asyncio.Task[Any] | None = present_asyncio_task()
        self.stepwise = self._task is not None or runs_on_asyncio()
        self.bounded: Bounded = bounded_asyncio if self.stepwise else bounded_anyio
        self.lanes: dict[str, dict[object, Lane]] = {}
        self.counts: dict[str, tuple[int, int]] = {}
        self._detached: set[Lane] = set()
        """The running lanes of operations that are unregistered."""
        self._fatal: list[BaseException] = []
        self._closing = False
        self._group: anyio.abc.TaskGroup | None = None
        if self.stepwise:
            self._loop = asyncio.get_running_loop()

    async def open_group(self) -> None:
        """Open the task group of the lanes in the present task, on a backend other than asyncio."""
        self._group = anyio.create_task_group()
        await self._group.__aenter__()

    def start(self, operation_id: str, key: object) -> Lane:
        """Start a lane that is not running."""
        lanes = self.lanes.get(operation_id)
        if lanes is None:
            lanes = self.lanes[operation_id] = {}
            self.counts.setdefault(operation_id, (0, 0))
        lane = lanes[key] = Lane(self, operation_id, key)
        if self._group is None:
            # Not `create_task`: a task factory that starts tasks eagerly would run the handler inside of `dispatch`.
            lane.task = start_task(lane.work(), self._loop, "hookline lane")
        else:
            # Shielded, so that observers of a run that is cancelled from outside still get its last events.
            lane.task = scope = anyio.CancelScope(shield=True)
            self._group.start_soon(lane.work_in_scope, scope)
        return lane

    def lengths(self) -> list[int]:
        """Return how many events wait in each lane. Other threads may ask."""
        return [len(lane.queue) for lane in self._running_lanes()]

    def _running_lanes(self) -> list[Lane]:
        """Return the lanes that are running, in copies of the tables, which may change meanwhile."""
        registered = [lane for lanes in list(self.lanes.values()) for lane in list(lanes.values())]
        # A lane that is being detached is in both tables for a moment.
        return list(dict.fromkeys([*registered, *list(self._detached)]))

    def shrink(self) -> None:
        """Give back the memory of lanes that are gone."""
        if not self.lanes:
            self.lanes.clear()
        if not self.counts:
            self.counts.clear()

    def lane_ended(self, lane: Lane) -> None:
        """Forget a lane that has run dry; only its counts stay."""
        if lane.detached:
            self._detached.discard(lane)
        else:
            lanes = self.lanes[lane.operation_id]
            del lanes[lane.key]
            if not lanes:
                del self.lanes[lane.operation_id]
            delivered, dropped = self.counts[lane.operation_id]
            self.counts[lane.operation_id] = (delivered + lane.delivered, dropped + lane.dropped)
        waiting, lane.ended = lane.ended, True
        if not isinstance(waiting, bool):
            waiting.set()

    async def drain(self, operation_id: str, timeout: float) -> tuple[int, int]:
        """Let an operation's lanes finish within `timeout` seconds, cancel the rest.

        Returns:
            Events delivered and events dropped since the operation was registered.
        """
        delivered, dropped = self.counts.pop(operation_id, (0, 0))
        lanes = list(self.lanes.get(operation_id, {}).values())
        for lane in lanes:
            lane.detached = True
            self._detached.add(lane)
        self.lanes.pop(operation_id, None)
        if lanes:
            await self._settle(lanes, timeout)
        for lane in lanes:
            # The running event of the lane that asks for the drain is being delivered; nobody else's is running.
            delivered += lane.delivered + (lane.running is not None)
            dropped += lane.dropped
        return delivered, dropped

    async def _settle(self, lanes: Iterable[Lane], timeout: float) -> None:
        others = []
        for lane in lanes:
            if lane.is_current():
                lane.give_up("the operation was unregistered from inside of the lane", running=False)
            else:
                others.append(lane)
        try:
            with anyio.move_on_after(timeout):
                for lane in others:
                    await lane.wait()
        finally:
            stuck = [lane for lane in others if lane.ended is not True]
            for lane in stuck:
                lane.cancel(f"still queued or running after the drain timeout of {timeout:g} s")
        if stuck:
            await self._bury(stuck)

    async def _bury(self, lanes: Iterable[Lane]) -> None:
        """Wait until cancelled lanes have ended, but not for ever: a handler may refuse to be cancelled."""
        lanes = list(lanes)
        with anyio.move_on_after(GRACE_SECONDS, shield=True):
            for lane in lanes:
                await lane.wait()
        for lane in lanes:
            if lane.ended is not True:
                self._detached.discard(lane)
                logger.error(
                    "Operation %s: a handler ignores its cancellation; its task is left behind", lane.operation_id
                )

    def crash(self, error: BaseException) -> None:
        """Make a `BaseException` of a handler end the dispatcher's `async with`."""
        self._fatal.append(error)
        if self._closing or len(self._fatal) > 1:
            return
        if self._group is not None:
            self._group.cancel_scope.cancel()
        elif self._task is not None:
            self._task.cancel()

    async def close(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Drain on a clean exit, cancel on any other; then raise what made a lane crash."""
        self._closing = True
        crashed = bool(self._fatal)
        try:
            if self.lanes or self._detached:
                with anyio.CancelScope(shield=error is not None or crashed):
                    await self._finish(drain=error is None and not crashed)
        finally:
            if self._group is not None:
                self._group.cancel_scope.cancel()
                await self._group.__aexit__(None, None, None)
        if not self._fatal:
            return None
        if crashed and self._task is not None and self._task is asyncio.current_task():
            self._task.uncancel()  # takes back that of `crash`, and no other
        if len(self._fatal) == 1:
            raise self._fatal[0]
        raise BaseExceptionGroup("handlers raised", self._fatal)

    async def _finish(self, *, drain: bool) -> None:
        lanes = self._running_lanes()
        if drain:
            await self._settle(lanes, EXIT_DRAIN_SECONDS)
        else:
            for lane in lanes:
                lane.cancel("the dispatcher was left by an exception")
            await self._bury(lanes)
