"""A session of a coding agent in OpenTelemetry: one trace, with its tool calls by the conventions of GenAI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.trace import StatusCode

from hookline import HookType
from tests.hosts.in_process import LocalHost, recorded
from tests.otel.receiver import Receiver, attributes_of
from tests.otel.scenes import Scene, attributes

pytestmark = pytest.mark.anyio


@pytest.fixture
def scene() -> Iterator[Scene]:
    with Scene() as found:
        found.traces = 1
        yield found


@pytest.mark.parametrize("name", ["claude", "codex", "gemini", "copilot"])
async def test_a_session_is_one_trace_with_its_calls_and_its_sub_agent(folder: Path, scene: Scene, name: str) -> None:
    async with LocalHost(folder, name, more=[scene.tracing()]) as host:
        for event, frame in recorded(name, "s-1"):
            await host.ask(event, frame)
        main = next(each for each in await host.operations() if each.parent_operation_id is None)

    session = next(span for span in scene.named("invoke_agent") if span.parent is None)
    calls = scene.named("execute_tool")
    inner = next(span for span in scene.named("invoke_agent") if span.parent is not None)
    assert session.name == f"invoke_agent {name}"
    assert attributes(session)["gen_ai.operation.name"] == "invoke_agent"
    assert attributes(session)["gen_ai.agent.name"] == name
    assert attributes(session)["gen_ai.conversation.id"] == "s-1"
    assert attributes(session)["hookline.operation.id"] == main.operation_id
    assert "execute_tool Bash" in {span.name for span in calls}
    for span in calls:
        assert attributes(span)["gen_ai.operation.name"] == "execute_tool"
        assert span.name == f"execute_tool {attributes(span)['gen_ai.tool.name']}"
        assert attributes(span)["gen_ai.tool.call.id"]
    caller = scene.parent(inner)
    assert caller is not None
    assert caller.name.startswith("call_agent")
    assert main.traceparents[0].split("-")[1] == f"{session.context.trace_id:032x}"


async def test_a_denied_call_and_a_question_are_seen_in_the_trace(folder: Path, scene: Scene) -> None:
    scene.traces = None  # the question is an operation with a trace of its own
    async with LocalHost(folder, "codex", more=[scene.tracing()]) as host:
        await host.ask(*host.frame("UserPromptSubmit", session_id="s-1"))
        await host.ask(*host.shell("deny this"))
        await host.ask(*host.shell("ask first"))
        await host.ask(*host.frame("SessionEnd", session_id="s-1"))
        asked = [each for each in await host.operations() if each.pending or each.agent_id == "codex"]

    spans = scene.named("execute_tool")
    denied = next(span for span in spans if attributes(span).get("gen_ai.tool.call.id") == "call deny this")
    assert attributes(denied)["hookline.denial.hook_id"] == "policy.judge"
    assert len(asked) == 2
    assert scene.named("human_intervention")


@pytest.mark.parametrize(("name", "summary"), [("claude", "What was said."), ("codex", "")])
async def test_a_compaction_is_told_to_hooks_stored_and_traced(
    folder: Path, scene: Scene, name: str, summary: str
) -> None:
    told = {"trigger": "auto", **({"compact_summary": summary} if summary else {})}
    async with LocalHost(folder, name, more=[scene.tracing()]) as host:
        await host.ask(*host.frame("UserPromptSubmit", session_id="s-1"))
        common = host.frame("Stop", session_id="s-1")[1]
        for event in ("PreCompact", "PostCompact"):
            assert await host.ask(event, {**common, "hook_event_name": event, **told}) == {}
        await host.ask(*host.frame("SessionEnd", session_id="s-1"))

        events = await host.events((await host.operations())[0])
    compacted = [each for each in events if each.hook_type is HookType.AFTER_COMPACT]
    assert [each.summary for each in compacted] == [summary]
    assert [each.hook_type for each in events].count(HookType.BEFORE_COMPACT) == 1
    assert scene.one("compact_context").status.status_code is not StatusCode.ERROR


async def test_a_compaction_that_never_ends_is_ended_by_the_next_one_and_by_the_turn(folder: Path) -> None:
    async with LocalHost(folder, "codex") as host:
        await host.ask(*host.frame("UserPromptSubmit", session_id="s-1"))
        common = host.frame("Stop", session_id="s-1")[1]
        for _ in range(2):
            await host.ask("PreCompact", {**common, "trigger": "auto"})
        await host.ask("Stop", common)
        await host.ask(*host.frame("SessionEnd", session_id="s-1"))

        events = [each.hook_type for each in await host.events((await host.operations())[0])]
    assert events.count(HookType.BEFORE_COMPACT) == 2
    assert events.count(HookType.ON_COMPACT_ERROR) == 2


async def test_a_session_arrives_at_a_real_receiver_of_otlp(folder: Path) -> None:
    with Receiver() as receiver:
        async with LocalHost(folder, "claude", otlp_endpoint=receiver.url) as host:
            for event, frame in recorded("claude", "s-1"):
                await host.ask(event, frame)

        spans = {each.item.name: attributes_of(each.item.attributes) for each in receiver.spans}
    assert len({each.item.trace_id for each in receiver.spans}) == 1
    assert spans["invoke_agent claude"]["gen_ai.conversation.id"] == "s-1"
    assert spans["execute_tool Bash"]["gen_ai.operation.name"] == "execute_tool"
    assert "invoke_agent general-purpose" in spans
    assert {each.resource["service.name"] for each in receiver.spans} == {"hookline"}
