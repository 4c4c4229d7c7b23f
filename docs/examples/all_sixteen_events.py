"""All sixteen events in one program: `python all_sixteen_events.py [--backend asyncio|trio]`.

A travel agent plans a trip, and everything that can happen to a run happens to it: a tool that works, one that a hook
answers and one that raises; a compaction that works and one that fails; a sub-agent that answers and one that fails; a
person who approves one call and refuses another; a person who stops the run; a model that breaks.

One observer prints one line per event. The lines of a sub-agent's own operation are indented.
"""

import argparse
import logging
from collections.abc import Iterable

import anyio

from hookline import (
    AfterCallAgent,
    AfterCompact,
    AfterHumanIntervention,
    AfterStep,
    AfterToolCall,
    Agent,
    Approve,
    BeforeCallAgent,
    BeforeCompact,
    BeforeHumanIntervention,
    BeforeStep,
    BeforeToolCall,
    Compaction,
    Event,
    Hooks,
    HookType,
    InMemoryStore,
    Message,
    ModelResponse,
    OnCallAgentError,
    OnCompactError,
    OnComplete,
    OnError,
    OnStopByHumanIntervention,
    OnToolCallError,
    Reject,
    ScriptedModel,
    ToolRequest,
    Usage,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.events import EVENTS

# What is printed of each event.


def detail(event: Event) -> str:
    match event:
        case BeforeStep():
            return f"step {event.step_index}"
        case AfterStep():
            return f"step {event.step_index}: {event.step_type}, {'goes on' if event.should_continue else 'ends'}"
        case BeforeToolCall():
            return f"{event.toolset}/{event.tool_name} #{event.call_index} {event.args}"
        case AfterToolCall():
            origin = f"mocked by {event.answered_by}" if event.mocked else "from the tool"
            return f"{event.tool_name} #{event.call_index}: {event.content} ({origin})"
        case OnToolCallError():
            return f"{event.tool_name} #{event.call_index}: {event.error_type}: {event.error}"
        case BeforeCompact():
            return f"{event.message_count} messages, {event.token_count} tokens"
        case AfterCompact():
            return f"{event.messages_before} messages became {event.messages_after}: {event.summary}"
        case OnCompactError():
            return f"{event.token_count} tokens: {event.error}"
        case BeforeCallAgent():
            return f"{event.callee_id}: {event.instruction}"
        case AfterCallAgent():
            return f"{event.callee_id}: {'success' if event.success else 'no success'}"
        case OnCallAgentError():
            return f"{event.callee_id}: {event.error}"
        case BeforeHumanIntervention():
            return "pending: " + ", ".join(f"{call.tool_name} ({call.tool_call_id})" for call in event.pending_tools)
        case AfterHumanIntervention():
            return f"{event.tool_call_id}: {event.action}{because(event.rejection_reason)}"
        case OnStopByHumanIntervention():
            return f"{event.tool_call_id}{because(event.rejection_reason)}"
        case OnComplete():
            return f"{event.reason}: {event.steps} steps, {event.llm_calls} model calls, {event.tool_calls} tool calls"
        case OnError():
            return f"{event.error_type}: {event.error_message}"


def because(reason: str | None) -> str:
    return f", because: {reason}" if reason else ""


# The observer: one bundle with a hook for each of the sixteen, which goes along into sub-agents.

seen: set[HookType] = set()
printer = Hooks("printer", inherit=True)


def show(event: Event) -> None:
    seen.add(event.hook_type)
    indent = "    " if event.parent_operation_id else ""
    print(f"{indent}{event.hook_type:<26}{detail(event)}")


for kind in EVENTS.values():
    printer.on(kind)(show)

mocks = Hooks("mocks")


@mocks.on(BeforeToolCall, tool="*/find_hotel")
def no_network(event: BeforeToolCall) -> None:
    event.mock("Hotel Aurora, 90 EUR a night")


# The agent: its tools, its sub-agents, its compaction, and a model that plays a script.


@tool
async def find_train(to: str) -> str:
    """Find a train."""
    return f"08:04 to {to}"


@tool
async def find_hotel(city: str) -> str:
    """Find a hotel."""
    raise NotImplementedError("the mock answers")


@tool
async def weather(city: str) -> str:
    """Look up the weather."""
    raise ConnectionError("the weather service is down")


@tool(needs_approval=True)
async def book(what: str) -> str:
    """Book something."""
    return f"{what} is booked"


def say(text: str, *, tokens: int = 10) -> ModelResponse:
    return ModelResponse(content=text, usage=Usage(input_tokens=tokens, output_tokens=5))


def call(*callings: ToolRequest, tokens: int = 10) -> ModelResponse:
    return ModelResponse(tool_calls=list(callings), usage=Usage(input_tokens=tokens, output_tokens=5))


def calling(tool_name: str, tool_call_id: str, **args: str) -> ToolRequest:
    toolset = "agent" if tool_name in ("guide", "critic") else "local"
    return ToolRequest(toolset=toolset, tool_name=tool_name, args=args, tool_call_id=tool_call_id)


summaries = iter(["A train at 08:04 was found."])


async def summarize(messages: list[Message]) -> str:
    summary = next(summaries, None)
    if summary is None:
        raise ConnectionError("no summary today")
    return summary


def traveller(turns: Iterable[ModelResponse | Exception]) -> Agent:
    guide = Agent(id="guide", model=ScriptedModel([say("See the castle.")]))
    critic = Agent(id="critic", model=ScriptedModel([RuntimeError("the critic's model broke")]))
    return Agent(
        id="traveller",
        model=ScriptedModel(turns),
        tools=[find_train, find_hotel, weather, book],
        sub_agents=[guide, critic],
        compaction=Compaction(max_tokens=100, summarize=summarize),
        hooks=[printer, mocks],
    )


# Three operations.


async def trip() -> None:
    print("--- a trip")
    agent = traveller(
        [
            call(calling("find_train", "c1", to="Graz")),
            call(calling("find_hotel", "c2", city="Graz"), tokens=500),
            call(calling("weather", "c3", city="Graz"), tokens=300),
            call(calling("guide", "c4", instruction="What should one see?")),
            call(calling("critic", "c5", instruction="Is the plan good?")),
            call(calling("book", "c6", what="train"), calling("book", "c7", what="hotel")),
            say("The train is booked."),
        ]
    )
    store = InMemoryStore()
    await exec_agent(agent, "Plan a trip to Graz", operation_id="trip", store=store)
    print("--- a person decides")
    decisions = [Approve("c6"), Reject("c7", "too expensive", and_continue=True)]
    await resume_agent(agent, "trip", decisions, store=store)


async def refused_trip() -> None:
    print("--- a trip that a person stops")
    agent = traveller([call(calling("book", "c1", what="cruise"))])
    store = InMemoryStore()
    await exec_agent(agent, "Book a cruise", operation_id="cruise", store=store)
    print("--- a person decides")
    await resume_agent(agent, "cruise", [Reject("c1", "no cruises")], store=store)


async def broken_trip() -> None:
    print("--- a trip that breaks")
    agent = traveller([RuntimeError("the model broke")])
    await exec_agent(agent, "Plan another trip", operation_id="broken")


async def main() -> None:
    await trip()
    await refused_trip()
    await broken_trip()
    print(f"--- {len(seen)} of {len(HookType)} events have been seen")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=["asyncio", "trio"], default="asyncio")
    logging.getLogger("hookline").setLevel(logging.CRITICAL)  # two runs fail on purpose, and would be logged
    anyio.run(main, backend=parser.parse_args().backend)
