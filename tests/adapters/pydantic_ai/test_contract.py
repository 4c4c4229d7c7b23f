"""The adapter of Pydantic AI keeps the contract of all adapters."""

from __future__ import annotations

import pytest

from hookline.evals.adapter_contract import check_contract

from .stage import PydanticAIStage


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_adapter_keeps_the_contract() -> None:
    await check_contract(PydanticAIStage())
