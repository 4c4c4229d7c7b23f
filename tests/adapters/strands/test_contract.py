"""The adapter of Strands keeps the contract of adapters."""

from __future__ import annotations

import pytest

from hookline.evals.adapter_contract import CONTRACT, Clause

from .stage import StrandsStage


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.parametrize("clause", CONTRACT, ids=str)
async def test_strands_keeps_the_contract(clause: Clause) -> None:
    await clause.check(StrandsStage())
