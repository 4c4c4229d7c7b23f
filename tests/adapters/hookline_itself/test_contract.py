"""hookline's own runtime keeps the contract that it holds others to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from hookline.evals.adapter_contract import ContractError, Ran, Scene, check_contract
from hookline.hooks import AnyHook

from .stage import HooklineStage


@pytest.mark.anyio
async def test_the_runtime_keeps_the_contract() -> None:
    await check_contract(HooklineStage())


@pytest.mark.anyio
async def test_what_breaks_the_contract_is_told_with_its_clause() -> None:
    class Silent(HooklineStage):
        async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
            return await super().play(scene, (), **attach)

    with pytest.raises(ContractError) as broken:
        await check_contract(Silent())
    assert "This is the clause" in broken.value.__notes__[0]
