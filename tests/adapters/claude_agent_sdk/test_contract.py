"""The adapter of the Claude Agent SDK keeps the contract of adapters."""

from __future__ import annotations

import pytest

pytest.importorskip("claude_agent_sdk")

from hookline.evals.adapter_contract import CONTRACT, Clause

from .stage import ClaudeStage


@pytest.mark.anyio
@pytest.mark.parametrize("clause", CONTRACT, ids=str)
async def test_the_claude_agent_sdk_keeps_the_contract(clause: Clause) -> None:
    await clause.check(ClaudeStage())
