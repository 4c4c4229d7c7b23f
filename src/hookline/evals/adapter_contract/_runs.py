"""The clauses about runs: concurrency, cancellation, broken hooks, telemetry, and hooks that are refused."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import anyio

from hookline.calls import CALLS
from hookline.errors import MissingExtraError
from hookline.evals.adapter_contract._scenes import (
    DONE,
    PLAIN,
    ask_for,
    end_event,
    plain_events,
    tool_call,
    tool_events,
)
from hookline.evals.adapter_contract._stage import Scene, Stage
from hookline.evals.adapter_contract._witness import (
    ContractError,
    Witness,
    check_equal,
    check_refusal,
    check_tool_results,
    check_true,
    drives_call,
    expect,
    play_stopped,
    toolset_of,
)
from hookline.events import EVENTS, AfterStep, BeforeStep, BeforeToolCall, HookType, OnComplete, OnToolCallError
from hookline.hooks import Hooks
from hookline.runtime import KINDS, interrupt

__all__ = ["at_once", "cancellation", "hung_observer", "interruption", "raising_observers", "refusals", "tracing"]

RUNS = 50


def _answer(text: str, event: BeforeToolCall) -> None:
    event.mock(text)


async def at_once(stage: Stage) -> Witness:
    """Fifty runs of one agent object at the same time do not see each other's events."""
    witnesses, bundles = [], []
    for number in range(RUNS):
        witness, hooks = Witness(stage), Hooks(f"run-{number}")
        hooks.on(BeforeToolCall)(partial(_answer, f"answer {number}"))
        witnesses.append(witness)
        bundles.append([hooks, witness.hooks])
    rans = await stage.play_many(PLAIN, bundles)

    check_equal("The number of runs.", len(rans), RUNS)
    for number, (ran, witness) in enumerate(zip(rans, witnesses, strict=True)):
        answer = f"answer {number}"
        witness.heard(plain_events(tool_events(toolset_of(stage), content=answer, mocked=True)))
        check_tool_results(ran, answer)
        check_equal("A run is one operation.", len({event.operation_id for event in witness.events}), 1)
    ids = {event.operation_id for witness in witnesses for event in witness.events}
    check_equal("The number of operations.", len(ids), RUNS)
    return witnesses[0]


async def cancellation(stage: Stage) -> Witness:
    """A cancelled run emits its end once and forgets its hooks, and the cancellation propagates."""
    witness, begun, after = Witness(stage), anyio.Event(), list[str]()

    async def hang() -> str:
        """Hang."""
        begun.set()
        await anyio.sleep_forever()
        return "never"

    async def play() -> None:
        await stage.play(scene, [witness.hooks], operation_id="contract-cancelled")
        after.append("the run returned")

    scene = Scene(turns=[ask_for(tool_call("hang"))], tools={"hang": hang})
    async with anyio.create_task_group() as group:
        group.start_soon(play)
        await begun.wait()
        group.cancel_scope.cancel()
    check_equal("The events after the cancellation.", after, [])
    check_true("A cancelled operation is forgotten.", not interrupt("contract-cancelled"))
    pair = tool_events(toolset_of(stage), name="hang", args={}, error="The call was interrupted.")
    witness.heard(
        [
            expect(BeforeStep, step_index=0),
            pair[0],
            expect(OnToolCallError, tool_call_id="t1"),
            expect(AfterStep, step_index=0, step_type="call_tool", should_continue=False),
            end_event("interrupted", steps=1, llm_calls=1, tool_calls=1),
        ]
    )
    return witness


async def interruption(stage: Stage) -> Witness:
    """An interrupted run starts nothing further and raises `RunStopped`."""
    witness, asked = Witness(stage), list[bool]()

    async def stop() -> str:
        """Stop."""
        asked.append(interrupt("contract-interrupted"))
        await anyio.sleep(0.01)  # the interrupt arrives here
        return "stopped"

    scene = Scene(turns=[ask_for(tool_call("stop")), DONE], tools={"stop": stop})
    await play_stopped(stage, scene, [witness.hooks], "interrupted", None, operation_id="contract-interrupted")

    check_equal("The return value of `interrupt`.", asked, [True])
    ends = [event.reason for event in witness.of(OnComplete)]
    if HookType.ON_COMPLETE in stage.capabilities.events:
        check_equal("The reason for the end of the run.", ends, ["interrupted"])
    return witness


