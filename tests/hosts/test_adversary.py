"""What hosts, files and other processes may do to a session, and what must hold all the same."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookline.hosts import HOSTS, Moment
from hookline.runtime import Approve, OperationState
from hookline.runtime._run import live
from tests.hosts.in_process import LocalHost, recorded, until

pytestmark = pytest.mark.anyio

NAMES = ("claude", "codex", "gemini", "cursor", "copilot")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


async def test_many_calls_that_ask_at_once_are_as_many_questions_and_each_gets_its_own_decision(folder: Path) -> None:
    async with LocalHost(folder, "codex", ask_seconds=60.0) as host:
        waits = [
            asyncio.create_task(host.ask(*host.shell(f"ask {nth}", session=f"s-{nth % 7}"), seconds=100.0))
            for nth in range(40)
        ]

        async def asked() -> list[OperationState] | None:
            page = await host.store.operations(status="waiting_for_human", limit=1000)
            return [each for each in await host.operations() if each.pending] if len(page.items) == 40 else None

        for state in await until(asked):
            if state.pending[0].args["command"].endswith("7"):
                await host.decide(state, Approve)
        answers = await asyncio.gather(*(waits[nth] for nth in range(7, 40, 10)))
        pending = [each for each in waits if not each.done()]
        for each in pending:
            each.cancel()

        assert answers == [{}] * 4
        assert len(pending) == 36


@pytest.mark.parametrize("moment", [0.0, 0.001, 0.01, 0.05])
async def test_a_client_that_goes_away_while_a_person_is_asked_leaves_one_question(folder: Path, moment: float) -> None:
    async with LocalHost(folder, "codex", ask_seconds=15.0) as host:
        gone = asyncio.create_task(host.ask(*host.shell("ask first")))
        await asyncio.sleep(moment)  # at whatever place it is then
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        again = asyncio.create_task(host.ask(*host.shell("ask first")))

        await host.decide(await host.waiting(), Approve)

        assert await again == {}
        assert {each.status for each in await host.operations() if each.parent_operation_id} == {"done"}


async def test_a_session_whose_end_nobody_waits_for_still_ends(folder: Path) -> None:
    async with LocalHost(folder, "codex") as host:
        await host.ask(*host.frame("UserPromptSubmit", session_id="s-1"))
        ends = asyncio.create_task(host.ask(*host.frame("SessionEnd", session_id="s-1")))
        await asyncio.sleep(0)
        ends.cancel()

        async def has_ended() -> bool:
            return (await host.operations())[0].status == "done"

        assert await until(has_ended)


async def test_a_prompt_while_a_call_waits_for_a_person_loses_neither(folder: Path) -> None:
    async with LocalHost(folder, "codex", ask_seconds=15.0) as host:
        waits = asyncio.create_task(host.ask(*host.shell("ask first")))
        asked = await host.waiting()
        assert await host.ask(*host.frame("UserPromptSubmit", session_id="s-1")) == {}

        await host.decide(asked, Approve)

        assert await waits == {}


@pytest.mark.parametrize("name", NAMES)
async def test_events_in_any_order_never_fail(folder: Path, name: str) -> None:
    async with LocalHost(folder, name) as host:
        for event, frame in reversed(recorded(name, "s-1")):
            await host.ask(event, frame)
        for event, frame in recorded(name, "s-1"):
            await host.ask(event, frame)
            await host.ask(event, frame)

        assert [each.decision for each in host.resident.status().decisions if each.decision == "error"] == []

    assert live == {}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(data=st.data(), name=st.sampled_from(NAMES))
def test_a_frame_with_any_values_is_answered_or_denied(data: st.DataObject, name: str) -> None:
    event, frame = data.draw(st.sampled_from(recorded(name, "s-1")))
    keys = data.draw(st.lists(st.sampled_from(sorted(frame)), max_size=3))
    broken = {**frame, **{key: data.draw(JSON) for key in keys}}

    async def answer() -> Any:
        async with LocalHost(Path("/nowhere"), name, stored=False) as host:
            given = json.dumps(broken).encode()
            return await host.resident.answer(event, given, 20.0, time.perf_counter())

    found = asyncio.run(answer())
    judges = HOSTS[name].events[event] is Moment.BEFORE_TOOL
    assert found.code == 0 or (judges and found.code == 2 and found.err and not found.out)


async def test_an_event_and_fields_of_another_version_pass_and_are_counted(folder: Path) -> None:
    async with LocalHost(folder, "copilot") as host:
        event, frame = host.shell("echo hi")
        assert await host.ask("modelSwitched", {"sessionId": "s-1", "from": "a"}) == {}
        assert await host.ask(event, {**frame, "parentAgentId": 7, "agentId": ["a"], "newField": {}}) == {}

        status = host.resident.status()
    assert status.unknown_events == {"modelSwitched": 1}
    assert status.unknown_fields == {"from": 1, "newField": 1}


async def test_sub_agents_that_call_one_another_in_a_circle_end_nowhere(folder: Path) -> None:
    async with LocalHost(folder, "copilot") as host:
        event, frame = host.shell("echo hi")
        for own, parent in (("a", "b"), ("b", "a"), ("a", "a")):
            ids = {"sessionId": own, "agentId": own, "agentType": "x", "parentAgentId": parent}
            assert await host.ask(event, {**frame, **ids}) == {}


async def test_half_of_a_surrogate_pair_in_every_field_is_no_obstacle(folder: Path) -> None:
    async with LocalHost(folder, "codex") as host:
        for event, frame in recorded("codex", "s-1"):
            texts = {key: f"{value}\ud83d" for key, value in frame.items() if isinstance(value, str)}
            tool = {"tool_name": frame["tool_name"]} if "tool_name" in frame else {}
            answer = await host.ask(event, {**frame, **texts, **tool})
            assert answer == {} or "\ud83d" not in str(answer)

        assert [each for each in host.resident.status().decisions if each.decision == "error"] == []
