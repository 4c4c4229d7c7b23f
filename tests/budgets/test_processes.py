"""Processes that share a budget, some of them killed: together they never spend more than there is."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hookline.budgets import to_nano_usd
from hookline.store import SqlStore

from .process import AT_ONCE, RESERVE_CENTS
from .test_stores import end_leases

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
CENT = to_nano_usd(0.01)


async def start(url: str, bill: Path, calls: int, limit_cents: int) -> asyncio.subprocess.Process:
    arguments = (sys.executable, "-m", "tests.budgets.process", url, str(bill), str(calls), str(limit_cents))
    return await asyncio.create_subprocess_exec(*arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE)


def read_bill(bill: Path) -> list[int]:
    return [int(line) for line in bill.read_text().splitlines()] if bill.exists() else []


async def check_spending(url: str, folder: Path, *, processes: int, calls: int, kills: int) -> None:
    """Let processes make calls, kill some among these, and compare what was charged with what the budget says."""
    bill = folder / "bill"
    limit_cents = processes * calls * 6 // 5  # the calls would take three cents each
    running = [await start(url, bill, calls, limit_cents) for _ in range(processes)]
    try:
        async with asyncio.timeout(540):
            for killed in range(kills):
                while sum(read_bill(bill)) < (killed + 1) * limit_cents // (2 * kills):
                    await asyncio.sleep(0.005)
                running[killed].kill()
            ends = [await each.wait() for each in running]
    finally:
        for each in running:
            if each.returncode is None:
                each.kill()
                await each.wait()

    assert ends == [-9] * kills + [0] * (processes - kills)
    async with SqlStore(url) as store:
        await end_leases(store)
        [figures] = await store.budgets()
    charged, limit = sum(read_bill(bill)) * CENT, limit_cents * CENT
    assert figures.reserved.nano_usd == figures.overrun.nano_usd == 0
    assert charged <= figures.used.nano_usd <= limit
    assert figures.used.nano_usd > 0.9 * limit
    assert figures.used.nano_usd - charged <= kills * AT_ONCE * RESERVE_CENTS * CENT


async def test_processes_spend_no_more_than_there_is_when_one_is_killed(database_url: str, tmp_path: Path) -> None:
    await check_spending(database_url, tmp_path, processes=3, calls=100, kills=1)


@pytest.mark.soak
@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
async def test_ten_thousand_calls_of_eight_processes_spend_no_more_than_there_is(
    new_database_url: Callable[[str], str], dialect: str, tmp_path: Path
) -> None:
    await check_spending(new_database_url(dialect), tmp_path, processes=8, calls=1250, kills=3)
