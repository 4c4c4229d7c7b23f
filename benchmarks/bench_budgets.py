"""Budgets that eight processes share, three of which are killed: what is charged beyond the reservations.

Each process makes its calls eight at a time, on one budget that is too small for all of them. A call reserves five
cents and is charged one to five, at random. What is charged is noted outside of the database, as a provider would.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.harness import Row
from benchmarks.postgresql import PostgreSQL
from tests.budgets.spending import Spent, spend

PROCESSES, KILLS = 8, 3
CALLS = 50
"""Calls of each process, for each round: in 25 rounds, 10,000 calls of all."""


async def bench(rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as name, PostgreSQL() as server:
        folder, rows = Path(name), list[Row]()
        urls = {"sqlite": f"sqlite:///{folder}/budgets.db", "postgresql": await server.new_database("budgets")}
        for dialect, url in urls.items():
            calls = CALLS * rounds
            spent = await spend(url, folder / f"{dialect}.bill", processes=PROCESSES, calls=calls, kills=KILLS)
            rows += rows_of(dialect, spent)
        return rows


def rows_of(dialect: str, spent: Spent) -> list[Row]:
    """Return the rows of a database: what must not be spent, and what was."""
    calls = f"[{dialect}, {spent.calls:,} calls]"
    forbidden = {
        "charged beyond the sum of reservations": spent.unreserved,
        "charged or counted beyond the limit": spent.beyond_limit,
        "still reserved after all leases": spent.left_reserved,
    }
    made = {
        f"charged, in {spent.charges:,} calls": spent.charged,
        "counted for killed processes, and not charged": spent.uncharged,
        "left of the limit": spent.limit - spent.used,
    }
    return [
        *(Row(case=f"{case} {calls}", value=cents, unit="cents", at_most=0) for case, cents in forbidden.items()),
        *(Row(case=f"{case} {calls}", value=cents, unit="cents") for case, cents in made.items()),
    ]
