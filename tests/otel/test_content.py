"""What people and models said: off unless asked for, where it was asked for, by the conventions' schema, cut readably."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from opentelemetry.util.genai.types import ReasoningPart, TextPart, ToolCallRequestPart, ToolCallResponsePart

from hookline import Approve, Deny, Hooks, Message, ModelCall, Reject, ToolCall, exec_agent, resume_agent, tool
from hookline.errors import HookUsageError
from hookline.otel import TracingHooks
from hookline.otel._content import Content, message_parts
from hookline.runtime import Compaction
from tests.otel.capture import Sink, agent_of, asks, call, calls, content, failed, says
from tests.tables import for_each

pytestmark = pytest.mark.anyio

VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
DETAILS = "gen_ai.client.inference.operation.details"
EXCEPTION = "gen_ai.client.operation.exception"
REQUEST = ("gen_ai.input.messages", "gen_ai.system_instructions", "gen_ai.tool.definitions")
CONTENT = (*REQUEST, "gen_ai.output.messages", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result")
PARTS = {
    "text": TextPart,
    "reasoning": ReasoningPart,
    "tool_call": ToolCallRequestPart,
    "tool_call_response": ToolCallResponsePart,
}


@tool
def look(key: str = "k", deep: dict[str, Any] | None = None) -> str:
    """Look something up.

    Args:
        key: What to look for.
    """
    return f"found {key[:40]}"


def looker(*turns: Any, **parts: Any) -> Any:
    """An agent with a tool, which it asks twice."""
    turns = turns or (calls(call("look", key="first"), content="I look", reasoning="pondering"), says("It is there."))
    return agent_of(*turns, instructions="Be kind.", tools=[look], **parts)


def content_of(holder: Any) -> set[str]:
    return {name for name in holder.attributes if name in CONTENT}


def assert_messages(messages: Any, *, output: bool = False) -> None:
    """These are messages by the conventions' schema."""
    assert isinstance(messages, list)
    for message in messages:
        assert message["role"] in ("user", "assistant", "tool")
        assert set(message) == {"role", "parts", *(["finish_reason"] if output else [])}
        if output:
            assert isinstance(message["finish_reason"], str)
        assert isinstance(message["parts"], list)
        for part in message["parts"]:
            assert isinstance(part["type"], str)
            if part["type"] in PARTS:  # any other is a generic part, of which nothing more is asked
                assert set(part) == set(PARTS[part["type"]].__dataclass_fields__)
            assert isinstance(part.get("content", ""), str)
            assert isinstance(part.get("name", ""), str)
            assert isinstance(part.get("id", ""), str | None)


# Whether.


async def test_nothing_that_was_said_is_recorded_unless_asked_for():
    sink = Sink()

    await exec_agent(looker(), "Where is it?", hooks=[sink.tracing(), sink.metrics()])

    assert not any(content_of(span) for span in sink.spans)
    assert sink.logs == []
    for said in (b"Where is it?", b"Be kind", b"I look", b"pondering", b"first", b"found", b"It is there"):
        assert said not in sink.exported()


@pytest.mark.parametrize(
    ("value", "spans", "events"),
    [
        ("", False, False),
        ("NO_CONTENT", False, False),
        ("false", False, False),
        ("False", False, False),
        ("true", True, False),
        ("True", True, False),
        ("SPAN_ONLY", True, False),
        ("span_only", True, False),
        (" SPAN_ONLY ", True, False),
        ("EVENT_ONLY", False, True),
        ("SPAN_AND_EVENT", True, True),
    ],
)
async def test_the_environment_says_where_it_is_recorded(monkeypatch, value, spans, events):
    monkeypatch.setenv(VARIABLE, value)
    sink = Sink()

    await exec_agent(looker(), "Where?", hooks=[sink.tracing()])

    assert all(
        content_of(span) == ({*REQUEST, "gen_ai.output.messages"} if spans else set()) for span in sink.named("chat")
    )
    assert [content_of(record) for record in sink.logs] == (
        [{*REQUEST, "gen_ai.output.messages"}] * 2 if events else []
    )


