"""The adapter of FastMCP keeps the contract of adapters."""

from __future__ import annotations

import pytest

pytest.importorskip("fastmcp")

from hookline.evals.adapter_contract import check_contract

from .stage import FastMCPStage


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_fastmcp_keeps_the_contract() -> None:
    await check_contract(FastMCPStage())
