"""Measure the own time of the hooks of a chain, and stop a hook that takes longer than it may.

Times are marks: one where a hook begins, one where it ends, and two around what it surrounds; its own time is what they
leave. Exactly one hook, or none (during the work that the chain wraps), is on the clock at any moment. On asyncio one
driver steps the whole chain by hand, and sets a timer only when something suspends, for the hook on the clock. Other
backends get a cancel scope per async hook, whose deadline moves away while the hook waits inside of `call_next`.
"""

from __future__ import annotations

import asyncio
import math
import types
from collections.abc import Awaitable, Coroutine, Generator, Sequence
from time import perf_counter
from typing import Any, Protocol, cast

import anyio
import anyio.lowlevel
import msgspec

__all__ = [
    "FIRST",
    "INF",
    "NEVER",
    "NOBODYS",
    "NO_HOOK",
    "ON",
    "Alarm",
    "Clock",
    "ScopedClock",
    "Timed",
    "drive",
    "drive_elsewhere",
    "drive_through",
]

INF = math.inf
NO_HOOK = -1
ON = 0
"""The mark that is no time, but the index of the hook on the clock: storing an item of a list takes a quarter of the
time that storing an attribute of a struct takes (5 ns, 20 ns), and each hook stores it three times."""
NEVER = 1
"""The mark of what never happens: the `call_next` of a hook that has none. It stays 0.0."""
NOBODYS = 2
"""The mark that nobody reads: it is set where an `around` ends that stands in the `call_next` of no other."""
FIRST = 3
"""The first mark of the first hook."""
NOT_EXPIRED = -2
"""Says that the alarm has stopped no hook; not `NO_HOOK`, which may be on the clock."""


class Timed(Protocol):
    """A hook as a clock sees it: its limit in seconds, and where its marks are.

    Attributes:
        timeout: Seconds of own time; `math.inf` for no limit.
        start: Mark of its begin.
        end: Mark of its end.
        inside: Mark of its `call_next`; `NEVER` for a hook that has none.
        leave: Mark of the end of that; `NEVER` too.
    """

    @property
    def timeout(self) -> float: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def inside(self) -> int: ...
    @property
    def leave(self) -> int: ...


class Clock(msgspec.Struct, eq=False):
    """The times of one traversal of a chain.

    Attributes:
        hooks: The hooks by index.
        marks: Seconds, by the places that the hooks name; 0.0 for what has not happened. Before them, at `ON`, the
            index of the hook whose time it is.
        budget: Seconds of own time for all hooks together; `math.inf` for no limit.
        limited: Whether there is such a limit.
        special: Whether the begin and end of a hook need a closer look: there is an alarm, a scope or a budget.
        expired: Index of the hook that was stopped because it had no time left.
        alarm: Stops the hook that takes too long, from the first suspension on.
        stepping: Whether the driver is stepping the chain at this moment, so that the code that runs is in its task.
        scoped: Whether async hooks get scopes instead.
    """

    # A struct, because its constructor costs a third of `__init__`, and there is one per call.
    hooks: Sequence[Timed]
    marks: list[float]
    budget: float
    limited: bool
    special: bool = False
    expired: int = NOT_EXPIRED
    alarm: Alarm | None = None
    stepping: bool = True
    scoped: bool = False

    @property
    def on(self) -> int:
        """Index of the hook whose time it is; `NO_HOOK` while the terminal runs."""
        return int(self.marks[ON])

    def own(self, hook: Timed, now: float) -> float:
        """Return the seconds of own time that a hook has taken so far."""
        marks = self.marks
        start = marks[hook.start]
        if not start:
            return 0.0
        end = marks[hook.end] or now
        inside = marks[hook.inside]
        if not inside or inside > end:  # or only after it had failed, and on its behalf
            return end - start
        return end - start - (min(marks[hook.leave] or now, end) - inside)

    def left(self, index: int, now: float) -> float:
        """Return the seconds that a hook has left."""
        hook = self.hooks[index]
        left = hook.timeout - self.own(hook, now)
        return min(left, self.budget - self.spent(now)) if self.limited else left

    def spent(self, now: float) -> float:
        """Return the seconds of own time that all hooks have taken so far."""
        return sum(self.own(hook, now) for hook in self.hooks)

    def is_over(self, index: int) -> bool:
        """Return whether a hook that has ended took more than it had.

        One that came back when the others had used up the budget is not blamed for that.
        """
        hook, now = self.hooks[index], perf_counter()
        if self.expired == index or self.own(hook, now) > hook.timeout:
            return True
        if not self.limited:
            return False
        last = self.marks[hook.end] - max(self.marks[hook.start], self.marks[hook.leave])
        return 0.0 < self.spent(now) - self.budget < last

    def disturbed(self) -> bool:
        """Return whether the hook that has ended may have been stopped, its task cancelled, or the budget used up."""
        alarm = self.alarm
        return alarm is None or self.limited or alarm.task.cancelling() > alarm.pending

    async def bounded(self, index: int, work: Awaitable[Any]) -> Any:
        """Await an async hook, and stop it in time."""
        return await work

    def is_stopping(self, index: int) -> bool:
        """Return whether the scope of a hook that is still running was cancelled; `expired` says so at its end."""
        return False

    def pause(self, index: int) -> None:
        """Note that a hook goes inside of `call_next`."""

    def resume(self, index: int) -> None:
        """Note that a hook comes back from there."""


