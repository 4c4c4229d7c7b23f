"""Let processes spend one budget, kill some of them, and compare what was charged with what the budget has counted."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import update

from hookline.budgets import to_nano_usd
from hookline.store import SqlStore
from hookline.store._tables import budget_reservations
from tests.programs import run_program

from .process import AT_ONCE, RESERVE_CENTS

__all__ = ["Spent", "spend"]

CENT = to_nano_usd(0.01)


class Spent(NamedTuple):
    """What processes spent together, in cents.

    Attributes:
        limit: The limit of their budget.
        charged: What they were charged.
        charges: How often they were charged.
        used: What the budget has counted as used, once the leases of killed processes have ended.
        left_reserved: What is reserved after that.
        overrun: What calls took beyond their reservations, as the budget has counted it.
        calls: How many calls were planned.
        killed: How many processes were killed.
    """

    limit: int
    charged: int
    charges: int
    used: float
    left_reserved: float
    overrun: float
    calls: int
    killed: int

    @property
    def unreserved(self) -> float:
        """What was charged, although it is neither used nor reserved."""
        return max(0.0, self.charged - self.used - self.left_reserved)

    @property
    def beyond_limit(self) -> float:
        """What was charged, used or reserved beyond the limit."""
        return max(0.0, max(self.charged, self.used + self.left_reserved) - self.limit)

    @property
    def uncharged(self) -> float:
        """What is counted as used for calls of killed processes, and was not charged."""
        return self.used - self.charged

    @property
    def most_uncharged(self) -> int:
        """The most that calls of killed processes can have reserved."""
        return self.killed * AT_ONCE * RESERVE_CENTS


async def spend(url: str, bill: Path, *, processes: int, calls: int, kills: int) -> Spent:
    """Let processes make calls, and kill some of them among these.

    Args:
        url: The database.
        bill: A file for what is charged; must not exist.
        processes: How many processes there are.
        calls: How many calls each makes.
        kills: How many of them are killed, at equal parts of the first half of the budget.

    Raises:
        RuntimeError: If a process fails.
    """
    limit = processes * calls * 6 // 5  # the calls would take three cents each
    async with AsyncExitStack() as stack:
        programs = (run_program("tests.budgets.process", url, bill, calls, limit) for _ in range(processes))
        running = [await stack.enter_async_context(each) for each in programs]
        for killed in range(kills):
            while sum(_read(bill)) < (killed + 1) * limit // (2 * kills):
                if running[killed].returncode is not None:
                    raise RuntimeError(f"A process ended with {running[killed].returncode} before it was killed.")
                await asyncio.sleep(0.005)
            running[killed].kill()
        ends = [await each.wait() for each in running]
    if ends != [-9] * kills + [0] * (processes - kills):
        raise RuntimeError(f"The processes ended with {ends}.")
    async with SqlStore(url) as store:
        async with store.writing() as connection:  # as if the time of the leases had passed
            await connection.execute(update(budget_reservations).values(lease_until=0.0))
        [figures] = await store.budgets()
    charges = _read(bill)
    return Spent(
        limit=limit,
        charged=sum(charges),
        charges=len(charges),
        used=figures.used.nano_usd / CENT,
        left_reserved=figures.reserved.nano_usd / CENT,
        overrun=figures.overrun.nano_usd / CENT,
        calls=processes * calls,
        killed=kills,
    )


def _read(bill: Path) -> list[int]:
    return [int(line) for line in bill.read_text().splitlines()] if bill.exists() else []
