"""What a run looks like as a tree of spans: each kind of work by its name, its place, its attributes and its status."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind

from hookline import (
    Agent,
    AgentCall,
    AgentSession,
    Approve,
    Ask,
    BeforeToolCall,
    CompactCall,
    Continue,
    Deny,
    Hooks,
    MemoryCall,
    ModelCall,
    OnCallAgentError,
    Reject,
    Respond,
    StepCall,
    StepResult,
    SubAgentCall,
    ToolCall,
    ToolResult,
    TransientModelError,
    Usage,
    interrupt,
    tool,
)
from hookline.runtime import Compaction, InMemoryStore
from tests.otel.scenes import (
    CallbackModel,
    Scene,
    agent_of,
    ask,
    attributes,
    call,
    calls,
    error_type,
    failed,
    here,
    own,
    resume,
    run,
    says,
    status,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def scene() -> Iterator[Scene]:
    with Scene() as scene:
        yield scene


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def fail(text: str = "secret") -> str:
    raise LookupError(text)


@tool
def refuse() -> ToolResult:
    return ToolResult(content="secret", success=False)


@tool(needs_approval=True)
def pay(amount: int = 1) -> str:
    return "paid"


def adding(call_id: str = "t1") -> Any:
    return call("add", call_id, a=1, b=2)


async def test_a_run_is_a_root_with_steps_that_hold_models_and_tools(scene: Scene) -> None:
    agent = agent_of(calls(adding("t1"), adding("t2")), says(), tools=[add])

    await run(agent, hooks=[scene.tracing()])

    assert scene.tree() == (
        "invoke_agent tester",
        ("agent_step", ("chat scripted",), ("execute_tool add",), ("execute_tool add",)),
        ("agent_step", ("chat scripted",)),
    )


async def test_spans_carry_what_the_conventions_require(scene: Scene) -> None:
    agent = agent_of(calls(adding(), tokens=7, output=3), says(), tools=[add])

    result = await run(agent, hooks=[scene.tracing()])

    root, chat, tool_span = scene.one("invoke_agent"), scene.named("chat")[0], scene.one("execute_tool")
    assert [span.kind for span in (root, chat, tool_span)] == [SpanKind.INTERNAL, SpanKind.CLIENT, SpanKind.INTERNAL]
    assert attributes(root) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "tester",
        "gen_ai.request.model": "scripted",
        "gen_ai.response.finish_reasons": ("stop",),
        "hookline.operation.id": result.operation_id,
        "hookline.outcome": "done",
        "hookline.steps": 2,
        "hookline.llm_calls": 2,
        "hookline.tool_calls": 1,
    }
    assert attributes(chat) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "hookline",
        "gen_ai.request.model": "scripted",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "hookline.operation.id": result.operation_id,
    }
    assert attributes(tool_span) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": "Add two numbers.",
        "gen_ai.tool.call.id": "t1",
        "gen_ai.agent.name": "tester",
        "hookline.tool.identifier": "local",
        "hookline.operation.id": result.operation_id,
    }


async def test_a_step_says_what_it_came_to(scene: Scene) -> None:
    agent = agent_of(calls(adding("t1"), adding("t2")), says(), tools=[add])

    await run(agent, hooks=[scene.tracing()])

    wanted = "step.index", "step.type", "step.should_continue", "step.tool_calls"
    steps = scene.named("agent_step")
    assert [own(step, *wanted) for step in steps] == [(0, "call_tool", True, 2), (1, "call_llm", False, 0)]
    assert {status(span) for span in scene.spans} == {"UNSET"}


async def test_no_conversation_is_made_up_and_one_that_was_given_is_on_root_and_models(scene: Scene) -> None:
    await run(agent_of(says()), hooks=[scene.tracing()])
    await run(agent_of(says(), id="other"), hooks=[scene.tracing(conversation_id="c-1")])

    found = {span.name: attributes(span).get("gen_ai.conversation.id") for span in scene.spans[:3]}
    given = {span.name: attributes(span).get("gen_ai.conversation.id") for span in scene.spans[3:]}
    assert found == {"invoke_agent tester": None, "agent_step": None, "chat scripted": None}
    assert given == {"invoke_agent other": "c-1", "agent_step": None, "chat scripted": "c-1"}


async def test_the_tasks_of_a_session_share_its_id_as_conversation(scene: Scene) -> None:
    async with AgentSession(agent_of(says("1"), says("2")), hooks=[scene.tracing(conversation_id="no")]) as session:
        await session.run("one")
        await session.run("two")

        roots = scene.named("invoke_agent")
    assert [attributes(root)["gen_ai.conversation.id"] for root in roots] == [session.id, session.id]
    assert len({root.context.trace_id for root in roots}) == 2


async def test_user_ids_are_recorded_only_on_request_and_tenants_always(scene: Scene) -> None:
    await run(agent_of(says()), hooks=[scene.tracing()], user_id="ann", tenant_id="acme")
    await run(agent_of(says()), hooks=[scene.tracing(user_ids=True)], user_id="bob", tenant_id="acme")

    shy, open_ = scene.named("invoke_agent")
    assert "ann" not in str([dict(attributes(span)) for span in scene.spans])
    assert own(shy, "tenant.id") == own(open_, "tenant.id") == ("acme",)
    assert attributes(open_)["user.id"] == "bob"


async def test_a_sub_agent_runs_for_the_user_and_tenant_of_its_parent(scene: Scene) -> None:
    child = agent_of(says(), id="child")
    agent = agent_of(calls(ask("child")), says(), sub_agents=[child])

    await run(agent, hooks=[scene.tracing(user_ids=True)], user_id="ann", tenant_id="acme")

    assert {(attributes(root)["user.id"], *own(root, "tenant.id")) for root in scene.named("invoke_agent")} == {
        ("ann", "acme")
    }


async def test_model_settings_stand_under_the_names_of_the_conventions(scene: Scene) -> None:
    hooks = Hooks("settings")

    @hooks.before(ModelCall)
    def warm(model_call: ModelCall) -> ModelCall:
        settings = {"temperature": 0.5, "max_tokens": 9, "stop_sequences": ["a", "b"], "top_p": object(), "mine": "x"}
        return replace(model_call, settings=settings)

    await run(agent_of(says()), hooks=[scene.tracing(), hooks])

    found = {name: value for name, value in attributes(scene.one("chat")).items() if ".request." in name}
    assert found == {
        "gen_ai.request.model": "scripted",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.stop_sequences": ("a", "b"),
    }


async def test_a_model_that_hooks_have_changed_is_named(scene: Scene) -> None:
    hooks = Hooks("router")

    @hooks.before(ModelCall)
    def cheap(model_call: ModelCall) -> ModelCall:
        return replace(model_call, model="small")

    await run(agent_of(says()), hooks=[hooks, scene.tracing()])

    assert scene.tree() == ("invoke_agent tester", ("agent_step", ("chat small",)))


@pytest.mark.parametrize(
    ("option", "prefix"), [("off", None), ("hookline", "hookline.usage."), ("gen_ai", "gen_ai.usage.")]
)
async def test_tokens_are_on_the_root_only_on_request(scene: Scene, option: Any, prefix: str | None) -> None:
    child = agent_of(says(tokens=1000, output=100), id="child")
    agent = agent_of(calls(ask("child"), tokens=7, output=3), says(tokens=2, output=1), sub_agents=[child])

    await run(agent, hooks=[scene.tracing(aggregate_usage=option)])

    usage = [
        {name: value for name, value in attributes(root).items() if "usage" in name}
        for root in scene.named("invoke_agent")
    ]
    sums = [{f"{prefix}input_tokens": 9, f"{prefix}output_tokens": 4}]
    sums += [{f"{prefix}input_tokens": 1000, f"{prefix}output_tokens": 100}]
    assert usage == (sums if prefix else [{}, {}])


async def test_tokens_of_earlier_segments_are_not_counted_again(scene: Scene) -> None:
    tracing, store = scene.tracing(aggregate_usage="hookline"), InMemoryStore()
    agent = agent_of(calls(call("pay"), tokens=7, output=3), says(tokens=2, output=1), tools=[pay])

    paused = await run(agent, hooks=[tracing], store=store)
    await resume(agent, paused.operation_id, Approve("t1"), hooks=[tracing], store=store)

    wanted = "usage.input_tokens", "usage.output_tokens", "llm_calls"
    assert [own(root, *wanted) for root in scene.named("invoke_agent")] == [(7, 3, 1), (2, 1, 2)]


async def test_every_span_says_its_openinference_kind_on_request(scene: Scene) -> None:
    turns = calls(adding(), tokens=99), calls(adding("t2"), tokens=99), says()
    child = agent_of(*turns, id="child", tools=[add], compaction=compaction())
    agent = agent_of(calls(ask("child")), calls(call("pay")), sub_agents=[child], tools=[pay])

    await run(agent, hooks=[scene.tracing(openinference=True)])

    kinds = {span.name.split(" ")[0]: attributes(span).get("openinference.span.kind") for span in scene.spans}
    assert kinds == {
        "invoke_agent": "AGENT",
        "agent_step": "CHAIN",
        "chat": "LLM",
        "execute_tool": "TOOL",
        "call_agent": "CHAIN",
        "compact_context": "CHAIN",
        "human_intervention": "CHAIN",
    }


async def test_model_spans_can_be_left_to_the_models_library(scene: Scene) -> None:
    async def answer(model_call: ModelCall) -> Any:
        with scene.tracer.start_as_current_span("chat theirs"):
            return says()

    await run(agent_of(model=CallbackModel(answer)), hooks=[scene.tracing(model_spans=False)])

    assert scene.tree() == ("invoke_agent tester", ("agent_step", ("chat theirs",)))


async def test_retries_of_a_model_call_are_one_span(scene: Scene) -> None:
    agent = agent_of(TransientModelError("busy"), TransientModelError("busy"), says())

    await run(agent, hooks=[scene.tracing()])

    assert scene.tree() == ("invoke_agent tester", ("agent_step", ("chat scripted",)))
    assert status(scene.one("chat")) == "UNSET"


async def test_a_failing_model_is_the_failure_of_chat_step_and_root_without_its_words(scene: Scene) -> None:
    result = await run(agent_of(calls(adding()), LookupError("secret"), tools=[add]), hooks=[scene.tracing()])

    assert result.reason == "error"
    assert [(span.name, error_type(span)) for span in scene.spans if failed(span)] == [
        ("invoke_agent tester", "LookupError"),
        ("agent_step", "LookupError"),
        ("chat scripted", "LookupError"),
    ]
    assert own(scene.one("invoke_agent"), "outcome") == ("error",)
    assert all(span.status.description is None and not span.events for span in scene.spans)
    (told,) = scene.logs("hookline.error")
    assert told.span_id == scene.one("invoke_agent").context.span_id


@pytest.mark.parametrize(
    ("calling", "type_"),
    [
        (call("fail"), "LookupError"),
        (call("refuse"), "tool_error"),
        (call("add", a="x"), "ToolArgumentsError"),
        (call("nowhere"), "UnknownToolError"),
    ],
    ids=["raises", "says so", "wrong arguments", "unknown"],
)
async def test_a_failing_tool_fails_alone(scene: Scene, calling: Any, type_: str) -> None:
    await run(agent_of(calls(calling, adding("t2")), says(), tools=[add, fail, refuse]), hooks=[scene.tracing()])

    assert [(attributes(span)["gen_ai.tool.call.id"], error_type(span)) for span in scene.spans if failed(span)] == [
        ("t1", type_)
    ]
    assert "secret" not in str([(dict(attributes(span)), span.status.description) for span in scene.spans])


async def test_mocked_calls_are_visible_and_no_errors(scene: Scene) -> None:
    hooks = Hooks("fake")

    @hooks.on(BeforeToolCall, tool="*/add", id="observer")
    def observe(event: BeforeToolCall) -> None:
        event.mock("3")

    @hooks.before(ToolCall, tool="*/fail", id="interceptor")
    def answer(tool_call: ToolCall) -> Respond:
        return Respond("fine")

    @hooks.around(ToolCall, tool="*/refuse", id="wrapper")
    async def instead(tool_call: ToolCall, call_next: Any) -> ToolResult:
        return ToolResult(content="fine")

    agent = agent_of(calls(adding(), call("fail", "t2"), call("refuse", "t3")), says(), tools=[add, fail, refuse])
    await run(agent, hooks=[hooks, scene.tracing()])

    found = {span.name: (own(span, "tool.mocked", "tool.answered_by"), status(span)) for span in scene.spans}
    assert found["execute_tool add"] == ((True, "observer"), "UNSET")
    assert found["execute_tool fail"] == ((True, "interceptor"), "UNSET")
    assert found["execute_tool refuse"] == ((True, "wrapper"), "UNSET")
    assert found["agent_step"] == ((None, None), "UNSET")


async def test_a_mock_that_raises_is_the_failure_of_its_call(scene: Scene) -> None:
    hooks = Hooks("fault")

    @hooks.on(BeforeToolCall, id="fault")
    def fault(event: BeforeToolCall) -> None:
        event.mock(TimeoutError("secret"))

    await run(agent_of(calls(adding()), says(), tools=[add]), hooks=[scene.tracing(), hooks])

    span = scene.one("execute_tool")
    assert (status(span), error_type(span), own(span, "tool.mocked", "tool.answered_by")) == (
        "ERROR",
        "TimeoutError",
        (True, "fault"),
    )


@pytest.mark.parametrize(
    ("limit", "reason"), [({"max_steps": 1}, "max_steps"), ({"cost_limit_usd": 0.1}, "cost_limit")]
)
async def test_a_limit_is_an_outcome_and_no_error(scene: Scene, limit: dict[str, Any], reason: str) -> None:
    dear = replace(calls(adding()), usage=Usage(cost_usd=1.0))
    await run(agent_of(dear, says(), tools=[add], **limit), hooks=[scene.tracing()])

    assert own(scene.one("invoke_agent"), "outcome") == (reason,)
    assert {status(span) for span in scene.spans} == {"UNSET"}


async def test_a_pause_is_the_request_of_a_person_up_to_the_end_of_the_step(scene: Scene) -> None:
    agent = agent_of(calls(call("pay", "t1"), call("pay", "t2"), adding("t3")), tools=[pay, add])

    await run(agent, hooks=[scene.tracing()])

    assert scene.tree() == (
        "invoke_agent tester",
        ("agent_step", ("chat scripted",), ("execute_tool add",), ("human_intervention",)),
    )
    asked = own(scene.one("human_intervention"), "human.kind", "human.pending_count", "outcome", "span.truncated")
    assert asked == ("tool_approval", 2, "waiting_for_human", None)
    assert own(scene.one("invoke_agent"), "outcome") == ("waiting_for_human",)
    assert {status(span) for span in scene.spans} == {"UNSET"}


@pytest.mark.parametrize(
    ("decision", "word", "outcome"),
    [
        (Approve("t1"), "approve", "done"),
        (Reject("t1", "secret", and_continue=True), "rejectAndContinue", "done"),
        (Reject("t1", "secret"), "reject", "interrupted"),
    ],
)
async def test_a_decision_is_a_moment_in_the_segment_that_goes_on(
    scene: Scene, decision: Any, word: str, outcome: str
) -> None:
    agent, tracing = agent_of(calls(call("pay")), says(), tools=[pay]), scene.tracing()
    store = InMemoryStore()

    paused = await run(agent, hooks=[tracing], store=store)
    await resume(agent, paused.operation_id, decision, hooks=[tracing], store=store)

    root, moment = scene.named("invoke_agent")[1], scene.named("human_intervention")[1]
    assert own(root, "outcome", "resumed") == (outcome, True)
    assert own(moment, "human.decision", "human.kind") == (word, "tool_approval")
    assert attributes(moment)["gen_ai.tool.call.id"] == "t1"
    assert own(moment, "human.wait.duration")[0] >= 0
    assert scene.parent(moment) is scene.named("agent_step")[1]
    assert len(scene.named("human_intervention")) == 2
    assert {status(span) for span in scene.spans} == {"UNSET"}
    assert "secret" not in str([dict(attributes(span)) for span in scene.spans])


def compaction(summarize: Any = None) -> Compaction:
    async def short(messages: Any) -> str:
        return "short"

    return Compaction(max_tokens=10, summarize=summarize or short)


async def test_a_compaction_stands_before_the_model_call_that_it_is_for(scene: Scene) -> None:
    agent = agent_of(
        calls(adding(), tokens=99), calls(adding("t2"), tokens=99), says(), tools=[add], compaction=compaction()
    )

    await run(agent, hooks=[scene.tracing()])

    step = ("agent_step", ("compact_context",), ("chat scripted",))
    assert scene.tree()[3] == step
    before, after, tokens = own(
        scene.named("compact_context")[-1],
        "compaction.messages_before",
        "compaction.messages_after",
        "compaction.tokens_before",
    )
    assert (before > after, tokens) == (True, 99)
    assert [attributes(chat).get("gen_ai.conversation.compacted") for chat in scene.named("chat")][::2] == [None, True]


async def test_a_failed_compaction_fails_alone(scene: Scene) -> None:
    async def broken(messages: Any) -> str:
        raise LookupError("secret")

    agent = agent_of(
        calls(adding(), tokens=99), calls(adding("t2"), tokens=99), says(), tools=[add], compaction=compaction(broken)
    )
    await run(agent, hooks=[scene.tracing()])

    assert {(span.name, error_type(span)) for span in scene.spans if failed(span)} == {
        ("compact_context", "LookupError")
    }
    assert not [chat for chat in scene.named("chat") if "gen_ai.conversation.compacted" in attributes(chat)]


# Denials.

PLACES: dict[type[Any], tuple[str, str]] = {
    AgentCall: ("invoke_agent", "invoke_agent"),
    StepCall: ("invoke_agent", "invoke_agent"),
    ModelCall: ("invoke_agent", "invoke_agent"),
    ToolCall: ("execute_tool", "agent_step"),
    SubAgentCall: ("call_agent", "agent_step"),
    CompactCall: ("compact_context", "compact_context"),
}
"""On what kind of span a denial is told: of a call that did not happen, and of one whose result is withheld."""


def busy_agent() -> Agent:
    """Its run makes a call of every class."""
    turns = [calls(adding("t1"), ask("child", "t2"), tokens=99), calls(adding("t3"), tokens=99), says()]
    child = agent_of(says(), id="child")
    return agent_of(*turns, tools=[add], sub_agents=[child], compaction=compaction())


def policy(kind: str, point: type[Any], answer: Callable[[], Any]) -> Hooks:
    """One hook of a kind, which does the same with each call."""
    hooks = Hooks("policy")
    if kind in ("before", "guard"):
        getattr(hooks, kind)(point, id="no")(lambda _: answer())
    elif kind == "after":
        hooks.after(point, id="no")(lambda _, __: answer())
    else:

        async def around(given: Any, call_next: Any) -> Any:
            if kind == "around-after":
                await call_next(given)
            return answer()

        hooks.around(point, id="no")(around)
    return hooks


def denials(scene: Scene) -> list[tuple[str, Any]]:
    """Where a denial is told, and what is said of it, on spans and in their events."""
    found: list[tuple[str, Any]] = []
    for span in scene.spans:
        for holder in (attributes(span), *(event.attributes or {} for event in span.events)):
            said = {key: value for key, value in holder.items() if key.startswith("hookline.denial.")}
            if said:
                found.append((span.name.split(" ")[0], said))
    return found


@pytest.mark.parametrize("kind", ["before", "guard", "after", "around", "around-after"])
@pytest.mark.parametrize("point", list(PLACES), ids=lambda point: point.__name__)
async def test_a_denial_says_which_hook_and_is_no_error(scene: Scene, point: type[Any], kind: str) -> None:
    hooks = policy(kind, point, lambda: Deny("secret"))

    await run(busy_agent(), hooks=[scene.tracing(), hooks])

    told = denials(scene)
    assert {place for place, _ in told} >= {PLACES[point]["after" in kind]}
    assert {tuple(said.items()) for _, said in told} == {
        (
            ("hookline.denial.hook_id", "no"),
            ("hookline.denial.call", point.__name__),
            ("hookline.denial.cause", "decision"),
        )
    }
    assert {status(span) for span in scene.spans} == {"UNSET"}
    assert "secret" not in everything(scene)


@pytest.mark.parametrize("kind", ["before", "guard", "after", "around", "around-after"])
@pytest.mark.parametrize("point", list(PLACES), ids=lambda point: point.__name__)
async def test_a_failed_hook_is_the_cause_of_its_denial(scene: Scene, point: type[Any], kind: str) -> None:
    def broken() -> None:
        raise LookupError("secret")

    await run(busy_agent(), hooks=[scene.tracing(), policy(kind, point, broken)])

    told = denials(scene)
    assert {place for place, _ in told} >= {PLACES[point]["after" in kind]}
    assert {(said["hookline.denial.hook_id"], said["hookline.denial.cause"]) for _, said in told} == {
        ("no", "LookupError")
    }
    assert not [span.name for span in scene.spans if failed(span)]
    assert "secret" not in everything(scene)


def everything(scene: Scene) -> str:
    """All text that was exported with spans."""
    return "".join(span.to_json() for span in scene.spans)


async def test_a_denied_tool_call_is_one_of_a_run_that_goes_on(scene: Scene) -> None:
    hooks = policy("guard", ToolCall, lambda: Deny("no"))

    await run(agent_of(calls(adding()), says(), tools=[add]), hooks=[scene.tracing(), hooks])

    assert own(scene.one("execute_tool"), "tool.outcome", "denial.call") == ("denied", "ToolCall")
    assert own(scene.one("invoke_agent"), "outcome", "denial.call") == ("done", None)


async def test_a_denial_that_stops_the_run_is_told_on_its_root_too(scene: Scene) -> None:
    hooks = policy("guard", ToolCall, lambda: Deny("no", stop=True))

    await run(agent_of(calls(adding()), says(), tools=[add]), hooks=[scene.tracing(), hooks])

    assert own(scene.one("execute_tool"), "tool.outcome", "denial.hook_id") == ("denied", "no")
    assert own(scene.one("invoke_agent"), "outcome", "denial.hook_id", "denial.call") == (
        "interrupted",
        "no",
        "ToolCall",
    )


async def test_parallel_denials_are_told_on_their_own_calls(scene: Scene) -> None:
    hooks = Hooks("policy")

    @hooks.guard(ToolCall, tool="*/add", id="first")
    async def slow(tool_call: ToolCall) -> Deny:
        await anyio.lowlevel.checkpoint()
        return Deny("a")

    @hooks.guard(ToolCall, tool="*/fail", id="second")
    async def broken(tool_call: ToolCall) -> None:
        raise KeyError("b")

    agent = agent_of(calls(adding("t1"), call("fail", "t2"), call("refuse", "t3")), says(), tools=[add, fail, refuse])
    await run(agent, hooks=[scene.tracing(), hooks])

    found = {span.name: own(span, "denial.hook_id", "denial.cause") for span in scene.named("execute_tool")}
    assert found == {
        "execute_tool add": ("first", "decision"),
        "execute_tool fail": ("second", "KeyError"),
        "execute_tool refuse": (None, None),
    }


async def test_a_withheld_tool_result_leaves_the_tool_as_it_was(scene: Scene) -> None:
    hooks = policy("after", ToolCall, lambda: Deny("no"))

    await run(agent_of(calls(adding()), says(), tools=[add]), hooks=[scene.tracing(), hooks])

    assert own(scene.one("execute_tool"), "tool.outcome", "denial.hook_id") == (None, None)
    (told,) = scene.named("agent_step")[0].events
    assert (told.name, told.attributes["hookline.denial.call"]) == ("hookline.denied", "ToolCall")


async def test_a_question_that_nobody_can_be_asked_is_a_denial(scene: Scene) -> None:
    await run(busy_agent(), hooks=[scene.tracing(), policy("guard", ModelCall, lambda: Ask("may I?"))])

    assert own(scene.one("invoke_agent"), "outcome", "denial.hook_id", "denial.cause") == (
        "interrupted",
        "no",
        "decision",
    )


async def test_a_question_about_a_tool_call_is_a_pause_and_no_denial(scene: Scene) -> None:
    hooks, store = policy("guard", ToolCall, lambda: Ask("may I?")), InMemoryStore()
    agent, tracing = agent_of(calls(adding()), says(), tools=[add]), scene.tracing()

    paused = await run(agent, hooks=[tracing, hooks], store=store)
    await resume(agent, paused.operation_id, Approve("t1"), hooks=[tracing, hooks], store=store)

    assert scene.trees() == [
        ("invoke_agent tester", ("agent_step", ("chat scripted",), ("human_intervention",))),
        (
            "invoke_agent tester",
            ("agent_step", ("human_intervention",), ("execute_tool add",)),
            ("agent_step", ("chat scripted",)),
        ),
    ]
    assert not denials(scene)


async def test_a_run_that_hooks_continue_stays_one_segment(scene: Scene) -> None:
    hooks = Hooks("more")

    @hooks.after(AgentCall)
    def once(agent_call: AgentCall, result: Any) -> Continue | None:
        return Continue("again") if result.output == "one" else None

    await run(agent_of(says("one"), says("two")), hooks=[scene.tracing(), hooks])

    step = ("agent_step", ("chat scripted",))
    assert scene.tree() == ("invoke_agent tester", step, step)


async def test_a_run_that_a_hook_answers_is_a_root_alone(scene: Scene) -> None:
    await run(busy_agent(), hooks=[scene.tracing(), policy("before", AgentCall, lambda: Respond("fine"))])

    assert scene.tree() == ("invoke_agent tester",)
    assert own(scene.one("invoke_agent"), "outcome") == ("done",)


async def test_a_call_that_a_hook_turns_into_another_tools_is_named_after_that(scene: Scene) -> None:
    hooks = Hooks("router")

    @hooks.before(ToolCall, tool="*/fail")
    def turn(tool_call: ToolCall) -> ToolCall:
        return replace(tool_call, tool_name="add", args={"a": 1, "b": 2})

    @tool
    def where() -> str:
        return here()

    agent = agent_of(calls(call("fail"), call("where", "t2")), says(), tools=[add, fail, where])
    await run(agent, hooks=[scene.tracing(), hooks])

    assert scene.tree()[1] == ("agent_step", ("chat scripted",), ("execute_tool where",), ("execute_tool add",)) or (
        scene.tree()[1] == ("agent_step", ("chat scripted",), ("execute_tool add",), ("execute_tool where",))
    )


# Interrupts.


@pytest.mark.parametrize("place", ["model", "tool", "sub-agent", "compaction"])
async def test_an_interrupt_is_an_outcome_and_no_error(scene: Scene, place: str) -> None:
    async def hang(*_: Any) -> Any:
        interrupt("op")
        await anyio.sleep_forever()

    @tool
    async def hanging() -> str:
        return await hang()

    child = agent_of(model=CallbackModel(hang), id="child")
    agents = {
        "model": agent_of(model=CallbackModel(hang)),
        "tool": agent_of(calls(call("hanging"), adding("t2")), tools=[hanging, add]),
        "sub-agent": agent_of(calls(ask("child")), sub_agents=[child]),
        "compaction": agent_of(
            calls(adding(), tokens=99), calls(adding(), tokens=99), tools=[add], compaction=compaction(hang)
        ),
    }
    result = await run(agents[place], hooks=[scene.tracing()], operation_id="op")

    assert result.reason == "interrupted"
    assert {status(span) for span in scene.spans} == {"UNSET"}
    assert {own(root, "outcome") for root in scene.named("invoke_agent")} == {("interrupted",)}
    assert own(scene.named("agent_step")[-1], "outcome") == ("interrupted",)
    assert not [span for span in scene.spans if "hookline.span.truncated" in attributes(span)]
    stopped = {
        "model": scene.named("chat")[-1:],
        "tool": [span for span in scene.spans if span.name == "execute_tool hanging"],
        "sub-agent": scene.named("call_agent"),
        "compaction": scene.named("compact_context"),
    }[place]
    assert [own(span, "tool.outcome" if place == "tool" else "outcome") for span in stopped] == [("interrupted",)]


# Sub-agents.


async def test_a_sub_agents_run_stands_under_its_call(scene: Scene) -> None:
    child = agent_of(says(), id="child")
    result = await run(agent_of(calls(ask("child")), says(), sub_agents=[child]), hooks=[scene.tracing()])

    assert scene.tree() == (
        "invoke_agent tester",
        (
            "agent_step",
            ("chat scripted",),
            ("call_agent child", ("invoke_agent child", ("agent_step", ("chat scripted",)))),
        ),
        ("agent_step", ("chat scripted",)),
    )
    called, root = scene.one("call_agent"), scene.named("invoke_agent")[1]
    assert own(called, "call_agent.callee", "outcome") == ("child", "done")
    assert own(called, "sub_operation.id") == own(root, "operation.id")
    assert own(root, "parent_operation.id") == (result.operation_id,)


async def test_a_failing_sub_agent_fails_its_call_and_not_the_run(scene: Scene) -> None:
    child = agent_of(LookupError("secret"), id="child")
    await run(agent_of(calls(ask("child")), says(), sub_agents=[child]), hooks=[scene.tracing()])

    assert [(span.name, error_type(span)) for span in scene.spans if failed(span)] == [
        ("call_agent child", "LookupError"),
        ("invoke_agent child", "LookupError"),
        ("agent_step", "LookupError"),
        ("chat scripted", "LookupError"),
    ]
    assert own(scene.one("call_agent"), "sub_operation.id") == own(scene.named("invoke_agent")[1], "operation.id")
    assert "secret" not in everything(scene)


async def test_a_paused_sub_agent_is_no_error_of_its_caller(scene: Scene) -> None:
    child = agent_of(calls(call("pay")), id="child", tools=[pay])
    await run(agent_of(calls(ask("child")), says(), sub_agents=[child]), hooks=[scene.tracing()])

    called, root = scene.one("call_agent"), scene.named("invoke_agent")[1]
    assert own(called, "outcome") == own(root, "outcome") == ("waiting_for_human",)
    assert not [span.name for span in scene.spans if failed(span)]


async def test_a_sub_agent_that_is_called_wrongly_never_runs(scene: Scene) -> None:
    child = agent_of(says(), id="child")
    wrong = call("child", "t1", toolset="agent", instruction=7)
    await run(agent_of(calls(wrong), says(), sub_agents=[child]), hooks=[scene.tracing()])

    assert scene.tree()[1] == ("agent_step", ("chat scripted",), ("call_agent child",))
    assert error_type(scene.one("call_agent")) in ("ToolArgumentsError", "_OTHER")


async def test_parallel_calls_of_one_sub_agent_hold_their_own_runs(scene: Scene) -> None:
    gates = {name: anyio.Event() for name in ("one", "two", "three")}
    order = {"one": "three", "two": "one"}

    async def answer(model_call: ModelCall) -> Any:
        said = model_call.messages[-1].content
        if said in order:
            await gates[order[said]].wait()
        gates[said].set()
        if said == "two":
            raise LookupError
        return says(said)

    child = agent_of(model=CallbackModel(answer), id="child")
    asked = [ask("child", f"t{at}", name) for at, name in enumerate(gates)]
    await run(agent_of(calls(*asked), says(), sub_agents=[child]), hooks=[scene.tracing(capture_content=True)])

    for called in scene.named("call_agent"):
        (root,) = [span for span in scene.named("invoke_agent") if scene.parent(span) is called]
        said = attributes(called)["hookline.call_agent.instruction"]
        assert f'"{said}"' in attributes(root)["gen_ai.input.messages"]
        assert own(called, "sub_operation.id") == own(root, "operation.id")
        assert failed(called) == failed(root) == (said == "two")


async def test_a_call_that_fails_at_once_is_told_from_one_whose_run_has_not_begun(scene: Scene) -> None:
    failed_already = anyio.Event()

    class SlowStore(InMemoryStore):
        async def save(self, state: Any, *, expected_version: int | None) -> None:
            if state.agent_id == "child" and expected_version is None:
                await failed_already.wait()
            await super().save(state, expected_version=expected_version)

    hooks = Hooks("watch")
    hooks.on(OnCallAgentError)(lambda event: failed_already.set())
    wrong = call("child", "t2", toolset="agent", instruction=7)
    agent = agent_of(calls(ask("child", "t1"), wrong), says(), sub_agents=[agent_of(says(), id="child")])
    await run(agent, hooks=[scene.tracing(), hooks], store=SlowStore())

    good = [span for span in scene.named("call_agent") if not failed(span)]
    assert len(good) == 1
    assert [scene.parent(root) for root in scene.named("invoke_agent")] == [None, good[0]]


async def test_sub_agents_may_be_nested_three_deep_each_with_tools(scene: Scene) -> None:
    scene.traces = 1
    third = agent_of(calls(adding()), says(), id="third", tools=[add])
    second = agent_of(calls(ask("third"), adding("t2")), says(), id="second", tools=[add], sub_agents=[third])
    first = agent_of(calls(ask("second")), says(), id="first", sub_agents=[second])

    await run(agent_of(calls(ask("first")), says(), sub_agents=[first]), hooks=[scene.tracing()])

    last = ("agent_step", ("chat scripted",))

    def nested(name: str, *work: Any) -> Any:
        return (f"invoke_agent {name}", ("agent_step", ("chat scripted",), *work), last)

    def called(name: str, *work: Any) -> Any:
        return (f"call_agent {name}", nested(name, *work))

    used = ("execute_tool add",)
    deepest = called("third", used)
    second_step = scene.tree()[1][2][1][1][2][1][1]
    assert sorted(second_step[2:], key=str) == sorted([deepest, used], key=str)
    assert scene.tree()[0] == "invoke_agent tester"
    assert [root.name for root in scene.named("invoke_agent")] == [
        "invoke_agent tester",
        "invoke_agent first",
        "invoke_agent second",
        "invoke_agent third",
    ]


async def test_a_bundle_that_agent_and_caller_both_give_traces_once(scene: Scene) -> None:
    tracing = scene.tracing()
    child = agent_of(says(), id="child", hooks=[tracing])
    agent = agent_of(calls(ask("child")), says(), sub_agents=[child], hooks=[tracing])

    await run(agent, hooks=[tracing, tracing])

    assert [span.name for span in scene.spans].count("invoke_agent tester") == 1
    assert [span.name for span in scene.spans].count("invoke_agent child") == 1
    assert len(scene.named("agent_step")) == 3


async def test_two_bundles_with_back_ends_of_their_own_see_the_same_whole_tree(scene: Scene) -> None:
    class SlowStore(InMemoryStore):
        async def save(self, state: Any, *, expected_version: int | None) -> None:
            if state.agent_id == "child" and state.messages[-1].content == "one" and expected_version is None:
                await second.wait()
            await super().save(state, expected_version=expected_version)

    second = anyio.Event()

    async def answer(model_call: ModelCall) -> Any:
        said = model_call.messages[-1].content
        if said == "two":
            second.set()
        return says(said)

    child = agent_of(model=CallbackModel(answer), id="child")
    agent = agent_of(calls(ask("child", "t1", "one"), ask("child", "t2", "two")), says(), sub_agents=[child])
    with Scene() as other:
        bundles = [each.tracing(capture_content=True) for each in (scene, other)]
        await run(agent, hooks=bundles, store=SlowStore())

        for each in (scene, other):
            assert each.tree()[0] == "invoke_agent tester"
            for called in each.named("call_agent"):
                (root,) = [span for span in each.named("invoke_agent") if each.parent(span) is called]
                said = attributes(called)["hookline.call_agent.instruction"]
                assert f'"{said}"' in attributes(root)["gen_ai.input.messages"]


async def test_a_run_inside_of_a_callers_span_belongs_to_its_trace(scene: Scene) -> None:
    scene.traces = 1
    with scene.tracer.start_as_current_span("request"):
        await run(agent_of(says()), hooks=[scene.tracing()])
        assert here() == "request"

    assert scene.tree() == ("request", ("invoke_agent tester", ("agent_step", ("chat scripted",))))


async def test_ids_and_names_from_models_stay_within_bounds(scene: Scene) -> None:
    name = "x" * 5000 + "\ud800"
    await run(agent_of(calls(call(name, "i" * 5000)), says(), tools=[add]), hooks=[scene.tracing()])

    span = scene.one("execute_tool")
    assert len(span.name) < 400
    assert all(len(value) < 400 for value in attributes(span).values() if isinstance(value, str))
    assert error_type(span) == "UnknownToolError"


@pytest.mark.parametrize("kind", ["before", "around"])
@pytest.mark.parametrize(
    ("point", "answer"),
    [
        (AgentCall, "fine"),
        (StepCall, StepResult(should_continue=False, content="fine")),
        (ModelCall, says("fine")),
        (SubAgentCall, "fine"),
        (CompactCall, "fine"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_call_that_a_hook_answers_shows_which_hook_did(
    scene: Scene, point: type[Any], answer: Any, kind: str
) -> None:
    hooks = Hooks("cache")

    async def instead(given: Any, call_next: Any) -> Respond:
        return Respond(answer)

    if kind == "before":
        hooks.before(point, id="the-answering-hook")(lambda _: Respond(answer))
    else:
        hooks.around(point, id="the-answering-hook")(instead)
    await run(busy_agent(), hooks=[scene.tracing(), hooks])

    assert "the-answering-hook" in everything(scene)
    assert not [span.name for span in scene.spans if failed(span)]


async def test_what_a_session_may_not_remember_shows_which_hook_said_so(scene: Scene) -> None:
    hooks = Hooks("policy")
    hooks.guard(MemoryCall, id="the-forgetful-hook")(lambda _: Deny("secret"))

    async with AgentSession(agent_of(says()), hooks=[scene.tracing(), hooks]) as session:
        await session.run("hi")

    assert "the-forgetful-hook" in everything(scene)
    assert "secret" not in everything(scene)
    assert not [span.name for span in scene.spans if failed(span)]


@pytest.mark.parametrize("first", ["sampled out", "sampled"])
async def test_a_bundle_that_samples_a_run_out_samples_its_sub_agents_out(scene: Scene, first: str) -> None:
    child = agent_of(says(), id="child")
    agent = agent_of(calls(ask("child")), says(), sub_agents=[child])
    with Scene(sampler=ParentBased(ALWAYS_OFF)) as silent:
        bundles = [silent.tracing(), scene.tracing()]
        await run(agent, hooks=bundles if first == "sampled out" else bundles[::-1])

        assert silent.spans == []
    assert [span.name for span in scene.named("invoke_agent")] == ["invoke_agent tester", "invoke_agent child"]
    assert len(scene.trees()) == 1


async def test_a_sub_agent_may_be_traced_alone(scene: Scene) -> None:
    child = agent_of(says(), id="child", hooks=[scene.tracing()])
    result = await run(agent_of(calls(ask("child")), says(), sub_agents=[child]))

    assert scene.tree() == ("invoke_agent child", ("agent_step", ("chat scripted",)))
    assert own(scene.one("invoke_agent"), "parent_operation.id") == (result.operation_id,)


async def test_a_run_in_a_tool_is_under_the_tool_in_each_of_two_back_ends(scene: Scene) -> None:
    with Scene() as other:
        bundles = [scene.tracing(), other.tracing()]

        @tool
        async def nested() -> str:
            return (await run(agent_of(says(), id="inner"), hooks=bundles)).output

        await run(agent_of(calls(call("nested")), says(), tools=[nested]), hooks=bundles)

        inner = ("invoke_agent inner", ("agent_step", ("chat scripted",)))
        for each in (scene, other):
            assert each.tree()[1] == ("agent_step", ("chat scripted",), ("execute_tool nested", inner))