async def test_an_unknown_mode_records_nothing_and_is_told_once(monkeypatch, caplog, anyio_backend_name):
    monkeypatch.setenv(VARIABLE, f"only_on_{anyio_backend_name}")
    sink = Sink()
    with caplog.at_level(logging.WARNING):
        hooks = [sink.tracing(id=f"tracing{number}") for number in range(3)]

    await exec_agent(looker(), "Where?", hooks=hooks[:1])

    assert not any(content_of(span) for span in sink.spans)
    (warning,) = [record for record in caplog.records if VARIABLE in record.getMessage()]
    assert f"only_on_{anyio_backend_name}" in warning.getMessage()
    assert "SPAN_AND_EVENT" in warning.getMessage()


@pytest.mark.parametrize(
    ("variable", "given", "spans", "events"),
    [
        ("SPAN_AND_EVENT", False, False, False),
        ("SPAN_AND_EVENT", "NO_CONTENT", False, False),
        ("SPAN_AND_EVENT", "EVENT_ONLY", False, True),
        ("NO_CONTENT", True, True, False),
        ("nonsense of mine", True, True, False),
        ("true", "event_only", False, True),
    ],
)
async def test_the_argument_wins_over_the_environment(monkeypatch, caplog, variable, given, spans, events):
    monkeypatch.setenv(VARIABLE, variable)
    sink = Sink()

    await exec_agent(looker(), "Where?", hooks=[sink.tracing(capture_content=given)])

    assert all(bool(content_of(span)) == spans for span in sink.named("chat"))
    assert bool(sink.logs) == events
    assert VARIABLE not in caplog.text


@for_each("given", ["", "yes", "spans", 1, 0, b"true", ["SPAN_ONLY"]])
def test_an_argument_that_is_no_mode_is_refused_with_those_that_are(given):
    with pytest.raises(HookUsageError, match="SPAN_ONLY"):
        TracingHooks(capture_content=given)


# Where.


async def test_on_spans_only_no_event_carries_what_was_said():
    sink = Sink()

    await exec_agent(looker(ValueError("a secret")), "Where?", hooks=[sink.tracing(capture_content="SPAN_ONLY")])

    assert content_of(sink.one("chat")) == set(REQUEST)
    assert sink.one("chat").status.description == "a secret"
    assert sink.one("invoke_agent").status.description == "a secret"
    assert sink.log(EXCEPTION).attributes["exception.type"] == "ValueError"
    for record in sink.logs:
        assert "a secret" not in str(dict(record.attributes))
        assert record.body is None


async def test_on_events_only_no_span_carries_what_was_said():
    sink = Sink()
    turns = (calls(call("look", key="a secret")), ValueError("a secret"))

    await exec_agent(looker(*turns), "a secret", hooks=[sink.tracing(capture_content="EVENT_ONLY")])

    for span in sink.spans:
        assert "a secret" not in span.to_json()
    assert content(sink.log(DETAILS), "gen_ai.input.messages")[0]["parts"][0]["content"] == "a secret"
    assert sink.log(EXCEPTION).attributes["exception.message"] == "a secret"
    assert "a secret" in sink.log(EXCEPTION).attributes["exception.stacktrace"]
    assert sink.log("hookline.error").attributes["hookline.error.message"] == "a secret"


async def test_an_event_belongs_to_the_span_of_its_model_call_and_says_what_that_says():
    sink = Sink()

    await exec_agent(looker(), "Where?", hooks=[sink.tracing(capture_content="SPAN_AND_EVENT")])

    for span in sink.named("chat"):
        (record,) = [each for each in sink.logs if each.span_id == span.context.span_id]
        assert record.event_name == DETAILS
        assert record.trace_id == span.context.trace_id
        assert dict(record.attributes) == dict(span.attributes)


async def test_whatever_was_cut_is_named_once_in_an_event():
    sink = Sink()

    await exec_agent(
        looker(says("s" * 100)), "p" * 100, hooks=[sink.tracing(capture_content="SPAN_AND_EVENT", max_content_chars=50)]
    )

    for holder in (sink.one("chat"), sink.log(DETAILS)):
        cut = holder.attributes["hookline.content.truncated"]
        assert sorted(cut) == ["gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.tool.definitions"]
        assert len(holder.attributes["hookline.content.length"]) == len(cut)


# In which form.