TIME_TO_RETURN = 0.05
"""Seconds for a hook that comes back when the budget is gone: enough to return on a busy machine, too few to work."""


class ScopedClock(Clock):
    """A clock for backends whose tasks are cancelled through scopes.

    Attributes:
        scopes: The scopes of the async hooks that are running, by index.
    """

    scopes: dict[int, anyio.CancelScope] = {}  # msgspec copies it

    def __post_init__(self) -> None:
        self.scoped = self.special = True

    def is_stopping(self, index: int) -> bool:
        """Return whether the scope of a hook that is still running was cancelled; `expired` says so at its end."""
        return index in self.scopes and self.scopes[index].cancel_called

    def pause(self, index: int) -> None:
        """Note that a hook goes inside of `call_next`: its deadline does not come nearer there."""
        if index in self.scopes:
            self.scopes[index].deadline = math.inf

    def resume(self, index: int) -> None:
        """Note that a hook comes back from there."""
        if index in self.scopes:
            self.scopes[index].deadline = self._deadline(index)

    async def bounded(self, index: int, work: Awaitable[Any]) -> Any:
        """Run an async hook in a scope of its own; `expired` says whether that was cancelled."""
        with anyio.CancelScope(deadline=self._deadline(index)) as scope:
            self.scopes[index] = scope
            try:
                try:
                    result = await work
                except Exception:
                    await anyio.lowlevel.checkpoint_if_cancelled()  # in case that the hook turned that into an error
                    raise
                await anyio.lowlevel.checkpoint_if_cancelled()  # in case that it swallowed it
                return result
            finally:
                del self.scopes[index]
                if scope.cancel_called:
                    self.expired = index
        return None

    def _deadline(self, index: int) -> float:
        left = self.left(index, perf_counter())
        return anyio.current_time() + (left if left > 0 else TIME_TO_RETURN)


AGAIN_SECONDS = 0.1
"""How soon a hook that is still running is cancelled once more."""


class Alarm:
    """Cancels the present asyncio task when the hook that is on the clock has no time left."""

    __slots__ = ("cancels", "clock", "deadline", "loop", "on", "pending", "task", "timer")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.task = cast("asyncio.Task[Any]", asyncio.current_task())
        self.loop = self.task.get_loop()
        self.pending = self.task.cancelling()
        self.cancels = 0
        self.deadline = math.inf
        self.on = NO_HOOK
        self.timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Set the timer for the hook that is on the clock, since the task suspends."""
        clock = self.clock
        self.on = clock.on if clock.alarm is self else NO_HOOK  # a hook in another task has an alarm of its own
        left = clock.left(self.on, perf_counter()) if self.on >= 0 else math.inf
        if left == math.inf:
            self.deadline = math.inf
            return
        self.deadline = deadline = self.loop.time() + max(left, 0.0)
        if self.timer is None or self.timer.when() > deadline:
            self.close()
            self.timer = self.loop.call_at(deadline, self._ring)

    def _ring(self) -> None:
        self.timer = None
        if self.loop.time() < self.deadline:
            if self.deadline < math.inf:
                self.timer = self.loop.call_at(self.deadline, self._ring)
        elif self.clock.on == self.on:
            self.clock.expired = self.on
            self.cancels += 1
            self.task.cancel()
            self.timer = self.loop.call_later(AGAIN_SECONDS, self._ring)  # for a hook that swallows it

    def settle(self, index: int) -> bool:
        """Take back the cancellation by which this alarm stopped a hook, which has ended.

        Returns:
            Whether somebody else has cancelled the task meanwhile.
        """
        if self.clock.expired == index:
            for _ in range(self.cancels):
                self.task.uncancel()
            self.cancels = 0
        return self.task.cancelling() > self.pending

    def close(self) -> None:
        """Stop the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


@types.coroutine
def drive(clock: Clock, coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Drive the rest of a chain that has suspended on `waits_for`, in the present asyncio task, with an alarm."""
    alarm = clock.alarm = Alarm(clock)
    clock.special = True
    try:
        while True:
            clock.stepping = False
            alarm.watch()
            try:
                value = yield waits_for
            except BaseException as error:
                clock.stepping = True
                waits_for = coroutine.throw(error)
            else:
                clock.stepping = True
                waits_for = coroutine.send(value)
    except StopIteration as stop:
        return stop.value
    finally:
        alarm.close()
        if clock.alarm is alarm:
            clock.alarm = None  # or both would wait for the collector, with the task


async def drive_through(clock: Clock, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a whole chain in the present task, with what its clock needs."""
    if clock.scoped:
        return await coroutine
    try:
        waits_for = coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    return await drive(clock, coroutine, waits_for)


async def drive_elsewhere(clock: Clock, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Drive the rest of a chain in another asyncio task, where a hook called `call_next`, with an alarm of its own."""
    outer = clock.alarm
    clock.stepping = True
    try:
        return await drive_through(clock, coroutine)
    finally:
        clock.stepping = False
        clock.alarm = outer
        if outer is not None:
            outer.watch()
