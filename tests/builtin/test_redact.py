"""Secrets that nobody is to read."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import (
    Message,
    ModelCall,
    ModelResponse,
    ScriptedModel,
    SubAgentCall,
    ToolCall,
    ToolRequest,
    exec_agent,
    tool,
)
from hookline.builtin import PATTERNS, redact
from hookline.calls import AgentCall, AgentResult, ToolResult
from hookline.errors import HookDefinitionError
from hookline.interceptors import Chain
from tests.tables import for_each

from .scenes import agent_of, asks, called, says, through, told

pytestmark = pytest.mark.anyio


def shown(text: str, *patterns: Any, **options: Any) -> str:
    """What a text becomes."""
    answer = next(hook for hook in redact(patterns, **options).interceptors if hook.call is AgentCall)
    changed = answer.handler(AgentCall(input=[]), AgentResult(output=text))
    return text if changed is None else changed.output  # type: ignore[attr-defined, no-any-return]


@for_each(
    ("pattern", "text", "expected"),
    [
        ("email", "Write to ada.l+x@math.example.org, or Bob <bob@x.io>.", "Write to [redacted], or Bob <[redacted]>."),
        ("email", "@ada, see user@localhost and a@b", "@ada, see user@localhost and a@b"),
        ("card", "4111 1111 1111 1111, 4111-1111-1111-1111 and 4111111111111111.", "[redacted], [redacted] and [redacted]."),
        ("card", "Call 030 1234567 on 2024-01-01", "Call 030 1234567 on 2024-01-01"),
        ("key", "token=sk-proj-abcdefghij0123456789!", "token=[redacted]!"),
        ("key", "ghp_" + "a" * 36 + " AKIAIOSFODNN7EXAMPLE", "[redacted] [redacted]"),
        ("key", "Bearer eyJhbGciOi.eyJzdWIi.c2ln-x", "Bearer [redacted]"),
        ("key", "-----BEGIN RSA PRIVATE KEY-----\nMIIE-x\n-----END RSA PRIVATE KEY-----\nbye", "[redacted]\nbye"),
        ("key", "a sk-etch and skip", "a sk-etch and skip"),
        (r"\bproject \w+", "project zeus and project hera", "[redacted] and [redacted]"),
        (re.compile("SECRET", re.IGNORECASE), "a secret", "a [redacted]"),
        ("x*", "axxb", "a[redacted]b"),
    ],
)  # fmt: skip
def test_what_matches_is_replaced(pattern: Any, text: str, expected: str) -> None:
    assert shown(text, pattern) == expected


@given(st.text("ab@.-c1 ", max_size=60), st.sampled_from(["email", "a+b", "card", "(?:ab)+", "1 ?1"]))
def test_no_match_is_left(text: str, pattern: str) -> None:
    expression = PATTERNS.get(pattern) or re.compile(pattern)

    assert not expression.search(shown(text, pattern, replacement="\u2588"))


@given(st.text("abc", max_size=30), st.text("abc", min_size=1, max_size=3), st.text("abc", min_size=1, max_size=3))
def test_patterns_that_overlap_hide_all_that_any_of_them_matches(text: str, one: str, other: str) -> None:
    hidden = {
        at
        for pattern in (one, other)
        for found in re.finditer(pattern, text)
        for at in range(found.start(), found.end())
    }

    kept = shown(text, one, other, replacement="#").replace("#", "")

    assert kept == "".join(char for at, char in enumerate(text) if at not in hidden)


async def test_neither_the_model_nor_the_reader_sees_a_secret() -> None:
    sent: list[list[str]] = []
    turns = iter([asks("look", text="for ada@x.org"), ModelResponse(content="It is bob@x.org", reasoning="bob@x.org!")])

    def answer(call: ModelCall) -> ModelResponse:
        sent.append([f"{message.content} {[dict(c.args) for c in message.tool_calls]}" for message in call.messages])  # type: ignore[arg-type]
        return next(turns)

    @tool(name="look")
    async def look(text: str) -> str:
        """Look."""
        return f"carl@x.org, asked {text}"

    agent = agent_of(tools=[look])
    object.__setattr__(agent, "model", ScriptedModel(answer))

    result = await exec_agent(agent, "I am eve@x.org", hooks=[redact(["email"])])

    assert sent == [
        ["I am [redacted] []"],
        ["I am [redacted] []", " [{'text': 'for [redacted]'}]", "[redacted], asked for [redacted] []"],
    ]
    assert result.output == "It is [redacted]"
    assert told(result) == ["[redacted], asked for [redacted]"]
    assert result.messages[0].content == "I am eve@x.org"


async def test_what_a_sub_agent_answers_is_a_tool_result() -> None:
    chain = Chain([redact(["email"], output=False)])

    outcome = await through(chain, SubAgentCall(callee_id="h", instruction=""), AgentResult(output="a@b.org"))

    assert outcome.result.output == "[redacted]"


async def test_arguments_are_replaced_when_asked_for_nested_ones_too() -> None:
    args = {"to": ["a@b.org", {"cc": "c@d.org", "n": 1}], "none": None}

    left = await through(Chain([redact(["email"])]), called(args=args))
    hidden = await through(Chain([redact(["email"], args=True)]), called(args=args))

    assert left.call.args == args
    assert hidden.call.args == {"to": ["[redacted]", {"cc": "[redacted]", "n": 1}], "none": None}


@for_each("switch", ["tool_results", "output", "messages"])
async def test_each_place_can_be_left_alone(switch: str) -> None:
    chain = Chain([redact(["email"], **{switch: False})])  # type: ignore[arg-type]
    text = "a@b.org"

    tool_result = await through(chain, called(), ToolResult(content=text))
    answer = await through(chain, ModelCall(messages=[Message(role="user", content=text)]), ModelResponse(content=text))

    assert {
        "tool_results": tool_result.result.content == text,
        "output": answer.result.content == text,
        "messages": answer.call.messages[0].content == text,
    } == {name: name == switch for name in ("tool_results", "output", "messages")}


@for_each("content", [None, b"a@b.org", 3, ["a@b.org"], "\ud800 a@b.org", "a@b.org\0"])
async def test_odd_contents_do_no_harm(content: Any) -> None:
    outcome = await through(Chain([redact(["email"], args=True)]), called(), ToolResult(content=content))

    assert outcome.denied is None
    assert not isinstance(content, str) or "a@b.org" not in outcome.result.content


async def test_raw_text_as_arguments_in_the_history_is_searched_too() -> None:
    message = Message(
        role="assistant", content="", tool_calls=[ToolRequest(tool_name="x", args="mail a@b.org", tool_call_id="t")]
    )

    outcome = await through(Chain([redact(["email"])]), ModelCall(messages=[message]), says())

    assert outcome.call.messages[0].tool_calls[0].args == "mail [redacted]"


async def test_what_has_no_secret_is_the_very_same_object() -> None:
    call, result = called(args={"a": "b"}), ToolResult(content="fine")

    outcome = await through(Chain([redact(["email"], args=True)]), call, result)

    assert outcome.call is call
    assert outcome.result is result


async def test_redaction_has_the_last_word_in_both_directions() -> None:
    hooks = redact(["email"], args=True)

    assert {(hook.call.__name__, hook.kind, hook.priority) for hook in hooks.interceptors} == {
        ("ToolCall", "after", 30),
        ("SubAgentCall", "after", 30),
        ("ModelCall", "after", 30),
        ("AgentCall", "after", 30),
        ("ModelCall", "before", 970),
        ("ToolCall", "before", 970),
    }


@for_each("pattern", list(PATTERNS))
@for_each("unit", ["a", "1", "1 ", "-", ".", "@", "a@", "a@b.", "eyJ-", "eyJ.", "sk-", "-----BEGIN PRIVATE KEY-----"])  # fmt: skip
def test_half_a_million_characters_of_anything_come_to_an_end(pattern: str, unit: str) -> None:
    """How long that takes is judged by `make bench ARGS=ready`; here a regular expression that runs away would hang."""
    assert isinstance(shown(unit * (500_000 // len(unit)), pattern), str)


@for_each(
    ("arguments", "message"),
    [
        ({"patterns": []}, "pass at least one pattern, or a name: email, card, key"),
        ({"patterns": "email"}, "`patterns` must be a list; got 'email'"),
        ({"patterns": None}, "`patterns` must be a list"),
        ({"patterns": ["("]}, "is not a valid regular expression"),
        ({"patterns": [""]}, "a pattern must be a regular expression for text"),
        ({"patterns": [re.compile(b"x")]}, "a pattern must be a regular expression for text"),
        ({"patterns": [3]}, "a pattern must be a regular expression for text"),
        ({"patterns": ["x"], "replacement": None}, "`replacement` must be text"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(HookDefinitionError, match=message):
        redact(**arguments)


async def test_tool_calls_of_other_tenants_are_left_alone() -> None:
    chain = Chain([redact(["email"], tenant_id="a")])

    assert (
        await through(chain, ToolCall(tool_name="x", tenant_id="b"), ToolResult(content="a@b.org"))
    ).result.content == "a@b.org"
