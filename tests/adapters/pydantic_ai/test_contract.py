"""The adapter of Pydantic AI keeps the contract of all adapters."""

from __future__ import annotations

import pytest

from hookline.evals.adapter_contract import CONTRACT, Clause

from .stage import PydanticAIStage


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("clause", CONTRACT, ids=str)
async def test_the_adapter_keeps_the_contract(clause: Clause) -> None:
    await clause.check(PydanticAIStage())