async def test_a_conversation_is_recorded_by_the_conventions_schema():
    sink = Sink()

    await exec_agent(looker(), "Where is it?", hooks=[sink.tracing(capture_content=True)])

    first, second = sink.named("chat")
    asked = {"role": "user", "parts": [asdict(TextPart("Where is it?"))]}
    request = [
        asdict(TextPart("I look")),
        asdict(ToolCallRequestPart(arguments={"key": "first"}, name="look", id="t1")),
    ]
    told = {"role": "tool", "parts": [asdict(ToolCallResponsePart(response="found first", id="t1"))]}
    assert content(first, "gen_ai.input.messages") == [asked]
    assert content(first, "gen_ai.output.messages") == [
        {"role": "assistant", "parts": [asdict(ReasoningPart("pondering")), *request], "finish_reason": "stop"}
    ]
    assert content(second, "gen_ai.input.messages") == [asked, {"role": "assistant", "parts": request}, told]
    for span in (first, second):
        assert_messages(content(span, "gen_ai.input.messages"))
        assert_messages(content(span, "gen_ai.output.messages"), output=True)
        assert content(span, "gen_ai.system_instructions") == [asdict(TextPart("Be kind."))]


async def test_the_root_says_what_went_into_the_run_and_what_came_out():
    sink = Sink()

    await exec_agent(looker(), "Where is it?", hooks=[sink.tracing(capture_content=True)])

    root = sink.one("invoke_agent")
    assert content(root, "gen_ai.input.messages") == [{"role": "user", "parts": [asdict(TextPart("Where is it?"))]}]
    assert content(root, "gen_ai.system_instructions") == [asdict(TextPart("Be kind."))]
    assert_messages(content(root, "gen_ai.output.messages"), output=True)
    assert content(root, "gen_ai.output.messages")[0]["parts"] == [asdict(TextPart("It is there."))]


async def test_tools_are_recorded_as_the_model_is_offered_them():
    sink = Sink()

    await exec_agent(looker(), "Where?", hooks=[sink.tracing(capture_content=True)])

    for span in (*sink.named("chat"), sink.one("invoke_agent")):
        (definition,) = content(span, "gen_ai.tool.definitions")
        assert definition["type"] == "function"
        assert definition["name"] == "look"
        assert definition["description"] == "Look something up."
        assert definition["parameters"]["properties"]["key"]["description"] == "What to look for."


async def test_a_tool_call_says_its_arguments_as_json_and_its_result_as_it_is():
    sink = Sink()
    turns = (calls(call("look", key="ä", deep={"list": [1, 2.5, None, True]})), says())

    await exec_agent(looker(*turns), "Where?", hooks=[sink.tracing(capture_content=True)])

    span = sink.one("execute_tool")
    assert content(span, "gen_ai.tool.call.arguments") == {"key": "ä", "deep": {"list": [1, 2.5, None, True]}}
    assert span.attributes["gen_ai.tool.call.result"] == "found ä"


async def test_no_system_message_gets_lost():
    sink = Sink()
    prompt = [
        Message(role="system", content="from the caller"),
        Message(role="user", content="Where?"),
        Message(role="system", content="in between"),
    ]

    await exec_agent(looker(says()), prompt, hooks=[sink.tracing(capture_content=True)])

    said = (
        sink.one("chat").attributes["gen_ai.system_instructions"] + sink.one("chat").attributes["gen_ai.input.messages"]
    )
    for text in ("Be kind.", "from the caller", "in between", "Where?"):
        assert text in said


async def test_reasons_summaries_and_instructions_are_recorded_where_they_happen():
    sink = Sink()

    async def summarize(messages):
        return "the summary"

    @tool(needs_approval=True)
    def send() -> str:
        return "sent"

    hooks = Hooks("mine")

    @hooks.guard(ToolCall, tool="*/look")
    def never(looking):
        return Deny("the reason")

    child = agent_of(says("child says"), id="child")
    turns = (
        calls(call("look"), asks("child", "t2", "the instruction"), tokens=99),
        calls(call("send", "t3")),
        says(),
    )
    parent = agent_of(
        *turns,
        tools=[look, send],
        sub_agents=[child],
        compaction=Compaction(max_tokens=50, summarize=summarize, keep_last=0),
    )
    tracing = sink.tracing(capture_content=True)

    paused = await exec_agent(parent, "go", hooks=[hooks, tracing])
    await resume_agent(
        parent, paused.operation_id, [Reject("t3", reason="the rejection", and_continue=True)], hooks=[hooks, tracing]
    )

    assert sink.one("execute_tool look").attributes["hookline.denial.reason"] == "the reason"
    assert sink.one("call_agent").attributes["hookline.call_agent.instruction"] == "the instruction"
    assert sink.one("compact_context").attributes["hookline.compaction.summary"] == "the summary"
    reasons = [span.attributes.get("hookline.human.reason") for span in sink.named("human_intervention")]
    assert "the rejection" in reasons


