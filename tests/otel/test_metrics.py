"""What is measured of runs: names, units and buckets, and values by segment, agent and outcome."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from opentelemetry.sdk.metrics.export import HistogramDataPoint

from hookline import (
    AfterCompact,
    AfterHumanIntervention,
    AfterStep,
    AfterToolCall,
    Agent,
    Approve,
    BeforeCompact,
    BeforeHumanIntervention,
    BeforeStep,
    BeforeToolCall,
    CompactCall,
    Deny,
    HookDispatcher,
    Hooks,
    InMemoryStore,
    Message,
    ModelCall,
    ModelResponse,
    OnToolCallError,
    Reject,
    ScriptedModel,
    TextParts,
    ToolCall,
    ToolResult,
    Usage,
    exec_agent,
    interrupt,
    resume_agent,
    tool,
)
from hookline.interceptors import open_text_judge

from .gauge import (
    AGENT,
    ERROR,
    LONG,
    MODEL,
    TOOL,
    Foreign,
    Gauge,
    agent_of,
    break_down,
    compacting,
    complain,
    look_up,
    pay,
)
from .receiver import ask, call, calls, says

pytestmark = pytest.mark.anyio

SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
CALLS = (1, 2, 4, 8, 16, 32, 64, 128)
HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "gen_ai.invoke_agent.duration": (
        "s",
        (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6),
    ),
    "gen_ai.invoke_agent.inference_calls": ("{inference_call}", CALLS),
    "gen_ai.invoke_agent.tool_calls": ("{tool_call}", CALLS),
    "gen_ai.execute_tool.duration": ("s", SECONDS),
    "gen_ai.client.operation.duration": ("s", SECONDS),
    "gen_ai.client.token.usage": (
        "{token}",
        (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864),
    ),
    "hookline.step.duration": ("s", SECONDS),
    "hookline.compaction.duration": ("s", SECONDS),
    "hookline.human.wait.duration": ("s", (1, 10, 60, 300, 1800, 3600, 14400, 86400, 604800)),
    "hookline.hook.duration": ("s", (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30)),
}
OTHERS = {
    "hookline.tracer.open_spans": "{span}",
    "hookline.lane.queued": "{event}",
    "hookline.lane.length": "{event}",
}


@pytest.fixture
def gauge() -> Gauge:
    return Gauge()


# Names, units, buckets.


async def test_every_histogram_has_its_name_unit_description_and_buckets(gauge: Gauge) -> None:
    hooks, store = Hooks("watching"), InMemoryStore()

    @hooks.on(AfterStep)
    def watch(event: AfterStep) -> None:
        """Something to measure."""

    payer = agent_of(calls(call("pay"), read=5, wrote=5), says(), tools=[pay])
    await exec_agent(compacting(*LONG), "go " * 300, hooks=[gauge.hooks(), hooks])
    paused = await exec_agent(payer, "go", hooks=[gauge.hooks()], store=store)
    await resume_agent(payer, paused.operation_id, [Approve("t1")], hooks=[gauge.hooks()], store=store)

    assert gauge.metrics.keys() == HISTOGRAMS.keys() | OTHERS.keys()
    for name, (unit, bounds) in HISTOGRAMS.items():
        metric = gauge.metrics[name]
        assert metric.unit == unit
        assert metric.description.endswith(".")
        for point in metric.data.data_points:
            assert isinstance(point, HistogramDataPoint), name
            assert tuple(point.explicit_bounds) == bounds, name
            assert isinstance(point.sum, float if unit == "s" else int), name
    for name, unit in OTHERS.items():
        assert gauge.metrics[name].unit == unit


# Values.


async def test_tools_are_measured_by_name_agent_and_failure(gauge: Gauge) -> None:
    step = calls(call("look_up", "1"), call("look_up", "2"), call("complain", "3"), call("break_down", "4"))
    agent = agent_of(step, says(), tools=[look_up, complain, break_down])

    await exec_agent(agent, "go", hooks=[gauge.hooks()])

    common = {"gen_ai.tool.type": "function", AGENT: "tester"}
    found = {
        tuple(sorted(dict(point.attributes).items())): point.count
        for point in gauge.points("gen_ai.execute_tool.duration")
    }
    assert found == {
        tuple(sorted({TOOL: "look_up", **common}.items())): 2,
        tuple(sorted({TOOL: "complain", ERROR: "tool_error", **common}.items())): 1,
        tuple(sorted({TOOL: "break_down", ERROR: "LookupError", **common}.items())): 1,
    }


async def test_a_denied_tool_call_has_not_failed_and_a_mocked_one_has_if_its_answer_says_so(gauge: Gauge) -> None:
    hooks = Hooks("hooks")

    @hooks.guard(ToolCall, tool="*/look_up")
    def deny(call: ToolCall) -> Deny:
        return Deny("no")

    @hooks.on(BeforeToolCall, tool="*/complain")
    def mock_failure(event: BeforeToolCall) -> None:
        event.mock(ToolResult(content="none", success=False))

    @hooks.on(BeforeToolCall, tool="*/break_down")
    def mock_exception(event: BeforeToolCall) -> None:
        event.mock(PermissionError("no"))

    step = calls(call("look_up", "1"), call("complain", "2"), call("break_down", "3"))
    await exec_agent(agent_of(step, says(), tools=[look_up, complain, break_down]), "go", hooks=[gauge.hooks(), hooks])

    assert gauge.counts("gen_ai.execute_tool.duration", TOOL, ERROR) == {
        ("look_up", None): 1,
        ("complain", "tool_error"): 1,
        ("break_down", "PermissionError"): 1,
    }


async def test_a_run_counts_its_segments_model_calls_and_tool_calls(gauge: Gauge) -> None:
    step = calls(call("look_up", "1"), call("break_down", "2"))
    await exec_agent(agent_of(step, step, says(), tools=[look_up, break_down]), "go", hooks=[gauge.hooks()])
    await exec_agent(agent_of(says()), "go", hooks=[gauge.hooks()])

    assert gauge.sums("gen_ai.invoke_agent.inference_calls", AGENT) == {"tester": (2, 3 + 1)}
    assert gauge.sums("gen_ai.invoke_agent.tool_calls", AGENT) == {"tester": (2, 4 + 0)}
    assert gauge.attributes("gen_ai.invoke_agent.duration") == [{AGENT: "tester", MODEL: "scripted"}]
    assert gauge.count("gen_ai.invoke_agent.duration") == 2
    assert gauge.sums("hookline.step.duration", AGENT)["tester"][0] == 4


async def test_tokens_are_measured_by_type(gauge: Gauge) -> None:
    await exec_agent(
        agent_of(calls(call("none"), read=70, wrote=3), says(read=90, wrote=1)), "go", hooks=[gauge.hooks()]
    )

    common = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "hookline", MODEL: "scripted"}
    assert gauge.sums("gen_ai.client.token.usage", "gen_ai.token.type") == {"input": (2, 160), "output": (2, 4)}
    for attributes in gauge.attributes("gen_ai.client.token.usage"):
        assert attributes.items() >= common.items()
    assert gauge.attributes("gen_ai.client.operation.duration") == [common]


async def test_the_tokens_that_a_cut_answer_has_reported_are_measured(gauge: Gauge) -> None:
    class Cut:
        name, provider = "m", "p"

        async def respond(self, call: ModelCall) -> ModelResponse:
            raise AssertionError

        async def stream(self, call: ModelCall) -> Any:
            judge = open_text_judge(call)
            assert judge is not None
            judge.read_so_far = lambda: ModelResponse(usage=Usage(input_tokens=40, output_tokens=1))
            await judge.add("a secret")
            yield "never"

    hooks = Hooks("judge")
    hooks.after(ModelCall, parts=TextParts(max_chars=1))(lambda call, response: Deny("no"))

    result = await exec_agent(
        Agent(id="a", model=Cut()), "go", hooks=[hooks, gauge.hooks()], on_token=lambda text: None
    )

    assert result.denied is not None
    assert gauge.sums("gen_ai.client.token.usage", "gen_ai.token.type") == {"input": (1, 40), "output": (1, 1)}


async def test_a_model_call_is_measured_under_the_model_that_hooks_have_chosen_for_it(gauge: Gauge) -> None:
    hooks = Hooks("routing")

    @hooks.before(ModelCall)
    def route(call: ModelCall) -> ModelCall:
        return msgspec.structs.replace(call, model="cheap")

    await exec_agent(agent_of(says(read=1)), "go", hooks=[gauge.hooks(), hooks])

    assert gauge.values("gen_ai.client.operation.duration", MODEL) == {"cheap"}
    assert gauge.values("gen_ai.client.token.usage", MODEL) == {"cheap"}


@pytest.mark.parametrize("reason", ["done", "error", "max_steps", "interrupted", "denied", "cost_limit"])
async def test_only_a_run_that_failed_is_measured_as_failed(gauge: Gauge, reason: str) -> None:
    hooks = Hooks("hooks")

    @tool
    async def stop() -> str:
        assert interrupt("op")
        await anyio.sleep_forever()
        return ""

    turns: dict[str, list[Any]] = {
        "done": [says()],
        "error": [ValueError("no model")],
        "max_steps": [calls(call("look_up"))],
        "interrupted": [calls(call("stop"))],
        "denied": [says()],
        "cost_limit": [
            msgspec.structs.replace(calls(call("look_up")), usage=msgspec.structs.replace(says().usage, cost_usd=2.0))
        ],
    }
    if reason == "denied":
        hooks.guard(ModelCall, id="no")(lambda call: Deny("no"))
    agent = agent_of(
        *turns[reason], tools=[look_up, stop], max_steps=1 if reason == "max_steps" else 9, cost_limit_usd=1.0
    )

    result = await exec_agent(agent, "go", hooks=[gauge.hooks(), hooks], operation_id="op")

    assert result.reason == {"denied": "interrupted"}.get(reason, reason)
    assert gauge.values("gen_ai.invoke_agent.duration", ERROR) == {"ValueError" if reason == "error" else None}
    assert gauge.values("hookline.step.duration", ERROR) <= {"ValueError" if reason == "error" else None}
    assert gauge.values("gen_ai.execute_tool.duration", ERROR) <= {None}


async def test_a_model_that_failed_is_measured_as_failed_and_one_that_was_interrupted_is_not_measured(
    gauge: Gauge,
) -> None:
    def stop(call: ModelCall) -> Any:
        assert interrupt("op")
        return anyio.sleep_forever()

    await exec_agent(agent_of(TimeoutError("secret")), "go", hooks=[gauge.hooks()])
    await exec_agent(Agent(id="b", model=ScriptedModel(stop)), "go", hooks=[gauge.hooks()], operation_id="op")

    assert gauge.values("gen_ai.client.operation.duration", ERROR) == {"TimeoutError"}
    assert gauge.count("gen_ai.client.operation.duration") == 1


async def test_a_run_that_was_cancelled_is_measured_and_not_as_failed(gauge: Gauge) -> None:
    with anyio.CancelScope() as scope:

        @tool
        async def cancel() -> str:
            scope.cancel()
            await anyio.sleep_forever()
            return ""

        await exec_agent(agent_of(calls(call("cancel")), tools=[cancel]), "go", hooks=[gauge.hooks()])

    assert gauge.attributes("gen_ai.invoke_agent.duration") == [{AGENT: "tester", MODEL: "scripted"}]
    assert gauge.values("gen_ai.execute_tool.duration", ERROR) == {None}


async def test_a_tool_that_raises_an_exception_of_the_name_of_an_interrupt_has_failed(gauge: Gauge) -> None:
    class Interrupted(Exception):
        pass

    class UnknownToolError(Exception):
        pass

    @tool
    def first() -> str:
        raise Interrupted("x")

    @tool
    def second() -> str:
        raise UnknownToolError("x")

    step = calls(call("first", "1"), call("second", "2"))
    await exec_agent(agent_of(step, says(), tools=[first, second]), "go", hooks=[gauge.hooks()])

    found = {
        (attributes[TOOL], attributes.get(ERROR)) for attributes in gauge.attributes("gen_ai.execute_tool.duration")
    }
    assert found == {("first", "Interrupted"), ("second", "UnknownToolError")}


async def test_a_run_whose_state_cannot_be_stored_is_measured_as_failed(gauge: Gauge) -> None:
    class BrokenStore(InMemoryStore):
        async def save(self, state: Any, *, expected_version: int | None) -> None:
            raise OSError("disk full")

    result = await exec_agent(agent_of(says()), "go", hooks=[gauge.hooks()], store=BrokenStore())

    assert result.reason == "error"
    assert gauge.values("gen_ai.invoke_agent.duration", ERROR) == {"OSError"}
    assert gauge.point("gen_ai.invoke_agent.inference_calls").sum == 0


# Compaction.


@pytest.mark.parametrize("ending", ["done", "failed", "denied", "broken guard", "withheld", "interrupted"])
async def test_only_a_compaction_that_failed_is_measured_as_failed(gauge: Gauge, ending: str) -> None:
    hooks = Hooks("hooks")

    async def summary(messages: list[Message]) -> str:
        if ending == "failed":
            raise LookupError("secret")
        if ending == "interrupted":
            assert interrupt("op")
            await anyio.sleep_forever()
        return "summary"

    def break_guard(call: CompactCall) -> None:
        raise ValueError("broken")

    if ending == "denied":
        hooks.guard(CompactCall, id="no")(lambda call: Deny("no"))
    elif ending == "broken guard":
        hooks.guard(CompactCall, id="no")(break_guard)
    elif ending == "withheld":
        hooks.after(CompactCall, id="no")(lambda call, result: Deny("no"))

    await exec_agent(compacting(*LONG, summarize=summary), "go " * 300, hooks=[gauge.hooks(), hooks], operation_id="op")

    expected = {AGENT: "tester"} | ({ERROR: "LookupError"} if ending == "failed" else {})
    assert gauge.attributes("hookline.compaction.duration") == [expected]
    assert gauge.count("hookline.compaction.duration") == 1


# Segments.


def calls_of(gauge: Gauge) -> dict[str, Any]:
    return {
        "calls": gauge.point("gen_ai.invoke_agent.inference_calls").sum,
        "tools": gauge.point("gen_ai.invoke_agent.tool_calls").sum,
        "segments": {
            attributes.get("hookline.resumed", False): point.count
            for point in gauge.points("gen_ai.invoke_agent.duration")
            if (attributes := dict(point.attributes))
        },
    }


async def test_each_segment_of_a_paused_run_counts_its_own_calls(gauge: Gauge) -> None:
    step = calls(call("look_up", "t0"), call("pay", "t1"))
    agent, store = (
        agent_of(calls(call("look_up")), step, calls(call("pay", "t2")), says(), tools=[look_up, pay]),
        InMemoryStore(),
    )

    paused = await exec_agent(agent, "go", hooks=[gauge.hooks()], store=store)
    assert calls_of(gauge) == {"calls": 2, "tools": 2, "segments": {False: 1}}
    await resume_agent(agent, paused.operation_id, [Approve("t1")], hooks=[gauge.hooks()], store=store)
    assert calls_of(gauge) == {"calls": 3, "tools": 3, "segments": {False: 1, True: 1}}
    result = await resume_agent(agent, paused.operation_id, [Approve("t2")], hooks=[gauge.hooks()], store=store)

    assert result.reason == "done"
    assert calls_of(gauge) == {"calls": 4, "tools": 4, "segments": {False: 1, True: 2}}
    assert (result.tool_calls, gauge.count("hookline.step.duration")) == (4, result.steps)


async def test_a_segment_that_only_takes_one_of_two_decisions_counts_no_calls(gauge: Gauge) -> None:
    agent = agent_of(calls(call("pay", "t1"), call("pay", "t2")), says(), tools=[pay])
    hooks, store = gauge.hooks(), InMemoryStore()

    paused = await exec_agent(agent, "go", hooks=[hooks], store=store)
    await resume_agent(agent, paused.operation_id, [Approve("t1")], hooks=[hooks], store=store)
    assert calls_of(gauge) == {"calls": 1, "tools": 0, "segments": {False: 1, True: 1}}
    await resume_agent(agent, paused.operation_id, [Reject("t2", and_continue=True)], hooks=[hooks], store=store)

    assert calls_of(gauge) == {"calls": 2, "tools": 1, "segments": {False: 1, True: 2}}
    decisions = gauge.sums("hookline.human.wait.duration", "hookline.human.decision")
    assert {decision: count for decision, (count, _) in decisions.items()} == {"approve": 1, "rejectAndContinue": 1}


async def test_a_rejection_is_measured_as_a_decision_and_the_run_not_as_failed(gauge: Gauge) -> None:
    agent, store = agent_of(calls(call("pay")), says(), tools=[pay]), InMemoryStore()

    paused = await exec_agent(agent, "go", hooks=[gauge.hooks()], store=store)
    await resume_agent(agent, paused.operation_id, [Reject("t1")], hooks=[gauge.hooks()], store=store)

    assert gauge.values("hookline.human.wait.duration", "hookline.human.decision") == {"reject"}
    assert gauge.values("gen_ai.invoke_agent.duration", ERROR) == {None}


RESUMER = """
import asyncio, json, pathlib, sys
import msgspec
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from hookline import Agent, Approve, ModelResponse, ScriptedModel, ToolRequest, exec_agent, resume_agent, tool
from hookline.otel import MetricsHooks
from hookline.runtime import OperationState

