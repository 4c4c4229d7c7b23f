"""What hooks make of a run's input, instructions, tools, answers and conversation, and what stays as it was."""

from __future__ import annotations

from typing import Any

import pytest

from hookline import (
    AgentCall,
    Approve,
    Ask,
    CompactCall,
    Continue,
    Message,
    ModelCall,
    ModelResponse,
    OnComplete,
    ScriptedModel,
    SubAgentCall,
    ToolCall,
    ToolSpec,
    Usage,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.runtime import Agent, Tool
from tests.tables import for_each

from .interception import Answering, JsonStore, World, after, around, before, contents, guard, pay, paying, replace
from .scenes import Recorder, agent_of, assert_consistent, call, calls, says, told

pytestmark = pytest.mark.anyio


class Listening:
    """A model that plays a script and keeps what it was asked."""

    name = "listening"
    provider = "tests"

    def __init__(self, *turns: Any) -> None:
        self.script = ScriptedModel(turns)
        self.asked: list[ModelCall] = []

    async def respond(self, asked: ModelCall) -> ModelResponse:
        self.asked.append(asked)
        return await self.script.respond(asked)


def listening(*turns: Any, **parts: Any) -> tuple[Agent, Listening]:
    model = Listening(*turns)
    return Agent(id="listener", model=model, **parts), model


def system_texts(messages: Any) -> list[str]:
    return contents(messages, "system")


# AgentCall.


async def test_a_hook_is_shown_the_real_input_the_instructions_and_the_tools() -> None:
    """philschmid 8: the start event came without the real input."""
    seen: list[AgentCall] = []
    agent = paying([], says(), instructions="be kind")

    await exec_agent(agent, "go", hooks=[before(AgentCall, seen.append)])

    assert [(m.role, m.content) for m in seen[0].input] == [("user", "go")]
    assert seen[0].instructions == "be kind"
    assert [spec.name for spec in seen[0].tools] == ["pay", "look"]


async def test_a_changed_input_takes_the_place_of_the_users() -> None:
    agent, model = listening(says(), instructions="be kind")
    hook = before(AgentCall, lambda c: replace(c, input=[Message(role="user", content="rewritten")]))

    result = await exec_agent(agent, "secret", hooks=[hook])

    assert contents(model.asked[0].messages) == contents(result.messages)[:-1] == ["be kind", "rewritten"]


async def test_an_input_may_be_added_to() -> None:
    agent, model = listening(says())
    note = Message(role="user", content="It is Monday.")

    await exec_agent(agent, "go", hooks=[before(AgentCall, lambda c: replace(c, input=[note, *c.input]))])

    assert contents(model.asked[0].messages) == ["It is Monday.", "go"]


@for_each("given", ["", "be kind"])
@for_each("changed", ["be brief", ""])
async def test_changed_instructions_are_one_system_message_or_none(given: str, changed: str) -> None:
    agent, model = listening(says(), instructions=given)

    result = await exec_agent(agent, "go", hooks=[before(AgentCall, lambda c: replace(c, instructions=changed))])

    assert system_texts(model.asked[0].messages) == system_texts(result.messages) == ([changed] if changed else [])
    assert contents(result.messages)[-2:] == ["go", "done"]


async def test_instructions_changed_by_two_hooks_compose() -> None:
    agent, model = listening(says(), instructions="a")
    hooks = [
        before(AgentCall, lambda c: replace(c, instructions=c.instructions + "b"), priority=1),
        before(AgentCall, lambda c: replace(c, instructions=c.instructions + "c"), priority=2),
    ]

    await exec_agent(agent, "go", hooks=hooks)

    assert system_texts(model.asked[0].messages) == ["abc"]


async def test_instructions_changed_again_for_a_continuation_are_still_one_message() -> None:
    agent, model = listening(says("one"), says("two"), instructions="a")
    counted: list[int] = []

    def louder(made: AgentCall) -> AgentCall:
        counted.append(1)
        return replace(made, instructions=f"version {len(counted)}")

    await exec_agent(
        agent,
        "go",
        hooks=[
            before(AgentCall, louder),
            after(AgentCall, lambda c, r: Continue("more") if r.output == "one" else None),
        ],
    )

    assert [system_texts(asked.messages) for asked in model.asked] == [["version 1"], ["version 2"]]
    assert contents(model.asked[1].messages) == ["version 2", "go", "one", "more"]


async def test_tools_that_a_hook_filters_are_neither_offered_nor_callable() -> None:
    ran: list[Any] = []
    agent, model = listening(calls(pay()), says(), tools=paying(ran).tools)
    hook = before(AgentCall, lambda c: replace(c, tools=[spec for spec in c.tools if spec.name != "pay"]))

    result = await exec_agent(agent, "go", hooks=[hook])

    assert [spec.name for spec in model.asked[0].tools] == ["look"]
    assert ran == []
    assert "no tool" in told(result.messages)["p1"]


async def test_a_sub_agent_that_a_hook_filters_is_neither_offered_nor_callable() -> None:
    world = World(parallel=0)
    offered: list[Any] = []
    hooks = [
        before(AgentCall, lambda c: replace(c, tools=[spec for spec in c.tools if spec.toolset != "agent"])),
        before(ModelCall, lambda c: offered.append([spec.name for spec in c.tools])),
    ]

    await exec_agent(world.agent, "go", hooks=hooks)

    assert offered[0] == ["look"]
    assert "child" not in world.ran


async def test_tools_that_a_hook_filters_fire_their_hooks_once() -> None:
    """philschmid 7: filtering `event.tools` wrapped the tools twice, so that each call fired twice."""
    ran: list[Any] = []
    recorder = Recorder()
    hooks = [before(AgentCall, lambda c: replace(c, tools=list(c.tools)[:1])) for _ in range(3)]

    await exec_agent(paying(ran, calls(pay()), says()), "go", hooks=[*hooks, recorder.hooks])

    assert ran == [5]
    assert recorder.names().count("beforeToolCall") == 1


def extra(ran: list[Any]) -> Tool:
    @tool
    async def added(x: int) -> str:
        ran.append(x)
        return f"added {x}"

    return added


async def test_a_tool_that_a_hook_adds_is_offered_and_runs() -> None:
    ran: list[Any] = []
    agent, model = listening(calls(call("added", x=1)), says())

    result = await exec_agent(
        agent, "go", hooks=[before(AgentCall, lambda c: replace(c, tools=[*c.tools, extra(ran)]))]
    )

    assert [spec.name for spec in model.asked[0].tools] == ["added"]
    assert ran == [1]
    assert told(result.messages) == {"t1": "added 1"}


@pytest.mark.parametrize("kind", ["before", "around"])
async def test_a_tool_that_a_hook_adds_runs_after_a_person_approved_it(kind: str) -> None:
    """What a person approved is what runs: the hook is there in both segments."""
    ran: list[Any] = []

    def adding(made: AgentCall) -> AgentCall:
        return replace(made, tools=[*made.tools, extra(ran)])

    async def adding_around(made: AgentCall, call_next: Any) -> Any:
        return await call_next(adding(made))

    hooks = [
        before(AgentCall, adding) if kind == "before" else around(AgentCall, adding_around),
        guard(ToolCall, lambda c: Ask("ok?")),
    ]
    store = JsonStore()
    await exec_agent(agent_of(calls(call("added", x=1))), "go", hooks=hooks, operation_id="op", store=store)

    result = await resume_agent(agent_of(says()), "op", [Approve("t1")], hooks=hooks, store=store)

    assert result.reason == "done"
    assert ran == [1]


async def test_changed_tools_instructions_and_input_survive_a_pause_in_another_process() -> None:
    ran: list[Any] = []
    store = JsonStore()
    hooks = [
        before(
            AgentCall,
            lambda c: replace(
                c,
                tools=[spec for spec in c.tools if spec.name == "pay"],
                instructions="be brief",
                input=[Message(role="user", content="rewritten")],
            ),
        )
    ]
    first = paying(ran, calls(pay()), needs_approval=True, instructions="be kind")
    await exec_agent(first, "go", hooks=hooks, operation_id="op", store=store)
    model = Listening(calls(call("look", "l1")), says())
    again = Agent(id="payer", model=model, tools=paying(ran, needs_approval=True).tools, instructions="be kind")

    result = await resume_agent(again, "op", [Approve("p1")], hooks=hooks, store=store)

    assert ran == [5]
    assert system_texts(model.asked[0].messages) == ["be brief"]
    assert contents(model.asked[0].messages)[:2] == ["be brief", "rewritten"]
    assert [spec.name for spec in model.asked[0].tools] == ["pay"]
    assert "no tool" in told(result.messages)["l1"]
    assert_consistent(result.messages)


async def test_a_spec_that_nobody_can_run_is_told_to_the_model() -> None:
    spec = ToolSpec(name="ghost", description="", schema={})
    agent = agent_of(calls(call("ghost")), says())

    result = await exec_agent(agent, "go", hooks=[before(AgentCall, lambda c: replace(c, tools=[spec]))])

    assert result.reason == "done"
    assert "ghost" in told(result.messages)["t1"]


async def test_a_changed_output_is_the_output_the_last_message_and_what_observers_hear() -> None:
    recorder = Recorder()
    hook = after(AgentCall, lambda c, r: replace(r, output=r.output.upper()))

    result = await exec_agent(agent_of(says("secret")), "go", hooks=[hook, recorder.hooks])

    assert result.output == "SECRET"
    assert recorder.of(OnComplete)[0].last_assistant_content == "SECRET"
    assert result.messages[-1] == Message(role="assistant", content="SECRET")
    assert "secret" not in contents(result.messages)


async def test_an_around_may_change_the_output_too() -> None:
    async def louder(made: AgentCall, call_next: Any) -> Any:
        result = await call_next(made)
        return replace(result, output=result.output + "!")

    result = await exec_agent(agent_of(says("yes")), "go", hooks=[around(AgentCall, louder)])

    assert result.output == result.messages[-1].content == "yes!"


async def test_a_changed_output_of_a_sub_agents_own_hook_is_what_its_parent_is_told() -> None:
    world = World(parallel=0, child_hooks=[after(AgentCall, lambda c, r: replace(r, output="redacted"))])
    results: list[Any] = []

    await exec_agent(world.agent, "go", hooks=[after(SubAgentCall, lambda c, r: results.append(r.output))])

    assert results == ["redacted"]


# ModelCall.


async def test_a_rewritten_model_call_affects_only_that_call() -> None:
    agent, model = listening(calls(call("look", "l1")), says(), tools=paying([]).tools)
    note = Message(role="user", content="(only for you)")

    def injecting(made: ModelCall) -> ModelCall | None:
        first = not any(message.role == "tool" for message in made.messages)
        return replace(made, messages=[*made.messages, note], tools=[], settings={"temperature": 0}) if first else None

    result = await exec_agent(agent, "go", hooks=[before(ModelCall, injecting)])

    assert contents(model.asked[0].messages) == ["go", "(only for you)"]
    assert model.asked[0].tools == []
    assert model.asked[0].settings == {"temperature": 0}
    assert "(only for you)" not in contents(model.asked[1].messages)
    assert [spec.name for spec in model.asked[1].tools] == ["pay", "look"]
    assert model.asked[1].settings == {}
    assert "(only for you)" not in contents(result.messages)


async def test_a_model_that_edits_what_it_is_given_harms_nobody() -> None:
    async def editing(asked: ModelCall) -> ModelResponse:
        asked.messages.clear()
        return says("done")

    agent = Agent(id="a", model=Answering(editing))

    result = await exec_agent(agent, "go", hooks=[before(ModelCall, lambda c: None)])

    assert contents(result.messages) == ["go", "done"]


async def test_a_rewritten_answer_is_what_counts_from_there_on() -> None:
    ran: list[Any] = []
    recorder = Recorder()

    def more(made: ModelCall, answer: ModelResponse) -> ModelResponse | None:
        if any(message.role == "tool" for message in made.messages):
            return None
        return replace(answer, content="let me look", tool_calls=[call("look", "l1")], reasoning="hm")

    result = await exec_agent(
        paying(ran, says("no idea"), says("found")), "go", hooks=[after(ModelCall, more), recorder.hooks]
    )

    assert ran == ["look"]
    assert contents(result.messages) == ["go", "let me look", "looked", "found"]
    first = recorder.of(type(recorder.of(OnComplete)[0]))
    assert first[0].llm_calls == 2


async def test_tool_calls_that_a_hook_takes_out_of_an_answer_do_not_run() -> None:
    ran: list[Any] = []

    result = await exec_agent(
        paying(ran, calls(pay(), content="I will pay")),
        "go",
        hooks=[after(ModelCall, lambda c, r: replace(r, tool_calls=[]))],
    )

    assert (result.reason, result.output) == ("done", "I will pay")
    assert ran == []
    assert_consistent(result.messages)


async def test_an_edit_of_a_call_in_place_reaches_nobody() -> None:
    ran: list[Any] = []

    def editing(made: ToolCall) -> None:
        made.args["amount"] = 1_000_000

    result = await exec_agent(
        paying(ran, calls(pay()), says()), "go", hooks=[before(ToolCall, editing, on_error="open")]
    )

    assert ran == [5]
    assert result.reason == "done"


async def test_partial_arguments_keep_the_rest() -> None:
    """philschmid 5: partial arguments dropped the rest."""
    got: list[Any] = []

    @tool
    async def send(to: str, text: str) -> str:
        got.append((to, text))
        return "sent"

    hook = before(ToolCall, lambda c: replace(c, args={**c.args, "text": "[redacted]"}))

    await exec_agent(agent_of(calls(call("send", to="a", text="b")), says(), tools=[send]), "go", hooks=[hook])

    assert got == [("a", "[redacted]")]


# SubAgentCall and CompactCall.


async def test_a_rewritten_instruction_is_what_the_sub_agent_is_asked() -> None:
    seen: list[Any] = []
    world = World(parallel=0, child_hooks=[before(AgentCall, lambda c: seen.append(contents(c.input)))])

    await exec_agent(world.agent, "go", hooks=[before(SubAgentCall, lambda c: replace(c, instruction="be quick"))])

    assert seen == [["be quick"]]


async def test_a_callee_that_does_not_exist_is_told_to_the_model() -> None:
    recorder = Recorder(inherit=False)

    result = await exec_agent(
        World(parallel=0).agent,
        "go",
        hooks=[before(SubAgentCall, lambda c: replace(c, callee_id="nobody")), recorder.hooks],
    )

    assert result.reason == "done"
    assert recorder.names().count("onCallAgentError") == 1


async def test_a_rewritten_summary_stands_in_the_conversation() -> None:
    result = await exec_agent(
        World().agent, "go", hooks=[after(CompactCall, lambda c, r: replace(r, summary="[cut] summed up"))]
    )

    assert [text for text in contents(result.messages) if "[cut] summed up" in text]


async def test_usage_is_what_the_model_reported_whatever_hooks_make_of_the_answer() -> None:
    result = await exec_agent(
        agent_of(says("x", tokens=7, cost=0.5)), "go", hooks=[after(ModelCall, lambda c, r: replace(r, content="y"))]
    )

    assert result.usage == Usage(input_tokens=7, cost_usd=0.5)


# Mistakes that a rewrite may make.


@for_each("field", ["operation_id", "tenant_id", "tool_call_id", "call_index", "step_index"])
async def test_a_hook_cannot_change_whose_call_it_is(field: str) -> None:
    ran: list[Any] = []
    value: Any = 99 if field.endswith("index") else "another"

    result = await exec_agent(
        paying(ran, calls(pay()), says()), "go", hooks=[before(ToolCall, lambda c: replace(c, **{field: value}))]
    )

    assert ran == []
    assert field in told(result.messages)["p1"]


async def test_a_hook_that_fails_open_leaves_no_half_made_change() -> None:
    """AGENT-33 F14: half-made edits of a failed hook stayed."""
    ran: list[Any] = []

    async def half(made: ToolCall, call_next: Any) -> Any:
        replace(made, args={"amount": 1})
        raise RuntimeError("half way")

    await exec_agent(paying(ran, calls(pay()), says()), "go", hooks=[around(ToolCall, half, on_error="open")])

    assert ran == [5]


async def test_a_tool_that_a_hook_made_need_approval_needs_it_after_a_resume_too() -> None:
    ran: list[Any] = []
    store = JsonStore()
    strict = before(AgentCall, lambda c: replace(c, tools=[replace(entry, needs_approval=True) for entry in c.tools]))
    await exec_agent(paying(ran, calls(pay(1, "a"))), "go", hooks=[strict], operation_id="op", store=store)
    assert ran == []

    result = await resume_agent(
        paying(ran, calls(pay(1000, "b")), says()), "op", [Approve("a")], hooks=[strict], store=store
    )

    assert ran == [1]
    assert result.reason == "waiting_for_human"
