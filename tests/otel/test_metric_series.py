"""How many series metrics may become, and that no id is among their attributes."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter

from hookline import (
    AfterStep,
    Agent,
    AgentSession,
    Approve,
    BeforeStep,
    BeforeToolCall,
    Deny,
    HookDispatcher,
    Hooks,
    InMemoryStore,
    ModelCall,
    ModelResponse,
    OnComplete,
    Reject,
    ScriptedModel,
    ToolCall,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.errors import HookUsageError
from hookline.otel import MetricsHooks
from tests.tables import for_each

from .gauge import (
    AGENT,
    ERROR,
    LONG,
    MODEL,
    TOOL,
    Gauge,
    agent_of,
    compacting,
    pay,
)
from .receiver import ask, call, calls, says

pytestmark = pytest.mark.anyio


@pytest.fixture
def gauge() -> Gauge:
    return Gauge()


async def test_every_key_of_a_metric_is_of_the_conventions_or_in_our_namespace(gauge: Gauge) -> None:
    tracing = gauge.tracing()
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [tracing])
        dispatcher.dispatch(BeforeStep(operation_id="op", step_index=0))
        tracing.close()
    await exec_agent(compacting(*LONG), "go " * 300, hooks=[gauge.hooks(), tracing])

    keys = {key for name in gauge.metrics for attributes in gauge.attributes(name) for key in attributes}
    assert {key for key in keys if not key.startswith(("gen_ai.", "hookline."))} <= {"error.type"}


async def test_names_that_a_model_made_up_become_one(gauge: Gauge) -> None:
    hooks = Hooks("hooks")

    @hooks.guard(ToolCall, tool="*/denied*")
    def deny(call: ToolCall) -> Deny:
        return Deny("no")

    @hooks.on(BeforeToolCall, tool="*/mocked*")
    def mock(event: BeforeToolCall) -> None:
        event.mock("answer")

    @tool
    def denied_but_real() -> str:
        return "x"

    @tool
    def mocked_but_real() -> str:
        return "x"

    names = [
        "made_up",
        "denied_made_up",
        "mocked_made_up",
        "denied_but_real",
        "mocked_but_real",
        "Ünïcode \ud800",
        "x" * 999,
    ]
    step = calls(*(call(name, f"t{at}") for at, name in enumerate(names)))
    agent = agent_of(step, says(), tools=[denied_but_real, mocked_but_real])

    await exec_agent(agent, "go", hooks=[gauge.hooks(), hooks])

    assert gauge.values("gen_ai.execute_tool.duration", TOOL) == {"_OTHER", "denied_but_real", "mocked_but_real"}
    assert gauge.count("gen_ai.execute_tool.duration") == len(names)


async def one_of_many(kind: str, at: int) -> tuple[Agent, list[Hooks], str, str]:
    """A run whose value of one attribute is as no other's; the metric and the attribute that it is on."""
    name, hooks = f"{kind}-{at}", Hooks("hooks")
    model, duration = (
        ScriptedModel([calls(call(name)), says()], name=name if kind == "model" else "m"),
        "gen_ai.invoke_agent.duration",
    )
    if kind == "agent":
        return Agent(id=name, model=model), [], duration, AGENT
    if kind == "tool":
        return (
            Agent(id="a", model=model, tools=[tool(lambda: "x", name=name)]),
            [],
            "gen_ai.execute_tool.duration",
            TOOL,
        )
    if kind == "model":
        return Agent(id="a", model=model), [], duration, MODEL
    if kind == "provider":
        model.provider = name  # type: ignore[misc]
        return Agent(id="a", model=model), [], "gen_ai.client.operation.duration", "gen_ai.provider.name"
    if kind == "hook":
        hooks.on(OnComplete, id=name)(lambda event: None)
        return Agent(id="a", model=model), [hooks], "hookline.hook.duration", "hookline.hook.id"
    failure = type(f"Error{at}", (Exception,), {})("x")
    return Agent(id="a", model=ScriptedModel([failure])), [], duration, ERROR


