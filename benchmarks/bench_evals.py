"""Mocked calls by number of rules, cassettes per call, the recorder per event, replayed runs against mocked ones."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.harness import Row, Timer, block, interleave, statement
from hookline import (
    AfterToolCall,
    Agent,
    BeforeToolCall,
    HookDispatcher,
    Hooks,
    InMemoryStore,
    ModelResponse,
    ScriptedModel,
    ToolRequest,
    exec_agent,
    tool,
)
from hookline.evals import Cassette, EventRecorder, ToolMocks, match

RULES = (1, 100, 10_000)
CALLS = 1_000
STEPS = 20
ASK = "event = make(**fields)\nawait dispatcher.dispatch_before_tool_call(event)"


async def bench(rounds: int) -> list[Row]:
    async with HookDispatcher() as dispatcher:
        return [
            *await mocked_calls(dispatcher, rounds),
            *await cassettes(rounds),
            *await recorded_events(dispatcher, rounds),
            *await runs(dispatcher, rounds),
        ]


async def mocked_calls(dispatcher: HookDispatcher, rounds: int) -> list[Row]:
    """One answered call, with rules on other tools, on other arguments of the same tool, and on globs."""
    by_hand = Hooks("by hand")
    by_hand.on(BeforeToolCall, timeout=float("inf"))(lambda event: event.mock("answer") and None)
    cases = {"a handler that mocks": asked(dispatcher, by_hand)}
    for count in RULES:
        exact, arguments = ToolMocks("exact"), ToolMocks("arguments")
        for number in range(count):
            exact.tool(f"server/tool_{number}").returns("answer")
            arguments.tool("server/tool_0", {"query": number}).returns("answer")
        cases[f"mocked call [rules={count}, exact names]"] = asked(dispatcher, exact)
        cases[f"mocked call [rules={count}, exact arguments]"] = asked(dispatcher, arguments)
        if count <= 100:
            globs = ToolMocks("globs")
            for number in range(count):
                globs.when(match.tool("server/*") & match.fields({"query": number})).returns("answer")
            cases[f"mocked call [rules={count}, globs]"] = asked(dispatcher, globs)
    samples = await interleave(cases, rounds)
    one = "mocked call [rules=1, exact names]"
    rows = [samples.row("a handler that mocks")]
    for case in cases:
        if case.startswith("mocked"):
            goal = 1.5 if "exact names" in case and case != one else None
            rows.append(samples.row(case, one if case != one else "a handler that mocks", at_most=goal))
    worst = "mocked call [rules=10000, exact names]"
    rows.append(Row(case=f"{worst}, ns", value=samples.median(worst), at_most=15_000))
    return rows


async def cassettes(rounds: int) -> list[Row]:
    """Recording a call, answering one, saving and loading a file of a thousand."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "case.yaml")
        full = Cassette("case", path=path, mode="all")
        for number in range(CALLS):
            full.keep(after(number))
        full.save()
        player = Cassette.load(path, mode="none")
        cases = {
            f"load [calls={CALLS}]": statement("load(path, mode='none')", unroll=1, load=Cassette.load, path=path),
            "keep": block("cassette.keep(event)", cassette=Cassette("kept", mode="all"), event=after(1)),
            f"answer [calls={CALLS}]": block(
                "cassette.answer(event)\ncassette.forget('op')", cassette=player, event=before(CALLS // 2)
            ),
        }
        samples = await interleave(cases, rounds)
    load = f"load [calls={CALLS}]"
    samples.derive("load, per call", lambda whole: whole / CALLS, load)
    return [samples.row(case) for case in ("load, per call", "keep", f"answer [calls={CALLS}]")]


async def recorded_events(dispatcher: HookDispatcher, rounds: int) -> list[Row]:
    """One event kept, against one appended to a list by a handler."""
    kept: list[object] = []
    bare, recorder = Hooks("bare"), EventRecorder()
    bare.on(AfterToolCall)(kept.append)
    dispatcher.register("bare", [bare])
    dispatcher.register("recorded", [recorder.hooks])
    events = {name: after(1, operation_id=name) for name in ("bare", "recorded")}
    dispatch = "dispatcher.dispatch(event)"
    cases = {
        "appended to a list, per event": statement(dispatch, dispatcher=dispatcher, event=events["bare"]),
        "recorder, per event": statement(dispatch, dispatcher=dispatcher, event=events["recorded"]),
    }
    samples = await interleave(cases, rounds)
    await dispatcher.unregister("bare")
    await dispatcher.unregister("recorded")
    return [
        samples.row("appended to a list, per event"),
        samples.row("recorder, per event", "appended to a list, per event"),
    ]


async def runs(dispatcher: HookDispatcher, rounds: int) -> list[Row]:
    """A run of twenty tool calls, mocked by a handler, by a rule, by a cassette, and by a cassette behind rules."""
    cassette = Cassette("run", mode="all")
    await exec_agent(agent(), "go", hooks=[cassette.recorder()], dispatcher=dispatcher)
    by_hand, rules = Hooks("by hand"), ToolMocks("rules")
    by_hand.on(BeforeToolCall, timeout=float("inf"))(lambda event: event.mock("3 results") and None)
    rules.tool("local/search").returns("3 results")
    taped = ToolMocks("taped", cassette=cassette)
    given = {
        "run, mocked by a handler": [by_hand],
        "run, mocked by a rule": [rules],
        "run, replayed by a cassette": [cassette.player()],
        "run, replayed through ToolMocks": [taped],
    }
    code = "await exec_agent(agent(), 'go', hooks=hooks, dispatcher=dispatcher, store=store())"
    names = {"exec_agent": exec_agent, "agent": agent, "dispatcher": dispatcher, "store": InMemoryStore}
    cases = {
        name: fresh(statement(code, unroll=1, hooks=hooks, **names), rules, taped) for name, hooks in given.items()
    }
    samples = await interleave(cases, rounds)
    hand, ruled = "run, mocked by a handler", "run, mocked by a rule"
    return [
        samples.row(hand),
        samples.row(ruled, hand),
        samples.row("run, replayed by a cassette", ruled, at_most=1.2),
        samples.row("run, replayed by a cassette", hand),
        samples.row("run, replayed through ToolMocks", ruled),
    ]


def fresh(timer: Timer, *mocks: ToolMocks) -> Timer:
    """The same timer, with lists of calls that do not grow from round to round."""

    async def timed(times: int) -> float:
        for each in mocks:
            each.reset()
        return await timer(times)

    timed.repeats = timer.repeats
    return timed


def asked(dispatcher: HookDispatcher, hooks: Hooks) -> Timer:
    operation_id = f"op {len(dispatcher.operations)}"
    dispatcher.register(operation_id, [hooks])
    timer = block(ASK, dispatcher=dispatcher, make=BeforeToolCall, fields=fields(0, operation_id))
    return fresh(timer, hooks) if isinstance(hooks, ToolMocks) else timer


def fields(number: int, operation_id: str = "op") -> dict[str, object]:
    return {
        "operation_id": operation_id,
        "toolset": "server",
        "tool_name": "tool_0",
        "args": {"query": number},
        "call_index": 1,
        "step_index": 0,
        "tool_call_id": "call_1",
    }


def before(number: int) -> BeforeToolCall:
    return BeforeToolCall(**fields(number))


def after(number: int, operation_id: str = "op") -> AfterToolCall:
    return AfterToolCall(
        **{**fields(number, operation_id), "call_index": number + 1}, content="3 results", success=True
    )


@tool(in_thread=False)
def search(query: int) -> str:
    """Search."""
    return "3 results"


def agent() -> Agent:
    turns = [
        ModelResponse(tool_calls=[ToolRequest(tool_name="search", args={"query": number}, tool_call_id=f"c{number}")])
        for number in range(STEPS)
    ]
    return Agent(id="a", model=ScriptedModel([*turns, ModelResponse(content="done")]), tools=[search])