# Redaction.


async def test_every_value_is_shown_to_redact_before_it_is_cut():
    sink, seen = Sink(), []

    def redact(kind, name, value):
        seen.append((kind, name, value))
        return value

    turns = (calls(call("look", key="k" * 100), reasoning="pondering"), RuntimeError("broke"))
    await exec_agent(
        looker(*turns), "p" * 100, hooks=[sink.tracing(capture_content=True, redact=redact, max_content_chars=20)]
    )

    shown = {(kind, name) for kind, name, _ in seen}
    assert shown >= {
        ("invoke_agent", "gen_ai.input.messages"),
        ("invoke_agent", "gen_ai.system_instructions"),
        ("invoke_agent", "gen_ai.tool.definitions"),
        ("chat", "gen_ai.input.messages"),
        ("chat", "gen_ai.output.messages"),
        ("execute_tool", "gen_ai.tool.call.arguments"),
        ("execute_tool", "gen_ai.tool.call.result"),
        ("chat", "hookline.error.message"),
        ("invoke_agent", "hookline.error.message"),
    }
    values = {(kind, name): value for kind, name, value in seen}
    assert values["execute_tool", "gen_ai.tool.call.arguments"] == {"key": "k" * 100}
    assert values["invoke_agent", "gen_ai.input.messages"][0]["parts"][0]["content"] == "p" * 100
    assert values["chat", "hookline.error.message"] == "broke"


async def test_what_redact_gives_is_recorded_instead():
    sink = Sink()

    def redact(kind, name, value):
        return json.loads(json.dumps(value).replace("first", "[name]"))

    await exec_agent(looker(), "first", hooks=[sink.tracing(capture_content=True, redact=redact)])

    assert content(sink.one("execute_tool"), "gen_ai.tool.call.arguments") == {"key": "[name]"}
    assert sink.one("execute_tool").attributes["gen_ai.tool.call.result"] == "found [name]"
    assert b"first" not in sink.exported()


async def test_what_redact_leaves_out_is_in_nothing_exported():
    sink = Sink()
    turns = (calls(call("look", key="secret")), RuntimeError("secret"))

    await exec_agent(
        looker(*turns),
        "secret",
        hooks=[sink.tracing(capture_content="SPAN_AND_EVENT", redact=lambda kind, name, value: None, hook_spans=True)],
    )

    assert not any(content_of(span) for span in sink.spans)
    broken = [span for span in sink.spans if failed(span)]
    assert {span.name for span in broken} >= {"chat scripted", "invoke_agent tester"}
    assert all(span.status.description is None for span in broken)
    assert b"secret" not in sink.exported()
    assert sink.losses() == {}


async def test_a_redact_that_raises_drops_the_value_and_is_counted():
    sink = Sink()

    def redact(kind, name, value):
        if name == "gen_ai.tool.call.arguments":
            raise KeyError("secret")
        return value

    result = await exec_agent(
        looker(calls(call("look", key="secret")), says()),
        "Where?",
        hooks=[sink.tracing(capture_content=True, redact=redact)],
    )

    span = sink.one("execute_tool")
    assert result.reason == "done"
    assert "gen_ai.tool.call.arguments" not in span.attributes
    assert span.attributes["gen_ai.tool.call.result"] == "found secret"
    assert not failed(span)
    assert sum(sink.losses().values()) == 1


