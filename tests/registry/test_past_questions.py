"""What a policy would have decided about stored model calls, runs and sub-agents is what it decides in a run."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hookline.registry import Backtest, HookDefinition, Registry
from hookline.store import SqlStore, _past_conversations, _past_events

from .past_conversations import MODULE, LiveDecisions, decisions_in, run_random_conversation
from .scenes import definition

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


@pytest.fixture
async def registry(store: SqlStore) -> AsyncIterator[Registry]:
    async with Registry(store, modules=[MODULE]) as registry:
        yield registry


def made_by(handler: str, **fields: Any) -> HookDefinition:
    return definition(id="policy", handler=f"{MODULE}:{handler}", **fields)


def gaps(found: Backtest) -> dict[str, int]:
    return {each.reason: each.calls for each in found.gaps}


@pytest.mark.parametrize(
    ("point", "mode"),
    [
        ("ModelCall.guard", "enforce"),
        ("ModelCall.before", "shadow"),
        ("ModelCall.after", "shadow"),
        ("AgentCall.guard", "enforce"),
        ("AgentCall.after", "shadow"),
        ("SubAgentCall.after", "shadow"),
        ("StepCall.after", "shadow"),
        ("CompactCall.guard", "shadow"),
        ("CompactCall.after", "shadow"),
    ],
)
@pytest.mark.parametrize("read_at_once", [4000, 7])
async def test_verdicts_on_the_past_are_those_of_the_run(
    store: SqlStore,
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    mode: str,
    read_at_once: int,
) -> None:
    monkeypatch.setattr(_past_events, "MOST_EVENTS", read_at_once)
    monkeypatch.setattr(_past_events, "MOST_OPERATIONS", 3)
    monkeypatch.setattr(_past_conversations, "MOST_MESSAGES", read_at_once)
    chance = random.Random(f"{point} {mode}")
    judged = made_by("judging", point=point, config={"seed": 3}, mode=mode, inherit=True)
    call = point.partition(".")[0]
    with LiveDecisions("policy", call) as live:
        for nth in range(10):
            hooks = registry._builder.build_new(judged)
            await run_random_conversation(store, chance, hooks, f"op{nth}", steps=6)

    found = await registry.backtest(judged, examples=10_000)

    past = decisions_in(found)
    assert past <= live.found
    assert found.calls > 0
    assert live.calls - found.calls <= found.not_judged, gaps(found)
