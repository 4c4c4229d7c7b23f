"""Mocks, cassettes, faults, budgets, telemetry and the figures in events, in loops on each client."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hookline import (
    AfterCallAgent,
    AfterCompact,
    AfterStep,
    AfterToolCall,
    Deny,
    Hooks,
    ModelCall,
    ModelResponse,
    OnComplete,
    ToolCall,
    ToolRequest,
)
from hookline.budgets import InMemoryBudgets
from hookline.builtin import budget
from hookline.errors import RunStopped
from hookline.evals import Cassette, EventRecorder, ToolMocks
from hookline.evals.faults import RaiseError
from hookline.events import EVENTS
from hookline.loop import wrap
from hookline.otel import MetricsHooks, TracingHooks
from tests.adapters.provider import message_item, reasoning_item, responds, says, writes
from tests.tables import for_each

from .conftest import Way
from .dialects import CHAT, MESSAGES, RESPONSES
from .stage import entered, settled

LOOK = ModelResponse(content="let me see", tool_calls=[ToolRequest("look", {"at": "tea"}, tool_call_id="c1")])
DONE = ModelResponse(content="done")


class Tools:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def look(self, at: str) -> str:
        self.seen.append(at)
        return f"saw {at}"


def setting(way: Way, temperature: float, tokens: int) -> dict[str, Any]:
    """A setting that the protocol has."""
    return {"max_tokens": tokens} if way.dialect is MESSAGES else {"temperature": temperature}


def script(way: Way) -> None:
    way.provider.script(way.dialect.says(LOOK), way.dialect.says(DONE))


@pytest.mark.anyio
async def test_mocks_answer_and_the_tool_does_not_run(way: Way) -> None:
    tools, mocks = Tools(), ToolMocks()
    mocks.tool("look").returns("a mock")
    script(way)

    async with way.wrapped([mocks], [tools.look]) as run:
        assert way.dialect.results(await way.loop(run)) == ["a mock"]
    assert tools.seen == []


@pytest.mark.anyio
async def test_faults_strike_the_calls_of_a_loop(way: Way) -> None:
    mocks = ToolMocks()
    mocks.fault("look", RaiseError(ConnectionError("no line")))
    script(way)

    async with way.wrapped([mocks], [Tools().look]) as run:
        assert way.dialect.results(await way.loop(run)) == ["ConnectionError: no line"]


@pytest.mark.anyio
async def test_a_cassette_replays_what_it_recorded(way: Way, tmp_path: pathlib.Path) -> None:
    tools = Tools()
    for _ in range(2):
        script(way)
        with Cassette("looks", path=str(tmp_path / "looks.yaml")) as cassette:
            async with way.wrapped([cassette.hooks()], [tools.look]) as run:
                assert way.dialect.results(await way.loop(run)) == ["saw tea"]
    assert tools.seen == ["tea"]


@pytest.mark.anyio
async def test_a_recorder_hears_the_whole_run(way: Way) -> None:
    recorder = EventRecorder()
    script(way)

    async with way.wrapped([recorder.hooks], [Tools().look]) as run:
        await way.loop(run)
    found = [str(event.hook_type) for event in next(iter(recorder.operations.values())).events]
    assert found == [
        "beforeStep",
        "beforeToolCall",
        "afterToolCall",
        "afterStep",
        "beforeStep",
        "afterStep",
        "onComplete",
    ]


@pytest.mark.anyio
async def test_a_budget_stops_a_loop(way: Way) -> None:
    way.provider.script(way.dialect.says(LOOK))

    with pytest.raises(RunStopped, match=r"tokens|budget") as stopped:
        async with way.wrapped([budget(tokens=20)], [Tools().look]) as run:
            await way.loop(run)
    assert stopped.value.hook_id is not None
    assert len(way.provider.exchanges) < 10


@pytest.mark.anyio
async def test_loops_draw_on_one_budget_in_all_their_runs(way: Way) -> None:
    store = InMemoryBudgets()
    tokens = budget(tokens=10**6, per="agent", store=store, reserve_tokens=400_000, id="tokens")
    count = budget(calls=1, per="tool", store=store, id="count", on_limit="stop")
    script(way)
    async with way.wrapped([tokens, count], [Tools().look], agent_id="looker") as run:
        await way.loop(run)
    script(way)
    with pytest.raises(RunStopped, match="has 1 call used of 1 call"):
        async with way.wrapped([tokens, count], [Tools().look], agent_id="looker") as run:
            await way.loop(run)

    [taken] = await store.budgets(budget_id="tokens")
    [called] = await store.budgets(budget_id="count")
    assert (taken.scope.key, taken.reserved.tokens) == ("looker", 0)
    assert 0 < taken.used.tokens < 1000  # three answers, by what the provider says of them
    assert (called.scope.key, called.used.calls) == ("local/look", 1)


@pytest.mark.anyio
async def test_an_answer_of_a_model_without_a_price_takes_what_it_reserved(way: Way) -> None:
    store = InMemoryBudgets()
    way.provider.script(way.dialect.says(DONE))

    async with way.wrapped([budget(cost_usd=1, per="agent", store=store, reserve_usd=0.4)], []) as run:
        await way.loop(run)

    [taken] = await store.budgets()
    assert (taken.used.nano_usd, taken.reserved.nano_usd) == (400_000_000, 0)


@pytest.mark.anyio
async def test_a_trace_has_the_steps_the_model_calls_and_the_tools(way: Way) -> None:
    kept, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    script(way)

    async with way.wrapped([TracingHooks(provider)], [Tools().look], agent_id="looker") as run:
        messages: list[Any] = [{"role": "user", "content": "go"}]
        response = await settled(
            way.dialect.method(run.client)(**{**way.dialect.request("model", messages, []), **setting(way, 0.5, 50)})
        )
        await settled(run.call_tools(response))
    names = sorted(span.name for span in kept.get_finished_spans())
    assert "chat model" in names
    assert "execute_tool look" in names
    assert "invoke_agent looker" in names
    (chat,) = [span for span in kept.get_finished_spans() if span.name == "chat model"]
    found: Mapping[str, Any] = chat.attributes or {}
    assert found["gen_ai.usage.input_tokens"] == 11
    assert found["gen_ai.usage.output_tokens"] == 7
    assert found["gen_ai.response.model"] == "gpt-loopback-1"
    assert found["gen_ai.provider.name"] == ("anthropic" if way.dialect.name == "messages" else "openai")
    (name, value), *_ = setting(way, 0.5, 50).items()
    assert found[f"gen_ai.request.{name}"] == value


@pytest.mark.anyio
async def test_metrics_count_the_tokens_of_a_loop(way: Way) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    script(way)

    async with way.wrapped([MetricsHooks(provider)], [Tools().look]) as run:
        await way.loop(run)
    data: Any = reader.get_metrics_data()
    names = {metric.name for scope in data.resource_metrics[0].scope_metrics for metric in scope.metrics}
    assert "gen_ai.client.token.usage" in names


@pytest.mark.anyio
@for_each("streamed", [False, True], ids=["whole", "streamed"])
@for_each("led", [False, True], ids=["observed", "led"])
@for_each("name", ["chat", "responses", "messages"])
async def test_cost_usage_and_reasoning_are_in_the_events(
    provider: Any, sync: bool, name: str, led: bool, streamed: bool
) -> None:
    steps: list[AfterStep] = []
    hooks = Hooks("watch")
    hooks.on(AfterStep)(steps.append)
    if led:
        hooks.guard(ModelCall)(lambda call: None)
    dialect, play, dollars = {
        "chat": (CHAT, says("hi", model="gpt-4o", reasoning_content="thinking"), (2.5, 10)),
        "responses": (RESPONSES, responds(reasoning_item("thinking", "s"), message_item("hi"), pieces=["hi"]), (0, 0)),
        "messages": (MESSAGES, writes("hi", thinking="thinking", model="claude-haiku-4-5"), (1, 5)),
    }[name]
    provider.script(play)
    way = Way(dialect, provider, sync=sync)
    options: dict[str, Any] = {"stream": True} if streamed else {}
    if streamed and name == "chat":
        options["stream_options"] = {"include_usage": True}

    async with way.wrapped([hooks]) as run:
        answer = await way.ask(run, **options)
        if streamed and sync:
            list(answer)
        elif streamed:
            async for _ in answer:
                pass
    (step,) = steps
    assert (step.content, step.reasoning) == ("hi", "thinking")
    assert (step.total_input_tokens, step.total_output_tokens) == (11, 7)
    assert step.step_cost_usd == pytest.approx((11 * dollars[0] + 7 * dollars[1]) / 1e6)


@pytest.mark.anyio
async def test_hooks_change_requests_and_leave_the_rest_as_the_client_wrote_it(way: Way) -> None:
    hooks = Hooks("changes")
    seen: list[ModelCall] = []

    @hooks.before(ModelCall)
    def change(call: ModelCall) -> ModelCall:
        seen.append(call)
        *before, last = call.messages
        changed = [*before, replace(last, content="other words")]
        return replace(call, messages=changed, model="another", settings={**call.settings, **setting(way, 0.1, 10)})

    way.provider.script(way.dialect.says(DONE))
    first = {"role": "user", "content": [{"type": "input_text" if way.dialect is RESPONSES else "text", "text": "one"}]}
    messages = [first, {"role": "user", "content": "two"}]

    async with way.wrapped([hooks]) as run:
        await settled(
            way.dialect.method(run.client)(**{**way.dialect.request("model", messages, []), **setting(way, 0.9, 90)})
        )
    (body,) = way.provider.bodies
    sent = body.get("messages") or body["input"]
    assert sent[0] == first
    assert sent[1]["content"] == "other words"
    assert body["model"] == "another"
    assert setting(way, 0.1, 10).items() <= body.items()
    assert [message.content for message in seen[0].messages] == ["one", "two"]
    assert setting(way, 0.9, 90).items() <= seen[0].settings.items()


@pytest.mark.anyio
async def test_a_denied_call_raises_before_the_request_and_says_which_hook(way: Way) -> None:
    hooks, ends = Hooks("denies"), list[Any]()
    hooks.guard(ModelCall, id="no")(lambda call: Deny("not now"))
    hooks.on(OnComplete)(ends.append)
    script(way)

    with pytest.raises(RunStopped, match="not now") as stopped:
        async with way.wrapped([hooks]) as run:
            await way.loop(run)
    assert stopped.value.hook_id == "no"
    assert way.provider.exchanges == []
    assert [event.reason for event in ends] == ["interrupted"]


@pytest.mark.anyio
async def test_a_hook_may_add_and_remove_tool_calls(way: Way) -> None:
    tools, hooks = Tools(), Hooks("changes")

    @hooks.after(ModelCall)
    def call_another(call: ModelCall, result: ModelResponse) -> ModelResponse:
        if not result.tool_calls:
            return result
        more = ToolRequest("look", {"at": "milk"}, tool_call_id="c2")
        return replace(result, tool_calls=[*result.tool_calls, more])

    script(way)

    async with way.wrapped([hooks], [tools.look]) as run:
        assert way.dialect.results(await way.loop(run)) == ["saw tea", "saw milk"]


@pytest.mark.anyio
async def test_a_bundle_with_all_sixteen_observers_attaches(way: Way) -> None:
    hooks, heard = Hooks("all"), list[str]()
    for event in EVENTS.values():
        hooks.on(event)(lambda event: heard.append(str(event.hook_type)))
    script(way)

    async with way.wrapped([hooks], [Tools().look]) as run:
        await way.loop(run)
    assert heard.count("afterStep") == 2


@pytest.mark.anyio
async def test_a_sub_agent_is_a_run_of_its_own(way: Way) -> None:
    hooks, events = Hooks("watch", inherit=True), list[Any]()
    hooks.on(AfterCallAgent)(events.append)
    hooks.on(OnComplete)(events.append)
    way.provider.script(way.dialect.says(DONE))

    async with way.opened() as client, entered(wrap(client, hooks=[hooks], operation_id="parent")) as run:

        async def work(instruction: str, operation_id: str) -> str:
            async with entered(wrap(client, parent=run, operation_id=operation_id, agent_id="child")) as child:
                return way.dialect.text(await way.ask(child, [{"role": "user", "content": instruction}]))

        def work_here(instruction: str, operation_id: str) -> str:
            with wrap(client, parent=run, operation_id=operation_id, agent_id="child") as child:
                request = way.dialect.request("model", [{"role": "user", "content": instruction}], [])
                return way.dialect.text(way.dialect.method(child.client)(**request))

        done = await settled(run.call_agent("child", "do it", work_here if way.sync else work))
        assert done.output == "done"
    child, called, parent = events
    assert (child.agent_id, child.parent_operation_id) == ("child", "parent")
    assert called.success
    assert parent.operation_id == "parent"


@pytest.mark.anyio
async def test_a_compaction_belongs_to_the_step_of_the_next_call(way: Way) -> None:
    hooks, events = Hooks("watch"), list[Any]()
    hooks.on(AfterCompact)(events.append)
    hooks.on(AfterStep)(events.append)
    way.provider.script(way.dialect.says(DONE))

    async with way.wrapped([hooks]) as run:
        given: list[Any] = []
        messages = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]

        def summarize(entries: list[Any]) -> str:
            given.extend(entries)
            return "both"

        assert await settled(run.compact(messages, 100, summarize)) == "both"
        await way.ask(run)
    assert given == messages
    assert [(type(event), event.step_index) for event in events] == [(AfterCompact, 0), (AfterStep, 0)]


@pytest.mark.anyio
async def test_tools_of_other_toolsets_keep_their_names_for_hooks(way: Way) -> None:
    from hookline.runtime import Tool

    seen: list[AfterToolCall] = []
    hooks = Hooks("watch")
    hooks.on(AfterToolCall)(seen.append)
    hooks.guard(ToolCall, tool="shop/*")(lambda call: None)

    async def run_it(args: Mapping[str, Any]) -> str:
        return "bought"

    buy = Tool(toolset="shop", name="buy", run=run_it, schema={"type": "object"})
    asks = ModelResponse(tool_calls=[ToolRequest("shop__buy", tool_call_id="c1")])
    way.provider.script(way.dialect.says(asks), way.dialect.says(DONE))

    async with way.wrapped([hooks], [buy]) as run:
        assert way.dialect.results(await way.loop(run)) == ["bought"]
    assert [(event.toolset, event.tool_name) for event in seen] == [("shop", "buy")]
