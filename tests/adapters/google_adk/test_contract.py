"""The adapter of Google ADK keeps the contract of adapters."""

from __future__ import annotations

import pytest

pytest.importorskip("google.adk")

from hookline.evals.adapter_contract import CONTRACT, Clause

from .stage import GoogleAdkStage

# What ADK says about itself: its AgentTool uses an argument that it has deprecated, and compaction is experimental.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]:UserWarning"),
]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("clause", CONTRACT, ids=str)
async def test_google_adk_keeps_the_contract(clause: Clause) -> None:
    await clause.check(GoogleAdkStage())
