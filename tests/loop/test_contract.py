"""Loops on each client keep the contract of adapters."""

from __future__ import annotations

import pytest

from hookline.evals.adapter_contract import CONTRACT, check_contract
from tests.adapters.provider import Provider

from .dialects import CHAT, DIALECTS, MESSAGES, RESPONSES, Dialect
from .stage import LoopStage

# What knows the protocols waits for nothing, so that it cannot differ between event loops.
LOOPS = [("asyncio", CHAT), ("trio", RESPONSES), ("asyncio", MESSAGES), ("trio", MESSAGES)]


@pytest.mark.anyio
@pytest.mark.parametrize(("anyio_backend", "dialect"), LOOPS, ids=lambda each: getattr(each, "name", each))
async def test_a_loop_keeps_the_contract(dialect: Dialect, provider: Provider) -> None:
    stage = LoopStage(dialect, provider)
    async with stage.client:
        await check_contract(stage)


@pytest.mark.anyio
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
async def test_a_sync_loop_keeps_the_contract(dialect: Dialect, provider: Provider) -> None:
    stage = LoopStage(dialect, provider, sync=True)
    with stage.client:
        for clause in CONTRACT:
            if clause.name != "cancellation":  # a thread cannot be cancelled
                await clause.check(stage)