async def test_a_redact_that_edits_what_it_is_shown_harms_no_one():
    sink = Sink()

    def redact(kind, name, value):
        if isinstance(value, dict):
            value["key"] = "mine"
        elif isinstance(value, list):
            value.clear()
        return value

    result = await exec_agent(looker(), "Where?", hooks=[sink.tracing(capture_content=True, redact=redact)])

    assert result.reason == "done"
    assert [message.content for message in result.messages if message.role == "tool"] == ["found first"]
    assert len(sink.named("execute_tool")) == 1
    sink.assert_whole()


async def test_redact_is_not_asked_where_nothing_is_recorded():
    sink, asked = Sink(), []

    await exec_agent(looker(), "Where?", hooks=[sink.tracing(redact=lambda *value: asked.append(value))])

    assert asked == []


# Cutting.


async def test_a_text_that_was_cut_says_so_and_how_long_it_was():
    sink = Sink()

    @tool
    def long() -> str:
        return "abc" * 1000

    await exec_agent(
        agent_of(calls(call("long")), says(), tools=[long]),
        "go",
        hooks=[sink.tracing(capture_content=True, max_content_chars=100)],
    )

    span = sink.one("execute_tool")
    recorded = span.attributes["gen_ai.tool.call.result"]
    assert recorded.startswith(("abc" * 1000)[:100])
    assert len(recorded) < 150
    assert "2900 more" in recorded
    assert span.attributes["hookline.content.truncated"] == ("gen_ai.tool.call.result",)
    assert span.attributes["hookline.content.length"] == (3000,)


async def test_a_text_that_just_fits_is_not_cut():
    sink = Sink()

    @tool
    def long() -> str:
        return "x" * 100

    await exec_agent(
        agent_of(calls(call("long")), says(), tools=[long]),
        "go",
        hooks=[sink.tracing(capture_content=True, max_content_chars=100)],
    )

    span = sink.one("execute_tool")
    assert span.attributes["gen_ai.tool.call.result"] == "x" * 100
    assert "hookline.content.truncated" not in span.attributes


async def test_arguments_and_result_of_one_call_that_were_both_cut_are_both_named():
    sink = Sink()

    @tool
    def long(text: str) -> str:
        return "x" * 500

    await exec_agent(
        agent_of(calls(call("long", text="y" * 300)), says(), tools=[long]),
        "go",
        hooks=[sink.tracing(capture_content=True, max_content_chars=100)],
    )

    span = sink.one("execute_tool")
    assert span.attributes["hookline.content.truncated"] == ("gen_ai.tool.call.arguments", "gen_ai.tool.call.result")
    arguments, result = span.attributes["hookline.content.length"]
    assert 300 <= arguments <= 330
    assert result == 500
    assert content(span, "gen_ai.tool.call.arguments")["text"].startswith("y" * 50)


async def test_of_a_long_conversation_the_newest_messages_are_kept():
    sink = Sink()
    prompt = [Message(role="user", content=f"message {number} " + "x" * 50) for number in range(100)]

    await exec_agent(agent_of(says()), prompt, hooks=[sink.tracing(capture_content=True, max_content_chars=500)])

    span = sink.one("chat")
    messages = content(span, "gen_ai.input.messages")
    assert messages[-1]["parts"][0]["content"].startswith("message 99")
    assert len(messages) < 20
    assert_messages(messages)
    total = sum(len(message.content) for message in prompt)
    (length,) = span.attributes["hookline.content.length"]
    assert length >= total, "the length is that of everything there was"


@for_each("size", range(1, 80))
def test_a_budget_holds_wherever_it_runs_out(size):
    attributes: dict[str, Any] = {}
    messages = [Message(role="user", content="x" * 10_000)]
    value = [{"command": ["y" * 10_000, "z" * 10_000]}, "w" * 10_000, {1: "v" * 10_000}]

    policy = Content("SPAN_ONLY", None, size, pytest.fail)
    policy.put(attributes, "chat", "messages", message_parts(messages), newest_first=True)
    policy.put(attributes, "execute_tool", "arguments", value)

    assert len(attributes["messages"]) < size + 300
    assert len(attributes["arguments"]) < size + 300
    assert_messages(json.loads(attributes["messages"]))
    json.loads(attributes["arguments"])
    assert attributes["hookline.content.truncated"] == ["messages", "arguments"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=60),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=20), inner, max_size=6),
    max_leaves=30,
)


