"""Processes that share a budget, some of them killed: together they never spend more than there is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from .spending import spend

pytestmark = pytest.mark.anyio


async def check_spending(url: str, folder: Path, *, processes: int, calls: int, kills: int) -> None:
    async with asyncio.timeout(540):
        spent = await spend(url, folder / "bill", processes=processes, calls=calls, kills=kills)

    assert (spent.unreserved, spent.beyond_limit, spent.left_reserved, spent.overrun) == (0, 0, 0, 0)
    assert spent.used > 0.9 * spent.limit
    assert 0 <= spent.uncharged <= spent.most_uncharged


async def test_processes_spend_no_more_than_there_is_when_one_is_killed(database_url: str, tmp_path: Path) -> None:
    await check_spending(database_url, tmp_path, processes=3, calls=100, kills=1)


@pytest.mark.soak
@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
async def test_ten_thousand_calls_of_eight_processes_spend_no_more_than_there_is(
    new_database_url: Callable[[str], str], dialect: str, tmp_path: Path
) -> None:
    await check_spending(new_database_url(dialect), tmp_path, processes=8, calls=1250, kills=3)
