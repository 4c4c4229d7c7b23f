"""What is special in the OpenAI Agents SDK: handoffs, agents as tools, guardrails, streams, sync runs, sessions."""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
from collections import Counter
from collections.abc import Iterator
from typing import Any

import mcp.types
import pytest
from agents import (
    Agent,
    FunctionTool,
    MaxTurnsExceeded,
    ModelProvider,
    RunConfig,
    RunHooks,
    Runner,
    RunState,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    UserError,
    function_tool,
    handoff,
)
from agents.exceptions import AgentsException
from agents.mcp import MCPServer
from anyio.lowlevel import checkpoint

from hookline import (
    AfterCallAgent,
    AfterStep,
    AfterToolCall,
    AgentCall,
    Ask,
    BeforeCallAgent,
    BeforeToolCall,
    Continue,
    Deny,
    Hooks,
    ModelCall,
    ModelResponse,
    OnCallAgentError,
    OnComplete,
    OnToolCallError,
    Respond,
    SubAgentCall,
    ToolCall,
    ToolRequest,
    interrupt,
)
from hookline.adapters.openai_agents import HooklineRunner, OpenAIRunStopped
from hookline.errors import HookDefinitionError, HookUsageError, RunStopped
from hookline.evals.adapter_contract import Scene
from hookline.evals.adapter_contract._scenes import PLAIN
from hookline.events import EVENTS
from hookline.runtime import Approve, Reject

from .stage import QUIET, Script, agent_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Recorder:
    def __init__(self, *, inherit: bool = False) -> None:
        self.events: list[Any] = []
        self.hooks = Hooks("recorder", inherit=inherit)
        for event in EVENTS.values():
            self.hooks.on(event)(self.events.append)

    def names(self, operation_id: str | None = None) -> list[str]:
        return [str(e.hook_type) for e in self.events if operation_id in (None, e.operation_id)]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


TWO_STEPS = [
    "beforeStep", "beforeToolCall", "afterToolCall", "afterStep", "beforeStep", "afterStep", "onComplete",
]  # fmt: skip


def calls(name: str, call_id: str = "t1", toolset: str = "local", **args: Any) -> ModelResponse:
    call = ToolRequest(toolset=toolset, tool_name=name, args=args, tool_call_id=call_id)
    return ModelResponse(tool_calls=[call])


def says(content: str) -> ModelResponse:
    return ModelResponse(content=content)


async def test_the_agents_stay_untouched_and_the_sdks_own_hooks_keep_their_meaning() -> None:
    agent, seen, heard = agent_of(PLAIN), Recorder(), list[str]()
    await Runner.run(agent, "go", run_config=QUIET)  # the SDK notes something of its own on the agent
    before = dict(vars(agent)), list(agent.tools), dict(vars(agent.tools[0]))

    class Own(RunHooks[Any]):
        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            heard.append(str(result))

    result = await HooklineRunner([seen.hooks]).run(agent, "go", hooks=Own(), run_config=QUIET)

    assert (dict(vars(agent)), list(agent.tools), dict(vars(agent.tools[0]))) == before
    assert (result.final_output, heard, seen.names()) == ("done", ["3"], TWO_STEPS)
    assert (await Runner.run(agent, "go", run_config=QUIET)).final_output == "done"
    assert (await Runner.run(result.last_agent, "go", run_config=QUIET)).final_output == "done"
    assert seen.names() == TWO_STEPS