class FileStore:
    path = pathlib.Path(sys.argv[1])
    async def load(self, operation_id):
        return msgspec.json.decode(self.path.read_bytes(), type=OperationState) if self.path.exists() else None
    async def save(self, state, *, expected_version):
        self.path.write_bytes(msgspec.json.encode(state))

@tool
async def look_up() -> str:
    return "3 left"

@tool(needs_approval=True)
async def pay() -> str:
    return "paid"

def calls(*names):
    return ModelResponse(tool_calls=[ToolRequest(tool_name=name, tool_call_id=name) for name in names])

reader = InMemoryMetricReader()
hooks = [MetricsHooks(MeterProvider([reader]))]
if sys.argv[2] == "start":
    turns = [calls("look_up"), calls("look_up", "pay")]
else:
    turns = [calls("look_up"), ModelResponse(content="done")]
agent = Agent(id="payer", model=ScriptedModel(turns), tools=[look_up, pay])
if sys.argv[2] == "start":
    work = exec_agent(agent, "go", hooks=hooks, store=FileStore(), operation_id="op")
else:
    work = resume_agent(agent, "op", [Approve("pay")], hooks=hooks, store=FileStore())
result = asyncio.run(work)
points = {
    metric.name: [[dict(point.attributes), point.count, point.sum] for point in metric.data.data_points]
    for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    if hasattr(metric.data.data_points[0], "count")
}
print(json.dumps([result.reason, points]))
"""


def test_a_segment_in_another_process_counts_its_own_calls_and_the_whole_wait(tmp_path: Path) -> None:
    def process(what: str) -> tuple[str, dict[str, Any]]:
        arguments = [sys.executable, "-c", RESUMER, str(tmp_path / "state.json"), what]
        reason, points = json.loads(subprocess.run(arguments, capture_output=True, check=True, timeout=60).stdout)
        return reason, points

    first_reason, first = process("start")
    waiting_since = json.loads((tmp_path / "state.json").read_bytes())["waitingSinceUnixNano"]
    # A person took an hour.
    state = json.loads((tmp_path / "state.json").read_bytes()) | {"waitingSinceUnixNano": waiting_since - 3_600 * 10**9}
    (tmp_path / "state.json").write_text(json.dumps(state))
    second_reason, second = process("resume")

    assert (first_reason, second_reason) == ("waiting_for_human", "done")
    for name, values in (("inference_calls", (2, 2)), ("tool_calls", (2, 2))):
        metric = f"gen_ai.invoke_agent.{name}"
        assert [first[metric], second[metric]] == [[[{AGENT: "payer"}, 1, value]] for value in values]
    ((attributes, _, _),) = second["gen_ai.invoke_agent.duration"]
    assert attributes["hookline.resumed"] is True
    (((_, _, waited)),) = second["hookline.human.wait.duration"]
    assert 3_600 <= waited < 7_200
    assert "hookline.human.wait.duration" not in first


# Sub-agents.


async def test_sub_agents_count_for_themselves_only(gauge: Gauge) -> None:
    deep = agent_of(calls(call("look_up")), says(), id="deep", tools=[look_up])
    middle = agent_of(
        calls(call("look_up", "1"), call("look_up", "2"), ask("deep", "3")),
        says(),
        id="middle",
        tools=[look_up],
        sub_agents=[deep],
    )
    top = agent_of(calls(ask("middle", "1")), says(), id="top", sub_agents=[middle])

    await exec_agent(top, "go", hooks=[gauge.hooks()])

    assert gauge.sums("gen_ai.invoke_agent.tool_calls", AGENT) == {"deep": (1, 1), "middle": (1, 2), "top": (1, 0)}
    assert gauge.sums("gen_ai.invoke_agent.inference_calls", AGENT) == {
        "deep": (1, 2),
        "middle": (1, 2),
        "top": (1, 2),
    }
    assert gauge.sums("hookline.step.duration", AGENT).keys() == {"deep", "middle", "top"}


async def test_sub_agents_that_run_at_the_same_time_do_not_mix_their_counts(gauge: Gauge) -> None:
    met = [anyio.Event() for _ in range(3)]

    def helper(at: int) -> Agent:
        @tool
        async def meet() -> str:
            met[at].set()
            for event in met:
                await event.wait()
            return "x"

        turns = [calls(*(call("meet", f"{at}-{n}") for n in range(at + 1))), says()]
        return agent_of(*turns, id=f"helper-{at}", tools=[meet])

    agent = agent_of(
        calls(*(ask(f"helper-{at}", f"t{at}") for at in range(3))), says(), sub_agents=[helper(at) for at in range(3)]
    )

    await exec_agent(agent, "go", hooks=[gauge.hooks()])

    assert gauge.sums("gen_ai.invoke_agent.tool_calls", AGENT) == {
        "helper-0": (1, 1),
        "helper-1": (1, 2),
        "helper-2": (1, 3),
        "tester": (1, 0),
    }


# A bundle that is given more than once.


@pytest.mark.parametrize("where", ["agent and run", "twice in a run", "dispatcher and run", "parent and sub-agent"])
async def test_a_bundle_that_is_given_twice_counts_once(gauge: Gauge, where: str) -> None:
    hooks, watched = gauge.hooks(), Hooks("watched", inherit=True)

    @watched.on(AfterStep)
    def watch(event: AfterStep) -> None:
        """Something to measure."""

    helper = agent_of(
        calls(call("look_up")),
        says(),
        id="helper",
        tools=[look_up],
        hooks=[hooks] if where.startswith("parent") else [],
    )
    turns = [calls(call("look_up", "t1"), ask("helper", "t2"), read=3), says()]
    agent = agent_of(*turns, tools=[look_up], sub_agents=[helper], hooks=[hooks] if where == "agent and run" else [])
    given = [hooks, watched, hooks] if where.startswith("twice") else [hooks, watched]
    async with HookDispatcher() as dispatcher:
        if where.startswith("dispatcher"):
            dispatcher.register("op", [hooks])
        await exec_agent(agent, "go", hooks=given, dispatcher=dispatcher, operation_id="op")

    for name, each in (
        ("gen_ai.invoke_agent.duration", 1),
        ("gen_ai.execute_tool.duration", 1),
        ("hookline.step.duration", 2),
        ("gen_ai.client.operation.duration", None),
    ):
        assert {point.count for point in gauge.points(name)} == {each or 4}, name
    assert gauge.count("gen_ai.client.token.usage") == 2
    assert gauge.count("hookline.hook.duration") == 4


# Other runtimes.


async def test_of_another_runtime_all_times_are_those_of_its_events(gauge: Gauge) -> None:
    async with HookDispatcher() as dispatcher, dispatcher.operation("op", [gauge.hooks()]):
        foreign = Foreign(dispatcher)
        foreign.tell(BeforeStep, step_index=0)
        foreign.tell(BeforeCompact, 1, step_index=0, message_count=9, token_count=9)
        foreign.tell(AfterCompact, 2, step_index=0, group_id="g", messages_before=9, messages_after=2, summary="s")
        foreign.tell(BeforeHumanIntervention, 0, step_index=0, pending_tools=[])
        foreign.tell(AfterHumanIntervention, 5, action="approve", tool_call_id="t1", rejection_reason=None)
        foreign.tell(
            AfterToolCall, **foreign.tool_fields(), content="", success=True, mocked=False, answered_by=None,
            metadata={}, execution_time_ms=250.0,
        )  # fmt: skip
        foreign.tell(
            OnToolCallError, **foreign.tool_fields(), error="x", error_type="OSError", mocked=False, answered_by=None,
            metadata={}, execution_time_ms=750.0,
        )  # fmt: skip
        foreign.after_step(0, milliseconds=8_500.0)
        foreign.complete(2, tool_calls=2)

    sums = {
        "hookline.compaction.duration": 2.0,
        "hookline.human.wait.duration": 5.0,
        "hookline.step.duration": 8.5,
        "gen_ai.invoke_agent.duration": 10.0,
        "gen_ai.invoke_agent.tool_calls": 2,
    }
    assert {name: gauge.point(name).sum for name in sums} == sums
    assert gauge.sums("gen_ai.execute_tool.duration", ERROR) == {None: (1, 0.25), "OSError": (1, 0.75)}
    assert gauge.values("gen_ai.invoke_agent.duration", AGENT) == {"foreign"}


async def test_a_clock_that_runs_backwards_gives_no_negative_times(
    gauge: Gauge, caplog: pytest.LogCaptureFixture
) -> None:
    async with HookDispatcher() as dispatcher, dispatcher.operation("op", [gauge.hooks()]):
        foreign = Foreign(dispatcher)
        foreign.tell(BeforeStep, step_index=0)
        foreign.tell(BeforeCompact, step_index=0, message_count=9, token_count=9)
        foreign.tell(AfterCompact, -3, step_index=0, group_id="g", messages_before=9, messages_after=2, summary="s")
        foreign.complete(-5)

    assert gauge.point("hookline.compaction.duration").sum == gauge.point("gen_ai.invoke_agent.duration").sum == 0.0
    assert caplog.records == []


async def test_an_operation_of_another_runtime_that_never_completes_is_forgotten_when_it_is_unregistered(
    gauge: Gauge,
) -> None:
    hooks = gauge.hooks()
    async with HookDispatcher() as dispatcher:
        async with dispatcher.operation("op", [hooks]):
            Foreign(dispatcher).step(0)
        async with dispatcher.operation("op", [hooks]):
            foreign = Foreign(dispatcher)
            foreign.now += 10**10
            foreign.step(0)
            foreign.complete(1)

    assert gauge.point("gen_ai.invoke_agent.duration").sum == 1.0


# Switches.


async def test_without_model_metrics_nothing_is_measured_of_models(gauge: Gauge) -> None:
    await exec_agent(agent_of(says(read=5)), "go", hooks=[gauge.hooks(model_metrics=False)])

    assert [name for name in gauge.metrics if name.startswith("gen_ai.client")] == []
    assert gauge.count("gen_ai.invoke_agent.inference_calls") == 1


async def test_a_run_builds_no_event_that_metrics_have_no_use_for() -> None:
    gauge, asked = Gauge(), dict[str, bool]()

    async with HookDispatcher() as dispatcher:

        @tool
        async def ask() -> str:
            kinds = (BeforeStep, AfterStep, BeforeToolCall, AfterToolCall)
            asked.update({str(kind.hook_type): dispatcher.has_hooks("op", kind) for kind in kinds})
            return "asked"

        agent = agent_of(calls(call("ask")), says(), tools=[ask])
        await exec_agent(agent, "go", operation_id="op", hooks=[gauge.hooks()], dispatcher=dispatcher)

    assert asked == {"beforeStep": False, "afterStep": True, "beforeToolCall": False, "afterToolCall": True}
    assert gauge.count("hookline.step.duration") == 2
