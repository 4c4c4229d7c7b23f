"""The adapter of FastMCP keeps the contract of adapters."""

from __future__ import annotations

import pytest

pytest.importorskip("fastmcp")

from hookline.evals.adapter_contract import CONTRACT, Clause

from .stage import FastMCPStage


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("clause", CONTRACT, ids=str)
async def test_fastmcp_keeps_the_contract(clause: Clause) -> None:
    await clause.check(FastMCPStage())
