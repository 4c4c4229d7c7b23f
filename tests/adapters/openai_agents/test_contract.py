"""The adapter of the OpenAI Agents SDK keeps the contract of adapters."""

from __future__ import annotations

import pytest

from hookline.evals.adapter_contract import CONTRACT, Clause

from .stage import OpenAIStage

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("clause", CONTRACT, ids=str)
async def test_it_keeps_the_clause(clause: Clause) -> None:
    await clause.check(OpenAIStage())
