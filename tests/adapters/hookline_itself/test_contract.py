"""hookline's own runtime keeps the contract that it holds others to."""

from __future__ import annotations

import pytest

from hookline.evals.adapter_contract import CONTRACT, Clause

from .stage import HooklineStage


@pytest.mark.anyio
@pytest.mark.parametrize("clause", CONTRACT, ids=str)
async def test_the_runtime_keeps_the_contract(clause: Clause) -> None:
    await clause.check(HooklineStage())
