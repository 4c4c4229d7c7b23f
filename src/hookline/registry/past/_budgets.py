"""`PastBudgets`: keep the counts of a budget that judges calls in the order of time."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

from hookline.budgets import Amounts, InMemoryBudgets, Settlement

__all__ = ["PastBudgets"]


class PastBudgets(InMemoryBudgets):
    """Keeps counts at the time of stored calls: a call settles its reservation when it ended, not when it is judged.

    Attributes:
        now: The time, in unix seconds.
        ends_at: When the call ended that is judged, in unix seconds.
    """

    def __init__(self) -> None:
        super().__init__(lambda: self.now, announces=False)
        self.now = 0.0
        self.ends_at = 0.0
        self._number = count()
        self._running: list[tuple[float, int, str, Amounts | None]] = []

    async def advance(self, now: float, *, ends_at: float) -> None:
        """Settle the calls that have ended by a time, and go on to that time.

        Args:
            now: The time of the next call, in unix seconds.
            ends_at: When that call ended, in unix seconds.
        """
        while self._running and self._running[0][0] <= now:
            self.now, _, reservation_id, used = heappop(self._running)
            await super().settle_budget(reservation_id, used)
        self.now, self.ends_at = now, ends_at

    async def settle_budget(self, reservation_id: str, used: Amounts | None = None) -> Settlement | None:
        """Settle a reservation when the call that is judged has ended."""
        heappush(self._running, (self.ends_at, next(self._number), reservation_id, used))
        return None
