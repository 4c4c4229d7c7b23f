"""What a durable store keeps of an adapter's run: when it learns of calls, late model calls, interruptions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hookline import BeforeToolCall, Hooks, OnComplete, ToolCall, ToolRequest, ToolResult, Usage, interrupt
from hookline.runtime import KINDS, AdapterRun, Capabilities, ModelCallRecord
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


LATE = ModelCallRecord(
    step_index=0,
    provider="anthropic",
    model="half a \ud83d",
    start_unix_nano=1,
    duration_ms=2.0,
    input_tokens=10,
    output_tokens=5,
    cost_usd=0.25,
)


async def test_a_model_call_that_is_reported_late_is_stored_and_counts_in_the_totals(tmp_path: Path) -> None:
    ends: list[OnComplete] = []
    hooks = Hooks("watch")
    hooks.on(OnComplete)(ends.append)

    async with SqlStore(f"sqlite:///{tmp_path}/hookline.db") as store:
        run = AdapterRun([hooks], CAPABILITIES, store=store)
        await run.open()
        run.begin_step()
        run.end_step(should_continue=False)
        run.report_model_call(LATE)
        run.add_usage(Usage(cost_usd=0.5))
        await run.close()

        records = await store.model_calls_of(run.operation_id)
        state = await store.load(run.operation_id)
    assert [(each.step_index, each.input_tokens, each.model) for each in records] == [(0, 10, "half a \\ud83d")]
    assert state is not None
    assert (state.llm_calls, state.usage) == (1, Usage(input_tokens=10, output_tokens=5, cost_usd=0.75))
    assert [(each.total_tokens, each.cost_usd) for each in ends] == [(15, 0.75)]


async def test_an_adapter_without_a_task_is_told_of_an_interruption(tmp_path: Path) -> None:
    told: list[bool] = []

    async with SqlStore(f"sqlite:///{tmp_path}/hookline.db") as store:
        run = AdapterRun([], CAPABILITIES, store=store, on_interrupt=lambda: told.append(run.interrupted))
        await run.open()
        assert interrupt(run.operation_id)
        await run.close()

        state = await store.load(run.operation_id)
    assert told == [True]
    assert state is not None
    assert state.status == "interrupted"
