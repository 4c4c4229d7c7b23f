"""The adapter of the OpenAI Agents SDK keeps the contract of adapters."""

from __future__ import annotations

import pytest

from hookline.evals.adapter_contract import check_contract

from .stage import OpenAIStage

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_it_keeps_the_contract() -> None:
    await check_contract(OpenAIStage())