@pytest.fixture
def own_loop() -> Iterator[None]:
    """The SDK leaves the loop of its sync runs open, for the sessions that live in it."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()
    asyncio.set_event_loop(None)


@pytest.mark.usefixtures("own_loop")
def test_a_sync_run_tells_the_same() -> None:
    seen = Recorder()

    result = HooklineRunner([seen.hooks]).run_sync(agent_of(PLAIN), "go", run_config=QUIET)

    assert (result.final_output, seen.names()) == ("done", TWO_STEPS)


async def test_a_stream_tells_the_same_and_is_consumed_as_ever() -> None:
    seen, words = Recorder(), list[str]()

    async with HooklineRunner([seen.hooks]).stream(agent_of(PLAIN), "go", run_config=QUIET) as result:
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                words.append(event.data.delta)

    assert words == ["let", "me", "see", "done"]
    assert (result.final_output, seen.names()) == ("done", TWO_STEPS)


async def test_a_stream_shows_what_hooks_have_made_of_an_answer_and_nothing_else() -> None:
    hooks, words = Hooks("words"), list[str]()
    hooks.before(ModelCall)(lambda call: Respond(ModelResponse(content="canned")))

    async with HooklineRunner([hooks]).stream(agent_of(PLAIN), "go", run_config=QUIET) as result:
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                words.append(event.data.delta)

    assert (result.final_output, words) == ("canned", [])


async def test_a_stream_that_is_left_early_ends_the_run() -> None:
    seen = Recorder()

    async with HooklineRunner([seen.hooks]).stream(agent_of(PLAIN), "go", run_config=QUIET) as result:
        async for _ in result.stream_events():
            break

    assert [each.reason for each in seen.of(OnComplete)] == ["interrupted"]
    assert Counter(seen.names())["onComplete"] == 1


async def test_an_error_of_a_streamed_run_is_its_own() -> None:
    seen = Recorder()
    agent = agent_of(Scene(turns=PLAIN.turns[:1], tools=PLAIN.tools))

    with pytest.raises(IndexError):
        async with HooklineRunner([seen.hooks]).stream(agent, "go", run_config=QUIET) as result:
            async for _ in result.stream_events():
                pass

    assert [(each.reason, each.error_type) for each in seen.of(OnComplete)] == [("error", "IndexError")]


async def test_an_agent_that_takes_over_is_a_sub_agent_until_the_run_ends() -> None:
    seen, inheriting = Recorder(), Recorder(inherit=True)
    billing = Agent(name="billing", model=Script([calls("add", "t2", a=1, b=2), says("paid")]), tools=_add())
    triage = Agent(name="triage", model=Script([calls("transfer_to_billing")]), handoffs=[billing])

    result = await HooklineRunner([seen.hooks, inheriting.hooks]).run(triage, "go", run_config=QUIET)

    assert (result.final_output, result.last_agent.name) == ("paid", "billing")
    assert seen.names() == ["beforeStep", "beforeCallAgent", "afterCallAgent", "afterStep", "onComplete"]
    (called,) = seen.of(AfterCallAgent)
    assert (called.callee_id, called.success) == ("billing", True)
    assert inheriting.names(called.sub_operation_id) == TWO_STEPS
    assert [each.last_assistant_content for each in inheriting.of(OnComplete)] == ["paid", "paid"]


async def test_agents_that_hand_over_in_a_circle_each_have_their_operation() -> None:
    inheriting = Recorder(inherit=True)
    triage = Agent(name="triage", model=Script([calls("transfer_to_billing", "t1"), says("bye")]))
    billing = Agent(name="billing", model=Script([calls("transfer_to_triage", "t2")]), handoffs=[handoff(triage)])
    triage.handoffs = [billing]

    result = await HooklineRunner([inheriting.hooks]).run(triage, "go", run_config=QUIET)

    assert result.final_output == "bye"
    assert [each.callee_id for each in inheriting.of(BeforeCallAgent)] == ["billing", "triage"]
    assert [each.agent_id for each in inheriting.of(OnComplete)] == ["triage", "billing", "triage"]


async def test_an_agent_that_took_over_and_fails_is_told() -> None:
    seen = Recorder()
    billing = Agent(name="billing", model=Script([]))
    triage = Agent(name="triage", model=Script([calls("transfer_to_billing")]), handoffs=[billing])

    with pytest.raises(IndexError):
        await HooklineRunner([seen.hooks]).run(triage, "go", run_config=QUIET)

    assert len(seen.of(OnCallAgentError)) == 1
    assert [each.reason for each in seen.of(OnComplete)] == ["error"]


async def test_a_handoff_that_a_hook_denies_ends_the_run() -> None:
    seen, hooks = Recorder(), Hooks("guard")
    hooks.guard(SubAgentCall, id="not-them")(lambda call: Deny("not them"))
    triage = Agent(name="triage", model=Script([calls("transfer_to_billing")]), handoffs=[Agent(name="billing")])

    with pytest.raises(RunStopped, match="not them") as stopped:
        await HooklineRunner([seen.hooks, hooks]).run(triage, "go", run_config=QUIET)

    assert stopped.value.hook_id == "not-them"
    assert seen.names() == ["beforeStep", "beforeCallAgent", "onCallAgentError", "afterStep", "onComplete"]


async def test_a_call_about_which_a_hook_asks_does_not_run_and_the_model_is_told_why() -> None:
    hooks = Hooks("asks")
    hooks.guard(ToolCall)(lambda call: Ask("may I?"))

    result = await HooklineRunner([hooks]).run(agent_of(PLAIN), "go", run_config=QUIET)

    (told,) = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert "may I?" in told
    assert (result.final_output, result.interruptions) == ("done", [])


async def test_a_tool_that_raises_is_told_as_an_error_and_the_model_reads_what_the_sdk_says() -> None:
    seen = Recorder()

    async def fail() -> str:
        """Fail."""
        raise ValueError("broken")

    tools = [function_tool(fail, failure_error_function=lambda ctx, error: f"sorry: {error}")]
    agent = Agent(name="t", model=Script([calls("fail"), says("done")]), tools=tools)
    result = await HooklineRunner([seen.hooks]).run(agent, "go", run_config=QUIET)

    assert "onToolCallError" in seen.names()
    assert [item.output for item in result.new_items if item.type == "tool_call_output_item"] == ["sorry: broken"]


async def test_a_tool_whose_errors_fail_the_run_still_fails_it() -> None:
    seen = Recorder()

    async def fail() -> str:
        """Fail."""
        raise ValueError("broken")

    agent = Agent(name="t", model=Script([calls("fail")]), tools=[function_tool(fail, failure_error_function=None)])
    with pytest.raises(UserError, match="broken"):
        await HooklineRunner([seen.hooks]).run(agent, "go", run_config=QUIET)

    assert seen.names() == ["beforeStep", "beforeToolCall", "onToolCallError", "afterStep", "onComplete", "onError"]


async def test_a_tool_made_by_hand_is_hooked_too() -> None:
    hooks = Hooks("mock")
    hooks.on(BeforeToolCall)(lambda event: event.mock("canned"))

    async def invoke(ctx: Any, text: str) -> str:
        raise AssertionError("It ran.")

    tool = FunctionTool(
        name="raw", description="", params_json_schema={}, on_invoke_tool=invoke, strict_json_schema=False
    )
    agent = Agent(name="t", model=Script([calls("raw"), says("done")]), tools=[tool])
    result = await HooklineRunner([hooks]).run(agent, "go", run_config=QUIET)

    assert [item.output for item in result.new_items if item.type == "tool_call_output_item"] == ["canned"]


async def test_a_call_that_a_guardrail_of_the_sdk_rejects_does_not_happen() -> None:
    seen = Recorder()
    guardrail = ToolInputGuardrail(guardrail_function=lambda data: ToolGuardrailFunctionOutput.reject_content("no"))
    tool = _add()[0]
    tool.tool_input_guardrails = [guardrail]
    agent = Agent(name="t", model=Script([calls("add", a=1, b=2), says("done")]), tools=[tool])

    await HooklineRunner([seen.hooks]).run(agent, "go", run_config=QUIET)

    assert seen.names() == ["beforeStep", "afterStep", "beforeStep", "afterStep", "onComplete"]


async def test_a_timeout_of_a_tool_is_told_to_the_model_as_ever() -> None:
    seen = Recorder()

    async def hang() -> str:
        """Hang."""
        await asyncio.Event().wait()
        return "never"

    agent = Agent(name="t", model=Script([calls("hang"), says("done")]), tools=[function_tool(hang, timeout=0.01)])
    result = await HooklineRunner([seen.hooks]).run(agent, "go", run_config=QUIET)

    (told,) = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert "timed out" in told
    assert "onToolCallError" in seen.names()


async def test_names_of_models_are_looked_up_as_ever_and_the_answers_are_counted() -> None:
    seen, asked = Recorder(), list[Any]()

    class Provider(ModelProvider):
        def get_model(self, model_name: str | None) -> Script:
            asked.append(model_name)
            return Script(PLAIN.turns)

    agent = Agent(name="t", model="mine", tools=_add())
    config = RunConfig(tracing_disabled=True, model_provider=Provider())
    await HooklineRunner([seen.hooks]).run(agent, "go", run_config=config)

    assert asked == ["mine", "mine"]
    assert seen.names() == TWO_STEPS
    assert [each.llm_calls for each in seen.of(OnComplete)] == [2]


async def test_tools_of_an_mcp_server_are_hooked_under_its_name() -> None:
    seen, hooks = Recorder(), Hooks("mock")
    hooks.on(BeforeToolCall, tool="files/read")(lambda event: event.mock("canned"))
    agent = Agent(name="t", model=Script([calls("read"), calls("write", "t2"), says("done")]), mcp_servers=[Files()])

    result = await HooklineRunner([hooks, seen.hooks]).run(agent, "go", run_config=QUIET)

    told = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert told[0] == "canned"
    assert "error occurred" in str(told[1])
    (failed,) = seen.of(OnToolCallError)
    assert (failed.toolset, failed.tool_name) == ("files", "write")
    assert "no disk" in failed.error


class Files(MCPServer):
    """An MCP server whose tools are known, and all of which fail."""

    name = "files"

    async def connect(self) -> None: ...

    async def cleanup(self) -> None: ...

    async def list_tools(self, *given: Any) -> list[mcp.types.Tool]:
        await checkpoint()
        return [
            mcp.types.Tool(name=name, inputSchema={"type": "object", "properties": {}}) for name in ("read", "write")
        ]

    async def call_tool(self, *given: Any, **options: Any) -> Any:
        await checkpoint()
        raise OSError("no disk")

    async def list_prompts(self) -> Any: ...

    async def get_prompt(self, *given: Any) -> Any: ...


async def test_too_many_turns_end_it_as_such() -> None:
    seen = Recorder()

    with pytest.raises(MaxTurnsExceeded):
        await HooklineRunner([seen.hooks]).run(agent_of(PLAIN), "go", max_turns=1, run_config=QUIET)

    assert [each.reason for each in seen.of(OnComplete)] == ["max_steps"]


async def test_decisions_made_in_the_sdks_own_words_are_told() -> None:
    seen = Recorder()
    agent = agent_of(Scene(turns=PLAIN.turns, tools=PLAIN.tools, approval=frozenset({"add"})))
    runner = HooklineRunner([seen.hooks], operation_id="own-words")
    result = await runner.run(agent, "go", run_config=QUIET, context={"kept": True})
    state = result.to_state()
    state.reject(state.get_interruptions()[0], rejection_message="not today")
    result = await runner.run(agent, state, run_config=QUIET)

    assert result.final_output == "done"
    assert result.context_wrapper.context == {"kept": True}
    (decision,) = [e for e in seen.events if e.hook_type == "afterHumanIntervention"]
    assert (decision.action, decision.rejection_reason) == ("rejectAndContinue", "not today")
    assert [each.step_index for each in seen.of(AfterStep)] == [0, 1, 2]


async def test_a_paused_agent_that_is_a_tool_goes_on_with_its_parent() -> None:
    inheriting = Recorder(inherit=True)
    child = agent_of(Scene(turns=PLAIN.turns, tools=PLAIN.tools, approval=frozenset({"add"})), name="child")
    turns = [calls("child", "p1", "agent", instruction="do it"), says("all done")]
    parent = Agent(name="parent", model=Script(turns), tools=[child.as_tool("child", "Ask.")])
    runner = HooklineRunner([inheriting.hooks], operation_id="paused-parent")

    result = await runner.run(parent, "go", run_config=QUIET)
    assert [each.reason for each in inheriting.of(OnComplete)] == ["waiting_for_human", "waiting_for_human"]
    inheriting.events.clear()
    state = await RunState.from_string(parent, result.to_state().to_string())
    result = await runner.resume(parent, state, [Approve("t1")], run_config=QUIET)

    assert result.final_output == "all done"
    assert [each.success for each in inheriting.of(AfterCallAgent)] == [True]
    assert [each.reason for each in inheriting.of(OnComplete)] == ["done", "done"]


async def test_a_decision_about_a_call_that_does_not_wait_is_refused() -> None:
    agent = agent_of(Scene(turns=PLAIN.turns, tools=PLAIN.tools, approval=frozenset({"add"})))
    result = await HooklineRunner().run(agent, "go", run_config=QUIET)

    with pytest.raises(RuntimeError, match=r"No tool call 't9' waits for a person\. Waiting calls: 't1'"):
        await HooklineRunner().resume(agent, result.to_state(), [Reject("t9")], run_config=QUIET)


async def test_a_run_that_a_tool_begins_finds_its_parent() -> None:
    seen, inheriting = Recorder(), Recorder(inherit=True)
    inner = agent_of(PLAIN, name="inner")

    async def nested() -> str:
        """Run another agent by hand."""
        return str((await Runner.run(inner, "go", run_config=QUIET)).final_output)

    agent = Agent(name="outer", model=Script([calls("nested"), says("over")]), tools=[function_tool(nested)])
    await HooklineRunner([seen.hooks, inheriting.hooks], operation_id="outer-op").run(agent, "go", run_config=QUIET)

    assert seen.names() == TWO_STEPS
    ends = {each.agent_id: each.parent_operation_id for each in inheriting.of(OnComplete)}
    assert ends == {"inner": "outer-op", "outer": None}


async def test_an_agent_as_a_streaming_tool_is_a_sub_agent_too() -> None:
    inheriting, events = Recorder(inherit=True), list[Any]()
    child = agent_of(PLAIN, name="child")
    tool = child.as_tool("child", "Ask.", on_stream=events.append)
    turns = [calls("child", "p1", "agent", instruction="do it"), says("over")]
    agent = Agent(name="outer", model=Script(turns), tools=[tool])

    result = await HooklineRunner([inheriting.hooks]).run(agent, "go", run_config=QUIET)

    assert (result.final_output, bool(events)) == ("over", True)
    (called,) = inheriting.of(AfterCallAgent)
    assert inheriting.names(called.sub_operation_id) == TWO_STEPS


async def test_a_hook_may_let_the_run_go_on() -> None:
    hooks, seen = Hooks("more"), Recorder()
    again = iter([Continue("and again"), None])
    hooks.after(AgentCall)(lambda call, result: next(again))

    result = await HooklineRunner([hooks, seen.hooks]).run(
        Agent(name="t", model=Script([says("done")])), "go", run_config=QUIET
    )

    assert "and again" in str(result.to_input_list())
    assert seen.names() == ["beforeStep", "afterStep", "beforeStep", "afterStep", "onComplete"]


@pytest.mark.parametrize("prompt", ["go", [{"role": "user", "content": "go"}]])
async def test_a_run_that_a_hook_answered_goes_on_behind_that_answer(prompt: Any) -> None:
    hooks, asked = Hooks("answers"), list[str]()
    answers, again = iter([Respond("from a hook"), None]), iter([Continue("and again"), None])
    hooks.before(AgentCall)(lambda call: next(answers))
    hooks.after(AgentCall, priority=10)(lambda call, result: next(again))
    agent = Agent(name="t", model=Script([says("done")], asked))

    result = await HooklineRunner([hooks]).run(agent, prompt, run_config=QUIET)

    assert [each["content"] for each in json.loads(asked[0])] == ["go", "from a hook", "and again"]
    assert result.final_output == "done"


async def test_a_hook_may_change_what_the_model_is_offered_and_how_it_is_asked() -> None:
    hooks, offered = Hooks("offer"), list[Any]()

    class Looking(Script):
        async def get_response(self, system_instructions: Any, *given: Any, **options: Any) -> Any:
            tools = [tool.name for tool in options["tools"]]
            offered.append((system_instructions, tools, options["model_settings"].temperature))
            return await super().get_response(system_instructions, *given, **options)

    def change(call: ModelCall) -> ModelCall:
        first, *others = call.messages
        messages = [type(first)(role="system", content="be brief"), *others]
        changed = {"messages": messages, "tools": [], "settings": {**call.settings, "temperature": 0.5}}
        return type(call)(**{name: getattr(call, name) for name in call.__struct_fields__} | changed)

    hooks.before(ModelCall)(change)
    agent = Agent(name="t", instructions="be long", model=Looking([says("done")]), tools=_add())
    await HooklineRunner([hooks]).run(agent, "go", run_config=QUIET)

    assert offered == [("be brief", [], 0.5)]


async def test_a_rewritten_call_of_a_tool_with_a_policy_runs_with_its_new_arguments() -> None:
    hooks = Hooks("rewrite")
    hooks.before(ToolCall)(lambda call: call.with_args(a=40))

    async def never(ctx: Any, args: dict[str, Any], call_id: str) -> bool:
        return False

    tool = _add()[0]
    tool.needs_approval = never
    agent = Agent(name="t", model=Script([calls("add", a=1, b=2), says("done")]), tools=[tool])
    result = await HooklineRunner([hooks]).run(agent, "go", run_config=QUIET)

    assert [item.output for item in result.new_items if item.type == "tool_call_output_item"] == ["42"] or [
        item.output for item in result.new_items if item.type == "tool_call_output_item"
    ] == [42]


async def test_an_interrupt_ends_a_run_and_a_stream() -> None:
    seen = Recorder()
    hooks = Hooks("stop")
    hooks.on(BeforeToolCall)(lambda event: interrupt(event.operation_id) and None)

    async def hang() -> str:
        """Hang."""
        await asyncio.Event().wait()
        return "never"

    agent = Agent(name="t", model=Script([calls("hang")]), tools=[function_tool(hang)])
    with pytest.raises(RunStopped, match="interrupted"):
        await HooklineRunner([hooks, seen.hooks]).run(agent, "go", run_config=QUIET)
    with pytest.raises(RunStopped, match="interrupted"):
        async with HooklineRunner([hooks, seen.hooks]).stream(agent, "go", run_config=QUIET) as result:
            async for _ in result.stream_events():
                pass

    assert [each.reason for each in seen.of(OnComplete)] == ["interrupted", "interrupted"]


async def test_a_tool_may_return_a_list_that_holds_itself() -> None:
    @function_tool
    def endless() -> object:
        found: list[object] = []
        found.append(found)
        return found

    agent = Agent(name="t", model=Script([calls("endless"), says("done")]), tools=[endless])
    result = await HooklineRunner([Recorder().hooks]).run(agent, "go", run_config=QUIET)

    outputs = [item["output"] for item in result.to_input_list() if item.get("type") == "function_call_output"]
    assert outputs == ["[[...]]"]


def test_what_stops_a_run_is_of_the_sdk_and_pickles() -> None:
    stopped = pickle.loads(pickle.dumps(OpenAIRunStopped("no", "hook")))

    assert isinstance(stopped, AgentsException)
    assert isinstance(stopped, RunStopped)
    assert str(stopped) == "no"
    assert (stopped.reason, stopped.hook_id) == ("no", "hook")


def _add() -> list[FunctionTool]:
    return [function_tool(PLAIN.tools["add"])]


async def test_a_bundle_that_is_in_no_list_is_told_how_to_be_given() -> None:
    with pytest.raises(HookDefinitionError, match="give a list of bundles"):
        HooklineRunner(Hooks("alone"))  # type: ignore[arg-type]


async def test_a_tool_reads_text_that_is_no_object_as_ever() -> None:
    seen, read = Recorder(), list[str]()

    async def invoke(ctx: Any, text: str) -> str:
        read.append(text)
        return text.upper()

    lenient = FunctionTool(name="shout", description="Shout.", params_json_schema={}, on_invoke_tool=invoke)
    asks = ModelResponse(tool_calls=[ToolRequest(tool_name="shout", args="no json", tool_call_id="t1")])
    agent = Agent(name="t", model=Script([asks, says("done")]), tools=[lenient])
    await HooklineRunner([seen.hooks]).run(agent, "go", run_config=QUIET)

    assert read == ["no json"]
    assert [(each.args, each.content) for each in seen.of(AfterToolCall)] == [({}, "NO JSON")]


async def test_a_cancellation_that_a_tool_raises_itself_is_told_to_the_model_as_ever() -> None:
    @function_tool
    async def gives_up() -> str:
        raise asyncio.CancelledError("enough")

    agent = Agent(name="t", model=Script([calls("gives_up"), says("done")]), tools=[gives_up])
    bare = await Runner.run(agent, "go", run_config=QUIET)
    seen = Recorder()
    result = await HooklineRunner([seen.hooks]).run(agent, "go", run_config=QUIET)

    assert result.to_input_list() == bare.to_input_list()
    assert [each.error_type for each in seen.of(OnToolCallError)] == ["CancelledError"]


def slow_family() -> Agent[Any]:
    """An agent that calls another, which calls a tool, before it hands over to a third."""

    @function_tool
    async def slow() -> str:
        await asyncio.sleep(0)
        return "slept"

    inner = Agent(name="inner", model=Script([calls("slow", "s1"), says("inner done")]), tools=[slow])
    third = Agent(name="third", model=Script([calls("transfer_to_third", "h1"), calls("slow", "s2"), says("done")]))
    third.tools = [slow]
    first = [ToolRequest(tool_name="slow", args={}, tool_call_id="f1")]
    first.append(ToolRequest(tool_name="inner", args={"input": "go"}, tool_call_id="f2"))
    turns = [ModelResponse(tool_calls=first), calls("transfer_to_third", "h1")]
    return Agent(name="outer", model=Script(turns), tools=[slow, inner.as_tool("inner", "Ask.")], handoffs=[third])


def unpaired(seen: Recorder) -> list[str]:
    """What began in an operation of these and did not end in it."""
    told = Counter((each.operation_id, str(each.hook_type)) for each in seen.events)
    pairs = {
        "beforeStep": ["afterStep"],
        "beforeToolCall": ["afterToolCall", "onToolCallError"],
        "beforeCallAgent": ["afterCallAgent", "onCallAgentError"],
    }
    left = [
        f"{op} {name}" for op, name in told if told[op, name] != sum(told[op, each] for each in pairs.get(name, [name]))
    ]
    return left + [op for op in {each.operation_id for each in seen.events} if told[op, "onComplete"] != 1]


# The SDK itself leaves that coroutine, when it is cancelled between two turns.
@pytest.mark.filterwarnings("ignore:coroutine 'run_single_turn' was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <coroutine object run_single_turn:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("streams", [False, True], ids=["run", "stream"])
@pytest.mark.parametrize("how", ["cancel", "interrupt"])
@pytest.mark.parametrize("apart", [7, pytest.param(1, marks=pytest.mark.soak)])
async def test_a_run_that_is_ended_from_outside_is_over_in_all_its_parts(streams: bool, how: str, apart: int) -> None:
    async def play(seen: Recorder) -> None:
        runner = HooklineRunner([seen.hooks], operation_id="ended")
        if not streams:
            await runner.run(slow_family(), "go", run_config=QUIET)
            return
        async with runner.stream(slow_family(), "go", run_config=QUIET) as result:
            async for _ in result.stream_events():
                pass

    for turns in range(1, 400, apart):
        seen = Recorder(inherit=True)
        playing = asyncio.ensure_future(play(seen))
        for _ in range(turns):
            await asyncio.sleep(0)
        if playing.done() or (seen.of(OnComplete)[-1:] and not seen.of(OnComplete)[-1].parent_operation_id):
            break
        if how == "cancel":
            playing.cancel()
        else:
            interrupt("ended")
        await asyncio.gather(playing, return_exceptions=True)

        reasons = [each.reason for each in seen.of(OnComplete) if each.parent_operation_id is None]
        assert (unpaired(seen), reasons[:1]) in (([], ["interrupted"]), ([], ["done"]), ([], []))
        assert not interrupt("ended")
    assert turns > 50
    await asyncio.gather(playing, return_exceptions=True)
    gc.collect()  # what the SDK leaves is this test's, and not another one's


async def test_a_stream_that_its_consumer_cancels_is_interrupted() -> None:
    seen = Recorder()

    async with HooklineRunner([seen.hooks]).stream(agent_of(PLAIN), "go", run_config=QUIET) as result:
        async for _ in result.stream_events():
            result.cancel()

    assert [each.reason for each in seen.of(OnComplete)] == ["interrupted"]


async def test_a_stream_that_a_hook_answers_gives_the_answer_and_no_events() -> None:
    hooks, seen = Hooks("answers"), Recorder()
    hooks.before(AgentCall)(lambda call: Respond("canned"))

    result = HooklineRunner([hooks, seen.hooks]).run_streamed(agent_of(PLAIN), "go", run_config=QUIET)
    events = [event async for event in result.stream_events()]

    assert (events, result.final_output, seen.names()) == ([], "canned", ["onComplete"])


async def test_a_stream_that_a_hook_would_let_continue_fails_with_what_to_do() -> None:
    hooks, seen = Hooks("more"), Recorder()
    hooks.after(AgentCall)(lambda call, result: Continue("and again"))

    result = HooklineRunner([hooks, seen.hooks]).run_streamed(agent_of(PLAIN), "go", run_config=QUIET)
    with pytest.raises(HookUsageError, match="Use `run`"):
        _ = [event async for event in result.stream_events()]

    assert [(each.reason, each.error_type) for each in seen.of(OnComplete)] == [("error", "HookUsageError")]


@pytest.mark.parametrize("inherit", [True, False])
async def test_a_stream_inside_of_a_tool_has_the_hooks_that_go_along(*, inherit: bool) -> None:
    seen = Recorder(inherit=inherit)

    async def ask() -> str:
        """Ask another agent."""
        result = Runner.run_streamed(Agent(name="other", model=Script([says("fine")])), "go", run_config=QUIET)
        async for _ in result.stream_events():
            pass
        return str(result.final_output)

    agent = Agent(name="t", model=Script([calls("ask"), says("done")]), tools=[function_tool(ask)])
    await HooklineRunner([seen.hooks], operation_id=f"streams-{inherit}").run(agent, "go", run_config=QUIET)

    assert [each.content for each in seen.of(AfterToolCall)] == ["fine"]
    ends = [(each.agent_id, each.parent_operation_id) for each in seen.of(OnComplete)]
    assert ends == [("other", f"streams-{inherit}")] * inherit + [("t", None)]
