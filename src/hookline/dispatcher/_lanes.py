"""Lanes: the queues of async observers, one per bundle and operation, and the host that owns their tasks.

A lane is made by the first event queued in it and is gone when it has run dry; what stays of it until its operation is
unregistered are two counts. On asyncio a lane's task comes straight from the loop, because a task group's `start_soon`
costs four times as much; everything that a task group would do, the host does here.
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

from hookline._deadlines import ENDED, Bounded, CoroutineAlarm, bounded_anyio, bounded_asyncio
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
    task_starter,
)
from hookline.signals import hook_executed

__all__ = ["LaneHost", "compile_queue"]

EXIT_DRAIN_SECONDS = 5.0
"""How long a clean exit waits for lanes that nobody unregistered."""

GRACE_SECONDS = 1.0
"""How long a cancelled handler may take to clean up before it is left behind."""


Queued = tuple[Event, Context, Observer, tuple[Observer, ...]]
"""One event in a lane, the context in which it was dispatched, the first observer that gets it, and the others."""


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
    detached = False
    cancelled = False
    ended = False
    waited_for: anyio.Event | None = None
    task: asyncio.Task[None] | anyio.CancelScope | None = None
    task_id: int | None = None

    def __init__(self, host: LaneHost, operation: OperationLanes, key: object) -> None:
        self.host = host
        self.operation = operation
        self.key = key
        self.queue: deque[Queued] = deque()

    async def work(self) -> None:
        """Run everything queued, one event after the other, then end."""
        queue, host, operation = self.queue, self.host, self.operation
        item: Any = None
        rest: tuple[Observer, ...] = ()
        """The observers that get the running event next."""
        alarm: CoroutineAlarm | None = None
        # Whether handlers are recorded, or not stepped by hand; a signal changes its one dictionary in place.
        slowly: Any = hook_executed.receivers if host.stepwise else True
        self.started = True
        try:
            while rest or queue:
                if rest:
                    observer, rest, context = rest[0], rest[1:], item[1].copy()
                else:
                    self.running = item = queue.popleft()
                    event, context, observer, rest = item
                    if rest:  # each observer has a context of its own: none sees what another one sets
                        context = context.copy()
                if slowly:
                    self.unfinished = (observer, *rest)
                    await run_queued(observer, event, context, host.bounded, host.hook_timeout, host.sender)
                    if self.cancelled:  # the handler swallowed that
                        return
                else:
                    try:
                        coroutine = call_observer(observer.handler, event)
                        waits_for = context.run(next, coroutine, ENDED)
                    except BaseException as error:
                        self.unfinished = (observer, *rest)
                        report(observer, event, own_failure(error))
                    else:
                        if waits_for is not ENDED:
                            self.unfinished = (observer, *rest)
                            alarm = alarm or CoroutineAlarm()
                            await finish_queued(
                                observer, event, coroutine, waits_for, context, host.hook_timeout, alarm
                            )
                            if self.cancelled:
                                return
                if not rest:
                    operation.delivered += 1
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
            logger.error("Operation %s: a handler raised while it was cancelled", self.operation.id, exc_info=rest)
        elif rest is not None:
            self.host.crash(rest)

    async def work_in_scope(self, scope: anyio.CancelScope) -> None:
        """Do the work of the lane on a backend whose tasks are cancelled through a scope."""
        self.task_id = anyio.get_current_task().id
        with scope:
            await self.work()

    def overflow(self, item: Queued) -> None:
        """Refuse an event, because the lane is full."""
        self.operation.dropped += 1
        event, _, observer, others = item
        record_dropped((observer, *others), event, self.host.sender, f"{len(self.queue)} events were queued already")

    def give_up(self, why: str, *, running: bool = True) -> None:
        """Drop the queued events and, by default, count the running event as lost."""
        if running and self.running is not None:
            self.operation.dropped += 1
            record_dropped(self.unfinished, self.running[0], self.host.sender, why)
            self.running = None
        while self.queue:
            event, _, observer, others = self.queue.popleft()
            self.operation.dropped += 1
            record_dropped((observer, *others), event, self.host.sender, why)

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
        if self.ended:
            return
        if self.waited_for is None:
            self.waited_for = anyio.Event()
        await self.waited_for.wait()


def compile_queue(key: object, observers: tuple[Observer, ...]) -> Callable[[Event, Any], None]:
    """Return what queues an event for observers in a lane, with the present context: `(event, dispatcher) -> None`.

    A lane that is not running is started.

    Args:
        key: The key of the lane.
        observers: The observers that get the event.
    """
    first, others = observers[0], observers[1:]

    def queue_event(event: Event, dispatcher: Any) -> None:
        host: LaneHost | None = dispatcher._host
        if host is None:
            host = dispatcher._make_host()
        operation = host.operations.get(event.operation_id)
        if operation is None:
            operation = host.add_operation(event.operation_id)
        lane = operation.lanes.get(key)
        if lane is None:
            lane = host.start(operation, key)
        elif len(lane.queue) >= host.max_queued:
            lane.overflow((event, copy_context(), first, others))
            return
        lane.queue.append((event, copy_context(), first, others))

    return queue_event


class OperationLanes:
    """The lanes of one operation in which something is queued, and its counts.

    Attributes:
        id: The operation.
        lanes: By the key of the lane.
        delivered: Events whose handlers have run, successfully or not.
        dropped: Events that did not fit into a lane, were cancelled, or never started.
    """

    __slots__ = ("delivered", "dropped", "id", "lanes")

    def __init__(self, operation_id: str) -> None:
        self.id = operation_id
        self.lanes: dict[object, Lane] = {}
        self.delivered = 0
        self.dropped = 0


class LaneHost:
    """Owns the lanes of one dispatcher: starts, counts, drains and cancels them.

    On asyncio it is made with the first lane, since most runs need none; elsewhere when the dispatcher is entered.

    Args:
        hook_timeout: Time limit in seconds for handlers that have none.
        max_queued: Maximum number of events in one lane.
        sender: The dispatcher.
        stepwise: Whether it runs on asyncio, where handlers are stepped by hand.
        task: On asyncio, the task that has entered the dispatcher.
    """

    def __init__(
        self,
        hook_timeout: float,
        max_queued: int,
        *,
        sender: object,
        stepwise: bool,
        task: asyncio.Task[Any] | None,
    ) -> None:
        self.hook_timeout = hook_timeout
        self.max_queued = max_queued
        self.sender = sender
        self.stepwise = stepwise
        self.bounded: Bounded = bounded_asyncio if self.stepwise else bounded_anyio
        self.operations: dict[str, OperationLanes] = {}
        """The registered operations for which anything was queued yet."""
        self._running: dict[Lane, None] = {}
        """The lanes that have not ended, also of operations that are unregistered, in the order of their start."""
        self._fatal: list[BaseException] = []
        self._closing = False
        self._group: anyio.abc.TaskGroup | None = None
        self._task = task
        if stepwise:
            self._loop = asyncio.get_running_loop() if task is None else task.get_loop()
            self._start_task = task_starter(self._loop)

    async def open_group(self) -> None:
        """Open the task group of the lanes in the present task, on a backend other than asyncio."""
        self._group = anyio.create_task_group()
        await self._group.__aenter__()

    def add_operation(self, operation_id: str) -> OperationLanes:
        """Return the lanes of an operation that has none yet."""
        operation = self.operations[operation_id] = OperationLanes(operation_id)
        return operation

    def start(self, operation: OperationLanes, key: object) -> Lane:
        """Start a lane that is not running."""
        lane = operation.lanes[key] = Lane(self, operation, key)
        self._running[lane] = None
        if self._group is None:
            # Never eagerly, which would run the handler inside of `dispatch`.
            lane.task = self._start_task(lane.work(), loop=self._loop, name="hookline lane")
        else:
            # Shielded, so that observers of a run that is cancelled from outside still get its last events.
            lane.task = scope = anyio.CancelScope(shield=True)
            self._group.start_soon(lane.work_in_scope, scope)
        return lane

    def lengths(self) -> list[int]:
        """Return how many events wait in each lane. Other threads may ask."""
        return [len(lane.queue) for lane in list(self._running)]

    def shrink(self) -> None:
        """Give back the memory of lanes that are gone."""
        if not self.operations:
            self.operations.clear()

    def lane_ended(self, lane: Lane) -> None:
        """Forget a lane that has run dry; only its counts stay."""
        self._running.pop(lane, None)
        if not lane.detached:
            del lane.operation.lanes[lane.key]
        lane.ended = True
        if lane.waited_for is not None:
            lane.waited_for.set()

    async def drain(self, operation_id: str, timeout: float) -> tuple[int, int]:
        """Let an operation's lanes finish within `timeout` seconds, cancel the rest.

        Returns:
            Events delivered and events dropped since the operation was registered.
        """
        operation = self.operations.pop(operation_id, None)
        if operation is None:
            return 0, 0
        lanes = list(operation.lanes.values())
        for lane in lanes:
            lane.detached = True
        operation.lanes.clear()  # or each would wait for the collector, as a lane refers to its operation
        if lanes:
            await self._settle(lanes, timeout)
        # The running event of the lane that asks for the drain is being delivered; nobody else's is running.
        running = sum(lane.running is not None for lane in lanes)
        return operation.delivered + running, operation.dropped

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
            stuck = [lane for lane in others if not lane.ended]
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
            if not lane.ended:
                self._running.pop(lane, None)
                logger.error(
                    "Operation %s: a handler ignores its cancellation; its task is left behind", lane.operation.id
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
            if self._running:
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
        lanes = list(self._running)
        if drain:
            await self._settle(lanes, EXIT_DRAIN_SECONDS)
        else:
            for lane in lanes:
                lane.cancel("the dispatcher was left by an exception")
            await self._bury(lanes)
