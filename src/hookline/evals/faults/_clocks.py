"""Clocks for faults: one clock per operation, so that operations never delay each other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import anyio

from hookline.evals.errors import check_seconds

__all__ = ["Clock", "OperationClock", "RealClock", "VirtualClock"]


class OperationClock(ABC):
    """The clock of one operation, with the state that faults keep for it.

    Attributes:
        state: The state of faults in this operation, each under its own key. Faults themselves have no state, since
            parallel operations share them.
    """

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: dict[object, Any] = {}

    @property
    @abstractmethod
    def now(self) -> float:
        """The present time in seconds. Only differences between two times mean something."""

    @property
    @abstractmethod
    def arrival(self) -> float:
        """The time at which a call made now begins. On a virtual clock, all calls of a step begin at once."""

    @abstractmethod
    def enter(self, step_index: int) -> None:
        """Tell the clock that a call of a step is made.

        Args:
            step_index: The step, from 0.
        """

    @abstractmethod
    def pass_time(self, seconds: float, step_index: int) -> float:
        """Let a call take time, without waiting.

        Args:
            seconds: How long it takes.
            step_index: The step that it belongs to, from 0.

        Returns:
            The seconds that have still to be waited for: 0.0 on a virtual clock, all of them on a real one.
        """

    async def sleep(self, seconds: float, step_index: int) -> None:
        """Let a call take time, and wait until it is over. A virtual clock does not wait.

        Args:
            seconds: How long it takes.
            step_index: The step that it belongs to, from 0.
        """
        left = self.pass_time(seconds, step_index)
        if left > 0:
            await anyio.sleep(left)


class VirtualOperationClock(OperationClock):
    """A clock that starts at 0.0 and moves only when calls take time.

    Calls of one step overlap; steps follow each other.
    """

    __slots__ = ("_now", "_step", "_step_start")

    def __init__(self) -> None:
        super().__init__()
        self._now = self._step_start = 0.0
        self._step = 0

    @property
    def now(self) -> float:
        """The end of the longest call so far, in seconds since the start."""
        return self._now

    @property
    def arrival(self) -> float:
        """The start of the present step."""
        return self._step_start

    def enter(self, step_index: int) -> None:
        """Begin a later step once every call of the earlier steps has ended."""
        if step_index > self._step:
            self._step = step_index
            self._step_start = self._now

    def pass_time(self, seconds: float, step_index: int) -> float:
        """Move the clock to the end of the call, if it is the longest of its step so far."""
        self.enter(step_index)
        self._now = max(self._now, self._step_start + seconds)
        return 0.0

    def advance(self, seconds: float) -> None:
        """Let time pass between calls. The calls that follow begin after it.

        Args:
            seconds: How much.

        Raises:
            FaultDefinitionError: If it is not a number from 0.
        """
        check_seconds("VirtualClock.advance", "seconds", seconds)
        self._now += seconds
        self._step_start = self._now


class RealOperationClock(OperationClock):
    """The time of the event loop."""

    __slots__ = ()

    @property
    def now(self) -> float:
        """The time of the event loop, in seconds."""
        return anyio.current_time()

    @property
    def arrival(self) -> float:
        """The present time: real calls begin when they are made."""
        return anyio.current_time()

    def enter(self, step_index: int) -> None:
        """Do nothing: real steps follow each other by themselves."""

    def pass_time(self, seconds: float, step_index: int) -> float:
        """Return all of the seconds: real time has to be waited for."""
        return seconds


class VirtualClock:
    """A virtual clock for every operation, on which nobody waits: hours of latency cost nothing."""

    virtual: ClassVar[bool] = True

    def __init__(self) -> None:
        self._operations: dict[str, VirtualOperationClock] = {}

    def of(self, operation_id: str) -> VirtualOperationClock:
        """Return the clock of an operation. It starts at 0.0 when it is first used.

        Args:
            operation_id: The operation.
        """
        clock = self._operations.get(operation_id)
        if clock is None:
            clock = self._operations[operation_id] = VirtualOperationClock()
        return clock

    def forget(self, operation_id: str) -> None:
        """Drop the clock of an operation that has ended, with the state that faults kept on it.

        Args:
            operation_id: The operation. An unknown one is ignored.
        """
        self._operations.pop(operation_id, None)


class RealClock:
    """The event loop's time for every operation. Faults really wait, and stop waiting when the run is cancelled."""

    virtual: ClassVar[bool] = False

    def __init__(self) -> None:
        self._operations: dict[str, RealOperationClock] = {}

    def of(self, operation_id: str) -> RealOperationClock:
        """Return the clock of an operation.

        Args:
            operation_id: The operation.
        """
        clock = self._operations.get(operation_id)
        if clock is None:
            clock = self._operations[operation_id] = RealOperationClock()
        return clock

    def forget(self, operation_id: str) -> None:
        """Drop the clock of an operation that has ended, with the state that faults kept on it.

        Args:
            operation_id: The operation. An unknown one is ignored.
        """
        self._operations.pop(operation_id, None)


Clock = VirtualClock | RealClock
"""The clocks that `ToolMocks` accepts."""
