"""Programs of Strands run bare and with hooks that change nothing: caller and model must be given the same."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from strands import Agent, ToolContext, tool
from strands.agent.agent_result import AgentResult as SDKResult
from strands.agent.conversation_manager import SlidingWindowConversationManager, SummarizingConversationManager
from strands.hooks import BeforeNodeCallEvent, BeforeToolCallEvent, BeforeToolsEvent
from strands.middleware import ExecuteToolStage
from strands.multiagent import GraphBuilder
from strands.telemetry.metrics import EventLoopMetrics
from strands.vended_interventions.hitl import HumanInTheLoop

from hookline import AgentCall, Ask, Hooks, ModelCall, ToolCall
from hookline.adapters.strands import answers, hooked
from hookline.calls import ModelResponse, SubAgentCall, ToolRequest
from hookline.errors import RunStopped
from hookline.events import EVENTS, BeforeStep, OnComplete
from hookline.runtime import Approve, InMemoryStore, Reject

from .stage import Scripted, texts
from .test_strands import DONE, calls, listening, names

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def passing() -> Hooks:
    """Hooks of every kind, around every call, that change nothing."""
    hooks = Hooks("passing", inherit=True)

    async def around(call: Any, call_next: Any) -> Any:
        return await call_next(call)

    for call in (AgentCall, ModelCall, ToolCall, SubAgentCall):
        hooks.before(call)(lambda call: None)
        hooks.guard(call)(lambda call: None)
        hooks.after(call)(lambda call, result: None)
        hooks.around(call)(around)
    return hooks


def watching() -> Hooks:
    hooks = Hooks("watching", inherit=True)
    for event in EVENTS.values():
        hooks.on(event)(lambda event: None)
    return hooks


ATTACHED: dict[str, Callable[[], list[Hooks]]] = {
    "an empty bundle": lambda: [Hooks("x")],
    "observers": lambda: [watching()],
    "all that pass": lambda: [watching(), passing()],
}


# Who interrupts, and what a person answers.


@tool(context=True)
def connect(tool_context: ToolContext) -> str:
    """Connect to a database, which a person names."""
    return f"connected to {tool_context.interrupt('which', reason='Which database?')!r}"


@tool
def plain() -> str:
    """Do something."""
    return "done so"


def by_tool(**given: Any) -> Agent:
    return Agent(model=Scripted([calls("connect"), DONE]), tools=[connect], callback_handler=None, **given)


def by_hook_of_theirs(**given: Any) -> Agent:
    agent = Agent(model=Scripted([calls("plain"), DONE]), tools=[plain], callback_handler=None, **given)

    def ask(event: BeforeToolCallEvent) -> None:
        if event.interrupt("which", reason="Which database?") == "no":
            event.cancel_tool = "their hook says no"

    agent.add_hook(ask)
    return agent


def by_hook_of_all_tools(**given: Any) -> Agent:
    agent = Agent(model=Scripted([calls("plain"), DONE]), tools=[plain], callback_handler=None, **given)

    def ask(event: BeforeToolsEvent) -> None:
        if event.interrupt("which", reason="Which database?") == "no":
            event.cancel = "their hook says no"

    agent.add_hook(ask)
    return agent


def by_intervention(**given: Any) -> Agent:
    approval = HumanInTheLoop(evaluate=lambda answer: answer in ("staging", "yes", True))
    model = Scripted([calls("plain"), DONE])
    return Agent(model=model, tools=[plain], interventions=[approval], callback_handler=None, **given)


def by_middleware_of_theirs(**given: Any) -> Agent:
    async def ask(context: Any, call_next: Any) -> Any:
        context.interrupt("which", reason="Which database?")
        async for event in call_next(context):
            yield event

    agent = Agent(model=Scripted([calls("plain"), DONE]), tools=[plain], callback_handler=None, **given)
    agent.add_middleware(ExecuteToolStage, ask)
    return agent


def inside(make: Callable[..., Agent]) -> Callable[..., Agent]:
    def by_sub_agent(**given: Any) -> Agent:
        child = make(name="child")
        turn = ModelResponse(tool_calls=[ToolRequest(tool_name="child", args={"input": "x"}, tool_call_id="c1")])
        return Agent(model=Scripted([turn, DONE]), tools=[child.as_tool()], callback_handler=None, **given)

    return by_sub_agent


ASKING: dict[str, Callable[..., Agent]] = {
    "a tool": by_tool,
    "their hook": by_hook_of_theirs,
    "their hook of all tools": by_hook_of_all_tools,
    "an intervention": by_intervention,
    "their middleware": by_middleware_of_theirs,
    "a tool of a sub-agent": inside(by_tool),
    "their hook in a sub-agent": inside(by_hook_of_theirs),
    "an intervention in a sub-agent": inside(by_intervention),
}

ANSWERS = ["staging", "yes", "no", True, False, 7, ["a", "b"], {"name": "staging"}, {"approved": False, "reason": "x"}]


async def conversation(agent: Agent, run: Any, answer: Any) -> list[Any]:
    """Play to the end, and give what the model was shown and the caller was given."""
    result, found = await run.invoke_async("go"), []
    for _ in range(3):
        found.append((result.stop_reason, [(each.name, each.reason) for each in result.interrupts or ()]))
        if result.stop_reason != "interrupt":
            break
        prompt = [{"interruptResponse": {"interruptId": each.id, "response": answer}} for each in result.interrupts]
        result = await run.invoke_async(prompt)
    shown = copy.deepcopy([each["content"] for each in agent.messages])
    return [*found, texts(result.message), shown]


@pytest.mark.parametrize("answer", ANSWERS, ids=str)
@pytest.mark.parametrize("asking", ASKING)
async def test_an_interrupt_that_no_hook_has_asked_takes_any_answer(asking: str, answer: Any) -> None:
    agent = ASKING[asking]()
    bare = await conversation(agent, agent, answer)

    for attached in ATTACHED.values():
        agent = ASKING[asking]()
        run = hooked(agent, hooks=attached(), store=InMemoryStore())
        assert await conversation(agent, run, answer) == bare


@pytest.mark.parametrize(
    ("asking", "answer", "action"),
    [
        ("a tool", "staging", "approve"),
        ("a tool", "no", "approve"),
        ("their middleware", "no", "approve"),
        ("their hook", "staging", "approve"),
        ("their hook", "no", "rejectAndContinue"),
        ("an intervention", "yes", "approve"),
        ("an intervention", "staging", "approve"),
        ("an intervention", "no", "rejectAndContinue"),
    ],
)
async def test_hooks_are_told_what_came_of_the_answer(asking: str, answer: str, action: str) -> None:
    hooks, seen = listening()
    agent = ASKING[asking]()

    await conversation(agent, hooked(agent, hooks=[hooks], store=InMemoryStore()), answer)

    assert [event.action for event in seen if event.hook_type == "afterHumanIntervention"] == [action]
    assert [event.reason for event in seen if isinstance(event, OnComplete)] == ["waiting_for_human", "done"]
    assert len({event.operation_id for event in seen}) == 1
    ran = names(seen).count("afterToolCall")
    assert ran == (1 if action == "approve" else 0)


@pytest.mark.parametrize("and_continue", [False, True])
@pytest.mark.parametrize("asking", [each for each in ASKING if each != "their hook of all tools"])
async def test_a_rejection_by_answers_refuses_the_call_whoever_has_asked(asking: str, and_continue: bool) -> None:
    hooks, seen = listening(inherit=True)
    agent = ASKING[asking]()
    run = hooked(agent, hooks=[hooks], store=InMemoryStore())
    result = await run.invoke_async("go")
    call = "c1" if "sub-agent" in asking else "t1"

    with nullcontext() if and_continue else pytest.raises(RunStopped, match="not that one"):
        await run.invoke_async(answers(result, [Reject(call, "not that one", and_continue=and_continue)]))

    shown = str(agent.messages)
    assert "connected" not in shown
    assert "done so" not in shown
    assert not [event for event in seen if event.hook_type == "afterToolCall" and event.success]
    own = [event for event in seen if event.operation_id == seen[0].operation_id]
    assert own[-1].reason == ("done" if and_continue else "interrupted")


async def test_a_call_that_a_hook_and_then_its_tool_ask_about_has_both_answers() -> None:
    hooks, seen = listening()
    hooks.guard(ToolCall)(lambda call: Ask("sure?"))
    agent = by_tool()
    run = hooked(agent, hooks=[hooks], store=InMemoryStore())

    result = await run.invoke_async("go")
    result = await run.invoke_async(answers(result, [Approve("t1")]))
    assert [each.reason for each in result.interrupts] == ["Which database?"]
    await run.invoke_async([{"interruptResponse": {"interruptId": result.interrupts[0].id, "response": "staging"}}])

    assert texts(agent.messages[2]) == "connected to 'staging'"
    assert [event.action for event in seen if event.hook_type == "afterHumanIntervention"] == ["approve"] * 2


# What is the user's stays the user's.


class Counting(SummarizingConversationManager):
    """A conversation manager with something of its own in the place of its method, as a spy has it."""

    def __init__(self) -> None:
        super().__init__(preserve_recent_messages=2)
        self.reduced = 0
        self.reduce_context = self.count  # type: ignore[method-assign]

    def count(self, agent: Any, e: Exception | None = None, **given: Any) -> None:
        self.reduced += 1
        super().reduce_context(agent, e=e, **given)


@pytest.mark.parametrize("make", [SlidingWindowConversationManager, Counting])
async def test_an_agents_conversation_manager_is_as_it_was_after_a_run(make: Any) -> None:
    manager = make()
    before = dict(vars(manager))
    agent = Agent(model=Scripted([DONE]), conversation_manager=manager, callback_handler=None)
    during: list[Any] = []
    hooks, _ = listening()
    hooks.on(BeforeStep)(lambda event: during.append(vars(manager)["reduce_context"]))

    await hooked(agent, hooks=[hooks]).invoke_async("go")

    assert agent.conversation_manager is manager
    assert vars(manager).keys() == before.keys()
    assert vars(manager).get("reduce_context") == before.get("reduce_context")
    assert during


async def test_a_conversation_manager_that_agents_share_is_led_until_the_last_of_their_runs_ends() -> None:
    manager, last = SlidingWindowConversationManager(), asyncio.Event()
    led: list[bool] = []

    @tool
    async def wait_for_last() -> str:
        """Wait until the other run has ended."""
        await last.wait()
        led.append("reduce_context" in vars(manager))
        return "waited"

    def agent(*turns: ModelResponse) -> Agent:
        tools = [wait_for_last]
        return Agent(model=Scripted(turns), tools=tools, conversation_manager=manager, callback_handler=None)

    first = asyncio.create_task(hooked(agent(calls("wait_for_last"), DONE), hooks=[watching()]).invoke_async("go"))
    await hooked(agent(DONE), hooks=[watching()]).invoke_async("go")
    last.set()
    await first

    assert led == [True]
    assert "reduce_context" not in vars(manager)


@pytest.mark.parametrize("attached", [None, *ATTACHED])
async def test_a_sub_agent_that_is_cancelled_with_its_parent_ends_as_strands_says(attached: str | None) -> None:
    parents: list[Agent] = []

    @tool
    def cancel() -> str:
        """Cancel the run around this one."""
        parents[0].cancel()
        return "cancelled"

    child = Agent(name="child", model=Scripted([calls("cancel"), DONE]), tools=[cancel], callback_handler=None)
    turn = ModelResponse(tool_calls=[ToolRequest(tool_name="child", args={"input": "x"}, tool_call_id="c1")])
    parents.append(Agent(model=Scripted([turn, DONE]), tools=[child.as_tool()], callback_handler=None))
    run = parents[0] if attached is None else hooked(parents[0], hooks=ATTACHED[attached]())

    result = await run.invoke_async("go")

    (told,) = [
        block["toolResult"] for message in parents[0].messages for block in message["content"] if "toolResult" in block
    ]
    assert result.stop_reason == "cancelled"
    assert (told["status"], told["content"]) == ("error", [{"text": "Agent 'child' cancelled"}])


class Elsewhere:
    """An agent that is no `Agent`, as one of another process (A2A) is: it can only be run."""

    name = id = "elsewhere"

    async def stream_async(self, prompt: Any = None, **given: Any) -> Any:
        message: Any = {"role": "assistant", "content": [{"text": "from elsewhere"}]}
        yield {"result": SDKResult(stop_reason="end_turn", message=message, metrics=EventLoopMetrics(), state={})}

    async def invoke_async(self, prompt: Any = None, **given: Any) -> Any:
        return [event async for event in self.stream_async(prompt)][-1]["result"]

    def __call__(self, prompt: Any = None, **given: Any) -> Any:
        raise NotImplementedError


async def test_a_node_of_a_graph_may_be_an_agent_that_runs_elsewhere() -> None:
    hooks, seen = listening()
    builder = GraphBuilder()
    builder.add_node(Elsewhere(), "far")
    builder.set_max_node_executions(10)

    result = await hooked(builder.build(), hooks=[hooks, passing()]).invoke_async("go")

    assert "from elsewhere" in str(result.results["far"].result)
    assert names(seen) == ["beforeCallAgent", "afterCallAgent", "onComplete"]


async def test_what_a_run_has_started_may_run_agents_when_that_run_is_over() -> None:
    started: list[asyncio.Task[Any]] = []
    over, (hooks, seen) = asyncio.Event(), listening()
    other = Agent(name="other", model=Scripted([DONE, DONE]), callback_handler=None)

    async def later() -> str:
        await over.wait()
        await other.invoke_async("go")
        other.messages.clear()
        return texts((await hooked(other, hooks=[hooks]).invoke_async("go")).message)

    @tool
    async def start() -> str:
        """Start something that outlives the run."""
        started.append(asyncio.create_task(later()))
        return "started"

    agent = Agent(model=Scripted([calls("start"), DONE]), tools=[start], callback_handler=None)
    await hooked(agent, hooks=[passing()]).invoke_async("go")
    over.set()

    assert await started[0] == "done"
    assert {event.parent_operation_id for event in seen} == {None}


@pytest.mark.parametrize("attached", [None, *ATTACHED])
async def test_a_node_that_a_hook_of_theirs_cancels_fails_the_graph_in_their_words(attached: str | None) -> None:
    builder = GraphBuilder()
    builder.add_node(Agent(name="one", model=Scripted([DONE]), callback_handler=None), "one")
    builder.set_max_node_executions(10)
    graph = builder.build()

    def cancel(event: BeforeNodeCallEvent) -> None:
        event.cancel_node = "closed today"

    graph.hooks.add_callback(BeforeNodeCallEvent, cancel)
    run = graph if attached is None else hooked(graph, hooks=ATTACHED[attached]())

    with pytest.raises(RuntimeError, match="closed today"):
        await run.invoke_async("go")


@pytest.mark.parametrize("attached", [None, *ATTACHED])
async def test_a_tool_in_the_background_that_outlives_the_run_keeps_its_result(attached: str | None) -> None:
    released, ended = asyncio.Event(), list[str]()

    @tool(name="work")
    async def work() -> str:
        """Work for long."""
        await released.wait()
        ended.append("work")
        return "done in the background"

    background: Any = {"wait_for_completion": False, "max_concurrency": 1, "timeout": 60}
    turns = [calls("work", _background_execution=True), *[DONE] * 250]
    agent = Agent(model=Scripted(turns), tools=[work], background_tasks=background, callback_handler=None)
    run = agent if attached is None else hooked(agent, hooks=ATTACHED[attached]())
    await run.invoke_async("go")
    released.set()

    for _ in range(100):  # Strands takes the result up in its own time, and tells the next run of it
        await agent.invoke_async("again")
        if "work" in ended and "done in the background" in str(agent.messages):
            break
        await asyncio.sleep(0.01)

    assert "done in the background" in str(agent.messages)
