"""The laws of the protocols: what hooks answer comes through each of them unchanged, whole or streamed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hookline import ModelResponse, ToolRequest
from hookline.loop._client import FORMATS
from hookline.loop._format import Format, encode_events, read_events
from hookline.loop._names import ToolNames

NAMES = ToolNames({})

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
arguments = st.dictionaries(texts, st.one_of(st.integers(-9, 9), texts, st.booleans(), st.none()), max_size=3)
requests = st.lists(
    st.builds(
        lambda name, args: ToolRequest(name, args),
        st.sampled_from(["add", "look_up"]),
        arguments,
    ),
    max_size=3,
).map(lambda found: [replace(each, tool_call_id=f"c{at}") for at, each in enumerate(found)])
answers = st.builds(
    lambda content, calls: ModelResponse(content=content, tool_calls=calls, model="m", response_id="r"), texts, requests
)


def unpriced(tokens: Mapping[str, int], model: str) -> None:
    return None


def essence(answer: ModelResponse) -> Any:
    return answer.content, list(answer.tool_calls), answer.model, answer.response_id


@pytest.mark.parametrize("format_", FORMATS, ids=lambda each: each.name)
@given(answer=answers)
@settings(max_examples=60)
def test_an_answer_of_a_hook_comes_through_whole_and_streamed(format_: Format, answer: ModelResponse) -> None:
    written = format_.write_answer(answer, None, "m", NAMES)
    streamed = format_.join_events(read_events(encode_events(format_.write_events(written, {}))))

    assert format_.wrote(written)
    assert essence(format_.read_answer(json.loads(json.dumps(written)), NAMES, unpriced)) == essence(answer)
    assert essence(format_.read_answer(streamed, NAMES, unpriced)) == essence(answer)


@pytest.mark.parametrize("format_", FORMATS, ids=lambda each: each.name)
@given(answer=answers, content=texts)
@settings(max_examples=30)
def test_a_hook_that_changes_the_text_leaves_the_calls_as_the_provider_wrote_them(
    format_: Format, answer: ModelResponse, content: str
) -> None:
    own = format_.write_answer(answer, None, "m", NAMES)
    changed = format_.write_answer(replace(answer, content=content), own, "m", NAMES)

    assert format_.read_calls(changed) == format_.read_calls(own)
    assert format_.read_answer(changed, NAMES, unpriced).content == content


@pytest.mark.parametrize("format_", FORMATS, ids=lambda each: each.name)
@given(answer=answers, cut=st.floats(0, 1))
@settings(max_examples=60)
def test_a_stream_that_breaks_off_gives_no_call_that_did_not_come_whole(
    format_: Format, answer: ModelResponse, cut: float
) -> None:
    data = encode_events(format_.write_events(format_.write_answer(answer, None, "m", NAMES), {}))

    came = format_.join_events(read_events(data[: int(len(data) * cut)]))
    found = format_.read_answer(came, NAMES, unpriced)
    assert answer.content.startswith(found.content)
    assert list(found.tool_calls) == list(answer.tool_calls)[: len(found.tool_calls)]


@pytest.mark.parametrize("format_", FORMATS, ids=lambda each: each.name)
@given(answer=answers, said=st.lists(texts, min_size=1, max_size=4))
@settings(max_examples=30)
def test_a_conversation_that_hooks_leave_alone_is_the_clients_own(
    format_: Format, answer: ModelResponse, said: list[str]
) -> None:
    own = [{"role": "user", "content": text} for text in said]
    own += format_.write_entries(format_.write_answer(answer, None, "m", NAMES))
    parts = format_.read_parts({format_.conversation: own, "model": "m"}, NAMES)

    restored = format_.restore(parts.messages, parts.groups, NAMES)
    assert len(restored) == len(own)
    assert all(one is other for one, other in zip(restored, own, strict=True))
