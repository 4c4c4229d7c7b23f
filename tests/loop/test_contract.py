"""Loops on each client keep the contract of adapters."""

from __future__ import annotations

import pytest

from hookline.evals.adapter_contract import CONTRACT, Clause
from tests.adapters.provider import Provider

from .dialects import DIALECTS, Dialect
from .stage import LoopStage


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
@pytest.mark.parametrize("clause", CONTRACT, ids=str)
async def test_a_loop_keeps_the_contract(clause: Clause, dialect: Dialect, provider: Provider) -> None:
    stage = LoopStage(dialect, provider)
    async with stage.client:
        await clause.check(stage)


# A thread cannot be cancelled.
SYNC = [clause for clause in CONTRACT if clause.name != "cancellation"]


@pytest.mark.anyio
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
@pytest.mark.parametrize("clause", SYNC, ids=str)
async def test_a_sync_loop_keeps_the_contract(clause: Clause, dialect: Dialect, provider: Provider) -> None:
    stage = LoopStage(dialect, provider, sync=True)
    with stage.client:
        await clause.check(stage)