@pytest.mark.parametrize("fresh", [False, True], ids=["one bundle", "a bundle per run"])
@pytest.mark.parametrize("kind", ["agent", "tool", "model", "provider", "hook", "error"])
async def test_only_so_many_values_of_an_attribute_become_series(gauge: Gauge, kind: str, fresh: bool) -> None:
    bundle, metric, key = gauge.hooks(max_values=5), "", ""

    for at in range(12):
        agent, further, metric, key = await one_of_many(kind, at)
        await exec_agent(agent, "go", hooks=[gauge.hooks(max_values=5) if fresh else bundle, *further])

    values = gauge.values(metric, key)
    first = {f"Error{at}" if kind == "error" else f"{kind}-{at}" for at in range(5)}
    assert values == first | {"_OTHER"}
    for name in gauge.metrics:
        for attribute in {key for attributes in gauge.attributes(name) for key in attributes}:
            assert len(gauge.values(name, attribute)) <= 6 + 1, (name, attribute)


@for_each("bad", [0, -1, 1.5, True, "5", None])
def test_a_bound_that_makes_no_sense_is_refused(bad: Any) -> None:
    with pytest.raises(HookUsageError, match="max_values"):
        MetricsHooks(max_values=bad)


IDS = st.text("0123456789abcdef", min_size=8, max_size=12).map("zq".__add__)


@settings(max_examples=25, deadline=None)
@given(ids=st.lists(IDS, min_size=6, max_size=6, unique=True), backend=st.sampled_from(["asyncio", "trio"]))
def test_no_id_of_anybody_is_on_any_metric(ids: list[str], backend: str) -> None:
    operation, session_id, user, tenant, tool_call, task = ids
    gauge = Gauge(exemplar_filter=AlwaysOnExemplarFilter())
    tracing = gauge.tracing()
    hooks = [gauge.hooks(), tracing]

    @tool
    def fail() -> str:
        raise ValueError(operation)

    def turns() -> list[Any]:
        step = calls(call("fail", tool_call), call("pay", f"{tool_call}-2"), ask("helper", f"{tool_call}-3"), read=5)
        return [step, says(operation), ValueError(session_id)]

    def agent() -> Agent:
        helper = agent_of(calls(call(f"made_up_{operation}", tool_call)), says(), id="helper")
        return agent_of(*turns(), tools=[fail, pay], sub_agents=[helper])

    async def main() -> None:
        store, ran = InMemoryStore(), agent()
        await exec_agent(ran, "go", hooks=hooks, operation_id=operation, user_id=user, tenant_id=tenant, store=store)
        await resume_agent(ran, operation, [Approve(f"{tool_call}-2")], hooks=hooks, store=store)
        async with AgentSession(agent(), hooks=hooks, session_id=session_id, user_id=user, tenant_id=tenant) as session:
            own = session.hooks

            @own.on(AfterStep)
            def watch(event: AfterStep) -> None:
                raise ValueError(event.operation_id)

            @own.guard(ToolCall)
            def guard(call: ToolCall) -> Deny | None:
                return Deny(tenant) if call.tool_name == "fail" else None

            @own.after(ModelCall, wait=False)
            async def later(call: ModelCall, result: ModelResponse) -> None:
                """Measured as well."""

            await session.run("go", operation_id=task)
            await session.resume([Reject(f"{tool_call}-2", and_continue=True)])
            await session.run("go")

    logging.disable(logging.CRITICAL)
    try:
        anyio.run(main, backend=backend)
    finally:
        logging.disable(logging.NOTSET)
    data = gauge.reader.get_metrics_data()
    assert data is not None
    sent = encode_metrics(data).SerializeToString()
    assert b"hookline.hook.id" in sent
    assert [each for each in ids if each.encode() in sent] == []