async def raising_observers(stage: Stage) -> Witness:
    """Observers that raise, sync or async, affect neither the run nor each other."""
    witness, hooks = Witness(stage), Hooks("broken")

    def broken(event: Any) -> None:
        raise RuntimeError("observer broke")

    async def broken_later(event: Any) -> None:
        raise RuntimeError("observer broke later")

    for kind, event in EVENTS.items():
        if kind in stage.capabilities.events:
            hooks.on(event)(broken)
            hooks.on(event)(broken_later)
    ran = await stage.play(PLAIN, [hooks, witness.hooks])

    witness.heard(plain_events(tool_events(toolset_of(stage), content="3")))
    check_tool_results(ran, "3")
    return witness


async def hung_observer(stage: Stage) -> Witness:
    """An observer that hangs delays only its own bundle."""
    witness, hooks = Witness(stage), Hooks("hung")

    async def hang(event: Any) -> None:
        await anyio.sleep_forever()

    for kind, event in EVENTS.items():
        if kind in stage.capabilities.events and event is not BeforeToolCall:  # a run waits for observers that may mock
            hooks.on(event)(hang)
    ran = await stage.play(PLAIN, [hooks, witness.hooks], drain_timeout=0.0)

    witness.heard(plain_events(tool_events(toolset_of(stage), content="3")))
    check_tool_results(ran, "3")
    return witness


async def tracing(stage: Stage) -> Witness:
    """The spans of a run form one tree: a root with a model call and a tool call, all ended."""
    exporter, hooks = _tracing()
    witness = Witness(stage)
    await stage.play(PLAIN, [hooks, witness.hooks])

    spans = exporter.get_finished_spans()
    operations = [span.attributes.get("gen_ai.operation.name") for span in spans]
    check_equal("The number of tool spans.", operations.count("execute_tool"), 1)
    check_equal("The number of run spans.", operations.count("invoke_agent"), 1)
    if any(call.__name__ == "ModelCall" for call in stage.capabilities.calls):
        check_equal("The number of model spans.", operations.count("chat"), 2)
    known = {span.context.span_id: span for span in spans}
    roots = [span.name for span in spans if span.parent is None or span.parent.span_id not in known]
    check_equal("The number of spans without a parent.", len(roots), 1)
    check_equal("The number of traces.", len({span.context.trace_id for span in spans}), 1)
    for span in spans:
        parent = known.get(span.parent.span_id) if span.parent is not None else None
        if parent is not None and not parent.start_time <= span.start_time <= span.end_time <= parent.end_time:
            raise ContractError("A span that outlives its parent.", parent.name, span.name)
    return witness


def _tracing() -> tuple[Any, Any]:
    try:
        export = importlib.import_module("opentelemetry.sdk.trace.export.in_memory_span_exporter")
        sdk = importlib.import_module("opentelemetry.sdk.trace")
        simple = importlib.import_module("opentelemetry.sdk.trace.export")
    except ImportError as error:
        raise MissingExtraError("otel", "The clause about tracing") from error
    exporter, provider = export.InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(simple.SimpleSpanProcessor(exporter))
    from hookline.otel import TracingHooks

    return exporter, TracingHooks(tracer_provider=provider)


async def refusals(stage: Stage) -> Witness:
    """A hook that the adapter does not support is refused with an error; with `best_effort` the run continues."""
    never: list[tuple[str, Hooks]] = []
    for kind, event in EVENTS.items():
        if kind not in stage.capabilities.events:
            never.append((str(kind), hooks := Hooks("refused")))
            hooks.on(event)(lambda event: None)
    for call in CALLS:
        for kind_of in sorted(KINDS):
            if not drives_call(stage.capabilities, call, kind_of):
                never.append((f"{kind_of}({call.__name__})", hooks := Hooks("refused")))
                getattr(hooks, kind_of)(call)(lambda *given: None)
    for what, hooks in never:
        await check_refusal(stage, PLAIN, [hooks], what)
    witness = Witness(stage)
    ran = await stage.play(PLAIN, [*(hooks for _, hooks in never), witness.hooks], best_effort=True)

    witness.heard(plain_events(tool_events(toolset_of(stage), content="3")))
    check_tool_results(ran, "3")
    return witness
