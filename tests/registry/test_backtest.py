"""What a policy would have decided about stored calls is what it decides in a run."""

from __future__ import annotations

import random

import pytest

from hookline.registry import HookDefinition, Registry
from hookline.store import SqlStore

from .past_runs import MODULE, LiveVerdicts, run_random_agent, verdicts_in

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("point", "handler", "mode"),
    [
        ("ToolCall.guard", "policy", "enforce"),
        ("ToolCall.guard", "policy", "shadow"),
        ("ToolCall.before", "steering", "shadow"),
        ("ToolCall.after", "policy", "shadow"),
        ("ToolCall.after", "policy", "enforce"),
    ],
)
async def test_verdicts_on_stored_calls_are_those_of_the_run(
    database_url: str, point: str, handler: str, mode: str
) -> None:
    chance = random.Random(f"{point} {mode}")
    judged = HookDefinition(
        id="policy", name="policy", point=point, handler=f"{MODULE}:{handler}", config={"seed": 3}, mode=mode
    )
    async with SqlStore(database_url) as store, Registry(store, modules=[MODULE]) as registry:
        with LiveVerdicts("policy") as live:
            for nth in range(12):
                hooks = registry._builder.build_new(judged)
                await run_random_agent(store, chance, hooks, f"op{nth}", calls=12)

        found = await registry.backtest(judged, examples=10_000)

    wanted = {call: verdict for call, verdict in live.found.items() if verdict[0] != "passed"}
    assert len(wanted) > 10
    assert verdicts_in(found) == wanted
    assert found.calls == len(live.found)
    assert found.operations == 12
