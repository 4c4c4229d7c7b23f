"""A durable store learns of an adapter's tool call before the tool runs, or when the adapter says so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hookline import BeforeToolCall, Hooks, ToolCall, ToolRequest, ToolResult
from hookline.runtime import KINDS, AdapterRun, Capabilities
from hookline.store import SqlStore

pytestmark = pytest.mark.anyio

CAPABILITIES = Capabilities(framework="House", calls={ToolCall: KINDS})


@pytest.mark.parametrize(("writes_ahead", "known"), [(True, ["beforeStep", "beforeToolCall"]), (False, [])])
async def test_the_store_knows_a_call_before_it_runs_only_if_it_is_written_ahead(
    tmp_path: Path, anyio_backend: str, writes_ahead: bool, known: list[str]
) -> None:
    hooks = Hooks("watch")
    hooks.on(BeforeToolCall)(lambda event: None)

    async with SqlStore(f"sqlite:///{tmp_path}/hookline.db") as store:
        run = AdapterRun([hooks], CAPABILITIES, store=store, writes_ahead=writes_ahead)
        await run.open()

        async def stored() -> list[str]:
            return [str(each.type) for each in await store.events_of(run.operation_id)]

        async def work(args: Mapping[str, Any]) -> ToolResult:
            before = await stored()
            await run.checkpoint()
            return ToolResult(content=f"{before} {await stored()}")

        done = await run.call_tool(ToolRequest("pay", {}), work)
        await run.close()

        assert done.result.content == f"{known} {['beforeStep', 'beforeToolCall']}"
        assert (await stored())[-1] == "onComplete"
