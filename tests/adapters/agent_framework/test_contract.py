"""The adapter of Microsoft Agent Framework keeps the contract of adapters."""

from __future__ import annotations

import pytest

from hookline.evals.adapter_contract import check_contract

from .stage import AgentFrameworkStage


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_agent_framework_keeps_the_contract() -> None:
    await check_contract(AgentFrameworkStage())
