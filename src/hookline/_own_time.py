"""Whose time it is in a chain: own time per hook, a budget for all, and the clock that stops a hook which takes longer.

Exactly one hook, or nobody (the work that the chain surrounds), is on the clock at any moment. On asyncio one driver
steps the whole chain by hand, and a timer is set only when something suspends, for whoever is on the clock then. Other
backends get a cancel scope per async hook, whose deadline moves away while the hook waits inside of `call_next`.
"""

from __future__ import annotations

import asyncio
import math
import types
from collections.abc import Coroutine, Generator, Sequence
from time import perf_counter_ns
from typing import Any, cast

import anyio

__all__ = ["Alarm", "Clock", "ScopedClock", "drive", "drive_elsewhere"]


class Clock:
    """The own times of one chain run, by hook index; the last index is nobody's.

    Args:
        limits: Nanoseconds of own time per hook, `math.inf` for no limit; one more for nobody.
        budget: Nanoseconds of own time for all hooks together; `math.inf` for no limit.
    """

    __slots__ = ("alarm", "budget", "expired", "last", "limits", "on", "since", "spent", "stepping")

    def __init__(self, limits: Sequence[float], budget: float) -> None:
        self.limits = limits
        self.budget = budget
        self.spent = [0] * len(limits)
        self.on = len(limits) - 1
        self.expired = -1
        self.last = 0
        self.alarm: Alarm | None = None
        self.stepping = True
        self.since = perf_counter_ns()

    def turn(self, to: int) -> int:
        """From now on it is the time of `to`.

        Returns:
            Whose time it was.
        """
        now = perf_counter_ns()
        before = self.on
        self.last = last = now - self.since
        self.spent[before] += last
        self.since = now
        self.on = to
        return before

    def left(self, index: int) -> float:
        """Nanoseconds that a hook has left, as of the last turn."""
        left = self.limits[index] - self.spent[index]
        if self.budget == math.inf or index == len(self.spent) - 1:
            return left
        return min(left, self.budget - sum(self.spent[:-1]))

    def is_over(self, index: int) -> bool:
        """Whether a hook, whose turn has just ended, took more than it had.

        One that comes back when the others have used up the budget is not blamed for that.
        """
        if self.expired == index or self.spent[index] > self.limits[index]:
            return True
        return self.budget < math.inf and self.left(index) < 0 < self.left(index) + self.last


class ScopedClock(Clock):
    """A clock for backends whose tasks are cancelled through scopes."""

    __slots__ = ("scopes",)

    def __init__(self, limits: Sequence[float], budget: float) -> None:
        super().__init__(limits, budget)
        self.scopes: dict[int, anyio.CancelScope] = {}

    def turn(self, to: int) -> int:
        """From now on it is the time of `to`: its deadline comes nearer, that of whoever was before does not."""
        before = super().turn(to)
        if before in self.scopes:
            self.scopes[before].deadline = math.inf
        if to in self.scopes:
            self.scopes[to].deadline = self._deadline(to)
        return before

    async def bounded(self, index: int, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run an async hook in a scope of its own; `expired` says whether that was cancelled."""
        with anyio.CancelScope(deadline=self._deadline(index)) as scope:
            self.scopes[index] = scope
            try:
                return await coroutine
            finally:
                del self.scopes[index]
                if scope.cancel_called:
                    self.expired = index
        return None

    def _deadline(self, index: int) -> float:
        left = self.left(index)
        return math.inf if left == math.inf else anyio.current_time() + max(left, 0.0) / 1e9


class Alarm:
    """Cancels the present asyncio task when whoever is on the clock has no time left."""

    __slots__ = ("clock", "deadline", "loop", "pending", "since", "task", "timer")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.task = cast("asyncio.Task[Any]", asyncio.current_task())
        self.loop = self.task.get_loop()
        self.pending = self.task.cancelling()
        self.deadline = math.inf
        self.since = -1
        self.timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """The task suspends: see to it that whoever is on the clock does not take too long."""
        clock = self.clock
        if clock.since == self.since:
            return  # still the same turn
        self.since = clock.since
        left = clock.left(clock.on)
        if left == math.inf:
            self.deadline = math.inf
            return
        left -= perf_counter_ns() - clock.since
        self.deadline = deadline = self.loop.time() + max(left, 0.0) / 1e9
        if self.timer is None or self.timer.when() > deadline:
            self.close()
            self.timer = self.loop.call_at(deadline, self._ring)

    def _ring(self) -> None:
        self.timer = None
        if self.loop.time() < self.deadline:
            if self.deadline < math.inf:
                self.timer = self.loop.call_at(self.deadline, self._ring)
        elif self.clock.since == self.since:
            self.clock.expired = self.clock.on
            self.task.cancel()

    def settle(self, index: int) -> bool:
        """A hook has ended: take back the cancellation by which this alarm stopped it.

        Returns:
            Whether somebody else has cancelled the task meanwhile.
        """
        if self.clock.expired == index:
            self.task.uncancel()
        return self.task.cancelling() > self.pending

    def close(self) -> None:
        """Stop the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


@types.coroutine
def drive(clock: Clock, coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """asyncio: run a chain in the present task, with an alarm from its first suspension on."""
    try:
        waits_for = coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    alarm = clock.alarm = Alarm(clock)
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


async def drive_elsewhere(clock: Clock, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """asyncio: a hook runs the rest of the chain in a task of its own, which needs an alarm of its own."""
    outer = clock.alarm
    clock.stepping = True
    try:
        return await drive(clock, coroutine)
    finally:
        clock.stepping = False
        clock.alarm = outer
        if outer is not None:
            outer.watch()