@given(value=JSON, size=st.integers(min_value=1, max_value=200))
@settings(deadline=None, max_examples=60)
def test_whatever_is_cut_stays_json(value, size):
    attributes: dict[str, Any] = {}

    recorded = Content("SPAN_ONLY", None, size, pytest.fail).put(attributes, "chat", "it", value)

    if value is None:
        assert attributes == {}
        return
    assert attributes["it"] is recorded
    recorded.encode()  # no half of a surrogate pair
    if not isinstance(value, str):
        json.loads(recorded)
    assert ("hookline.content.truncated" in attributes) == ("hookline.content.length" in attributes)
    assert len(recorded) < 40 * (size + 50)


TEXT = st.text(st.characters(codec="utf-8"), max_size=200)


@st.composite
def conversations(draw):
    return draw(
        st.lists(
            st.builds(Message, role=st.just("user"), content=TEXT)
            | st.builds(
                Message,
                role=st.just("assistant"),
                content=TEXT,
                tool_calls=st.lists(
                    st.builds(call, st.text("abc", min_size=1), st.text("xyz", min_size=1), text=TEXT), max_size=2
                ),
            )
            | st.builds(Message, role=st.just("tool"), content=TEXT, tool_call_id=st.text("xyz", min_size=1)),
            min_size=1,
            max_size=8,
        )
    )


@given(messages=conversations(), size=st.integers(min_value=1, max_value=400))
@settings(deadline=None, max_examples=60)
def test_messages_that_were_cut_are_messages_still(messages, size):
    attributes: dict[str, Any] = {}

    recorded = Content("SPAN_ONLY", None, size, pytest.fail).put(
        attributes, "chat", "it", message_parts(messages), newest_first=True
    )

    assert_messages(json.loads(recorded))
    if "hookline.content.truncated" not in attributes:
        assert json.loads(recorded) == json.loads(json.dumps(message_parts(messages)))


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(type("Number", (float,), {})(1.5), id="a kind of float"),
        pytest.param(type("Count", (int,), {})(3), id="a kind of int"),
        pytest.param(type("Text", (str,), {})("it"), id="a kind of str"),
        pytest.param(type("Table", (dict,), {})(a=1), id="a kind of dict"),
        pytest.param({1: "a", 2: "b"}, id="keys that are no text"),
        pytest.param({1, 2}, id="a set"),
        pytest.param(b"bytes", id="bytes"),
        pytest.param(10**5000, id="a number of 5000 digits"),
        pytest.param(object(), id="an object"),
    ],
)
def test_a_value_that_is_no_json_does_not_take_its_neighbours_along(value):
    attributes: dict[str, Any] = {}

    Content("SPAN_ONLY", None, 1000, pytest.fail).put(
        attributes, "execute_tool", "it", {"value": value, "other": "kept"}
    )

    recorded = json.loads(attributes["it"])
    assert recorded["other"] == "kept"
    if isinstance(value, dict):
        assert len(recorded["value"]) == len(value)


async def test_an_approved_call_says_the_arguments_that_it_really_ran_with():
    sink = Sink()

    @tool(needs_approval=True)
    def send(to: str) -> str:
        return f"sent to {to}"

    agent = agent_of(calls(call("send", to="ann")), says(), tools=[send])
    tracing = sink.tracing(capture_content=True)

    paused = await exec_agent(agent, "go", hooks=[tracing])
    await resume_agent(agent, paused.operation_id, [Approve("t1")], hooks=[tracing])

    span = sink.one("execute_tool")
    assert content(span, "gen_ai.tool.call.arguments") == {"to": "ann"}
    assert span.attributes["gen_ai.tool.call.result"] == "sent to ann"


async def test_the_model_call_that_hooks_have_rewritten_is_the_one_that_is_recorded():
    sink, hooks = Sink(), Hooks("mine")

    @hooks.before(ModelCall)
    def masked(asked):
        return replace(asked, messages=[Message(role="user", content="masked")])

    await exec_agent(agent_of(says()), "a name", hooks=[hooks, sink.tracing(capture_content=True)])

    assert content(sink.one("chat"), "gen_ai.input.messages")[0]["parts"][0]["content"] == "masked"
