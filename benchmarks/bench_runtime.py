"""A whole run: a model asks for one async tool and then answers, with and without hooks and interceptors.

The goal is a number of `create_task + await`, so that it means the same on any machine.
"""

from __future__ import annotations

import asyncio

from benchmarks.harness import Row, Samples, interleave, statement
from hookline import (
    Agent,
    AgentCall,
    AgentSession,
    CompactCall,
    HookDispatcher,
    Hooks,
    ModelCall,
    ModelResponse,
    ScriptedModel,
    StepCall,
    SubAgentCall,
    ToolCall,
    ToolRequest,
    exec_agent,
    tool,
)
from hookline.events import EVENTS

TASK = "create_task + await"
REFERENCE_US = 4.0
"""What `create_task + await` costs on the machine for which the goals are written."""

ASKS = ModelResponse(tool_calls=[ToolRequest(tool_name="search", args={"query": "hooks"}, tool_call_id="call_1")])
ANSWERS = ModelResponse(content="42 results")
LED = (AgentCall, StepCall, ModelCall, ToolCall, CompactCall, SubAgentCall)
"""The calls of a run; the last two do not occur in this one."""


def play(call: ModelCall) -> ModelResponse:
    return ANSWERS if call.messages[-1].role == "tool" else ASKS


@tool
async def search(query: str) -> str:
    """Search the web."""
    return query


async def bench(rounds: int) -> list[Row]:
    return [*await observed(rounds), *await intercepted(rounds), *await in_a_session(rounds)]


async def observed(rounds: int) -> list[Row]:
    agent = Agent(id="searcher", model=ScriptedModel(play), tools=[search])
    one, observers, queued = Hooks("one"), Hooks("observers"), Hooks("queued")
    for event in EVENTS.values():
        observers.on(event)(make_plain())
        queued.on(event)(make_async())
    one.on(EVENTS["onComplete"])(make_plain())
    result = await exec_agent(agent, "How many?")
    assert (result.output, result.steps, result.tool_calls) == ("42 results", 2, 1)

    given = {"hooks=0": (), "hooks=1": [one], "hooks=16": [observers], "hooks=16, async": [queued]}
    goals = {"hooks=0": 60, "hooks=16": 100}
    cases = {TASK: statement("await create_task(nothing())", create_task=asyncio.create_task, nothing=nothing)}
    async with HookDispatcher() as dispatcher:
        for name, hooks in given.items():
            cases[f"exec_agent [{name}]"] = run_of(agent, hooks)
            cases[f"exec_agent [{name}, shared dispatcher]"] = run_of(agent, hooks, dispatcher)
        cases["the same by hand"] = statement("await by_hand(search)", by_hand=by_hand, search=search, unroll=1)
        samples = await interleave(cases, rounds)
    rows = [samples.row(TASK), samples.row("the same by hand", TASK)]
    for name in given:
        rows += scaled(samples, f"exec_agent [{name}]", goals.get(name))
        rows.append(samples.row(f"exec_agent [{name}, shared dispatcher]", TASK))
    return rows


async def intercepted(rounds: int) -> list[Row]:
    """With hooks in the way of its calls that let them pass."""
    agent = Agent(id="searcher", model=ScriptedModel(play), tools=[search])
    one, all_six, five = Hooks("one"), Hooks("all six"), Hooks("five")
    one.guard(ToolCall)(make_async())
    for call in LED:
        all_six.guard(call)(make_async())
    for _ in range(5):
        five.around(ToolCall)(make_around())
    given = {
        "no hooks": (),
        "one guard(ToolCall)": [one],
        "a guard of each of the six calls": [all_six],
        "five arounds(ToolCall)": [five],
    }
    cases = {TASK: statement("await create_task(nothing())", create_task=asyncio.create_task, nothing=nothing)}
    async with HookDispatcher() as dispatcher:
        for name, hooks in given.items():
            cases[f"exec_agent [{name}]"] = run_of(agent, hooks, dispatcher)
        samples = await interleave(cases, rounds)
    bare, *hooked = (f"exec_agent [{name}]" for name in given)
    return [samples.row(bare, TASK), *(samples.row(case, against) for case in hooked for against in (TASK, bare))]


async def in_a_session(rounds: int) -> list[Row]:
    """As a task of a session, whose conversation is cleared before each, so that all tasks are alike."""
    agent = Agent(id="searcher", model=ScriptedModel(play), tools=[search])
    async with HookDispatcher() as dispatcher, AgentSession(agent, dispatcher=dispatcher) as session:
        cases = {
            "exec_agent [as a task]": run_of(agent, (), dispatcher),
            "session.run": statement(
                "session.history.clear(); await session.run('How many?')", session=session, unroll=1
            ),
        }
        samples = await interleave(cases, rounds)
    return [samples.row("session.run", "exec_agent [as a task]")]


def scaled(samples: Samples, case: str, goal_us: float | None) -> list[Row]:
    """A run as it was, and as it would be where `create_task + await` costs 4 µs."""
    row = samples.row(case, TASK, at_most=goal_us / REFERENCE_US if goal_us else None)
    assert row.ratio is not None
    scaled_ns = round(row.ratio * REFERENCE_US * 1000)
    return [row, Row(case=f"{case} at create_task = {REFERENCE_US:g} µs", value=scaled_ns)]


def run_of(agent: Agent, hooks, dispatcher: HookDispatcher | None = None):
    return statement(
        "await exec_agent(agent, 'How many?', hooks=hooks, dispatcher=dispatcher)",
        unroll=1,
        exec_agent=exec_agent,
        agent=agent,
        hooks=hooks,
        dispatcher=dispatcher,
    )


async def by_hand(search) -> str:
    """The least a loop does: a list of messages, a look-up, the tool."""
    messages = [{"role": "user", "content": "How many?"}]
    tools = {"search": search.function}
    while True:
        response = ANSWERS if messages[-1]["role"] == "tool" else ASKS
        messages.append({"role": "assistant", "content": response.content})
        if not response.tool_calls:
            return response.content
        for calling in response.tool_calls:
            content = await tools[calling.tool_name](**calling.args)
            messages.append({"role": "tool", "content": content, "tool_call_id": calling.tool_call_id})


async def nothing() -> None:
    pass


def make_plain():
    def handler(event: object) -> None:
        pass

    return handler


def make_async():
    async def handler(event: object) -> None:
        pass

    return handler


def make_around():
    async def handler(call: object, call_next) -> object:
        return await call_next(call)

    return handler
