"""Events as JSON: what is written, what is read back, and how bad input is told."""

from __future__ import annotations

import enum
import json
import math
import time
from typing import Any, get_args

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hookline
from hookline import (
    AfterStep,
    AfterToolCall,
    BeforeHumanIntervention,
    BeforeStep,
    BeforeToolCall,
    Event,
    HookType,
    OnComplete,
    OnError,
    ToolRequest,
    decode,
    encode,
    json_schema,
)
from hookline.errors import EventDecodeError, EventEncodeError, HooklineError
from hookline.events import CompletionReason, PendingTool
from tests.tables import for_each

from .samples import COMMON_KEYS, EXAMPLES, TABLE, events_of, example

EVERY = pytest.mark.parametrize("kind", list(TABLE), ids=lambda kind: kind.__name__)
SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def document(kind: type[Event], **changes: object) -> dict[str, Any]:
    """An encoded example, as a dict that may be spoilt."""
    return {**json.loads(encode(example(kind))), **changes}


def validator_of(kind: type[Event]) -> jsonschema.Draft202012Validator:
    """A validator of the part of the schema that is about one event; that of the whole tries one part after another."""
    part = {"$ref": f"#/$defs/{kind.__name__}"}
    assert part in SCHEMA["anyOf"]
    return jsonschema.Draft202012Validator({**SCHEMA, "anyOf": [part]})


def refused(data: bytes) -> EventDecodeError:
    with pytest.raises(EventDecodeError) as caught:
        decode(data)
    return caught.value


def test_there_are_exactly_the_sixteen_events_of_the_contract() -> None:
    assert set(get_args(Event)) == set(TABLE)
    assert [str(name) for name in HookType] == [wire for wire, _ in TABLE.values()] or {
        str(name) for name in HookType
    } == {wire for wire, _ in TABLE.values()}
    assert len(HookType) == 16
    assert issubclass(HookType, enum.StrEnum)
    assert set(get_args(CompletionReason)) == {
        "done",
        "error",
        "interrupted",
        "max_steps",
        "cost_limit",
        "waiting_for_human",
    }


@EVERY
def test_every_event_is_at_the_root_of_the_package(kind: type[Event]) -> None:
    assert getattr(hookline, kind.__name__) is kind
    assert kind.__name__ in hookline.__all__


@EVERY
def test_wire_names_are_those_of_the_contract_field_by_field(kind: type[Event]) -> None:
    wire, fields = TABLE[kind]

    written = json.loads(encode(example(kind)))

    assert list(written) == ["type", *COMMON_KEYS, *fields]
    assert written["type"] == wire


@EVERY
def test_python_names_follow_the_wire_names_mechanically(kind: type[Event]) -> None:
    written = json.loads(encode(example(kind)))

    for name in kind.__struct_fields__:
        if name == "toolset":  # the one word that is another one on the wire, with `tool_name`
            assert "identifier" in written
            continue
        head, *tail = name.replace("tool_name", "api_name").split("_")
        assert head + "".join(word.capitalize() for word in tail) in written


@EVERY
def test_hook_type_is_the_wire_name_on_the_class_and_on_the_event(kind: type[Event]) -> None:
    assert kind.hook_type is example(kind).hook_type
    assert isinstance(kind.hook_type, HookType)
    assert kind.hook_type == TABLE[kind][0]


@EVERY
def test_the_fields_of_every_event_default_as_the_contract_says(kind: type[Event]) -> None:
    before = time.time_ns()

    event = example(kind)

    assert before <= event.time_unix_nano <= time.time_ns()
    assert (event.agent_id, event.user_id, event.tenant_id, event.parent_operation_id) == ("", "", "", None)


def test_nested_records_are_in_camel_case_too() -> None:
    step = json.loads(encode(example(AfterStep)))
    pause = json.loads(encode(example(BeforeHumanIntervention)))

    assert step["toolsCalling"] == [
        {"identifier": "local", "apiName": "search", "args": {"q": "x"}, "toolCallId": "t1"}
    ]
    assert step["toolsResult"] == [
        {"identifier": "local", "apiName": "search", "toolCallId": "t1", "content": "42", "success": True}
    ]
    assert pause["pendingTools"] == [
        {"identifier": "local", "apiName": "pay", "toolCallId": "t1", "args": {"to": {"n": 1}}}
    ]


def test_a_tool_calling_needs_no_identifier_and_no_args() -> None:
    calling = ToolRequest(tool_name="search", tool_call_id="t")

    assert (calling.toolset, calling.args) == ("local", {})


@EVERY
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_every_event_survives_the_wire_and_fits_the_schema(kind: type[Event], data: st.DataObject) -> None:
    event = data.draw(events_of(kind))

    written = encode(event)

    back = decode(written)
    assert back == event
    assert type(back) is kind
    assert encode(back) == written
    validator_of(kind).validate(json.loads(written))


def test_the_schema_is_a_valid_draft_2020_12_schema() -> None:
    schema = json_schema()

    assert "2020-12" in schema["$schema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    json.dumps(schema)


def test_a_caller_that_edits_the_schema_edits_only_its_copy() -> None:
    json_schema().clear()
    json_schema()["$defs"].clear()

    assert json_schema()["$defs"]


@EVERY
def test_the_schema_refuses_what_decode_refuses(kind: type[Event]) -> None:
    for key in document(kind):
        spoilt = document(kind)
        del spoilt[key]
        try:
            decode(json.dumps(spoilt).encode())
            taken = True
        except EventDecodeError:
            taken = False

        assert VALIDATOR.is_valid(spoilt) == taken, key


@EVERY
def test_a_missing_field_is_named_by_its_path(kind: type[Event]) -> None:
    required = ["operationId", *(key for key in document(kind) if _python_name(key) in EXAMPLES[kind])]
    for key in required:
        if key in ("metadata",):
            continue
        spoilt = document(kind)
        del spoilt[key]

        error = refused(json.dumps(spoilt).encode())

        assert error.path == f"$.{key}"
        assert f"$.{key}" in str(error)


@EVERY
def test_a_field_of_a_wrong_type_is_named_by_its_path(kind: type[Event]) -> None:
    for key in document(kind):
        if key == "type":
            continue

        error = refused(
            json.dumps(
                document(kind, **{key: {"not": ["it"]}} if key not in ("args", "metadata") else {key: 3})
            ).encode()
        )

        assert error.path == f"$.{key}"


@for_each(
    ("kind", "changes", "path"),
    [
        (AfterStep, {"toolsCalling": [{"apiName": 3, "toolCallId": "t"}]}, "$.toolsCalling[0].apiName"),
        (AfterStep, {"toolsCalling": [{"apiName": "a", "toolCallId": "t"}, {"toolCallId": "a"}]}, "$.toolsCalling[1].apiName"),
        (AfterStep, {"toolsCalling": [3]}, "$.toolsCalling[0]"),
        (AfterStep, {"toolsResult": [{"identifier": "l", "apiName": "a", "toolCallId": "t", "content": None, "success": True}]}, "$.toolsResult[0].content"),
        (AfterStep, {"stepType": "call_nobody"}, "$.stepType"),
        (BeforeHumanIntervention, {"pendingTools": [{"identifier": "l", "apiName": "a", "toolCallId": "t", "args": "x"}]}, "$.pendingTools[0].args"),
        (OnComplete, {"reason": "because"}, "$.reason"),
        (BeforeStep, {"stepIndex": "0"}, "$.stepIndex"),
        (BeforeStep, {"stepIndex": True}, "$.stepIndex"),
        (BeforeStep, {"stepIndex": 0.5}, "$.stepIndex"),
        (BeforeStep, {"type": "beforeLunch"}, "$.type"),
        (BeforeStep, {"type": 3}, "$.type"),
        (BeforeStep, {"type": None}, "$.type"),
        (AfterToolCall, {"success": 1}, "$.success"),
    ],
)  # fmt: skip
def test_the_path_leads_to_the_bad_value(kind: type[Event], changes: dict[str, object], path: str) -> None:
    assert refused(json.dumps(document(kind, **changes)).encode()).path == path


def test_a_value_that_looks_like_a_path_does_not_lead_astray() -> None:
    error = refused(json.dumps(document(BeforeStep, type="lunch - at `$.elsewhere")).encode())

    assert error.path == "$.type"


def test_the_type_key_is_required() -> None:
    spoilt = document(BeforeStep)
    del spoilt["type"]

    assert refused(json.dumps(spoilt).encode()).path == "$.type"


@for_each(
    "data",
    [b"", b"nope", b"{", b'{"type":', b"[]", b"3", b"null", b'"beforeStep"', b"\xff\xfe", b"{}", b"[" * 100_000,
     b'{"type":"beforeStep","operationId":"\xff","stepIndex":0}', b'{"type":"beforeStep"} trailing'],
)  # fmt: skip
def test_bytes_that_are_no_event_give_a_decode_error(data: bytes) -> None:
    error = refused(data)

    assert isinstance(error, HooklineError)
    assert isinstance(error, ValueError)
    assert error.path.startswith("$")
    assert error.reason


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=60))
def test_no_bytes_make_decode_raise_anything_else(data: bytes) -> None:
    with pytest.raises(EventDecodeError):
        decode(data)


@EVERY
def test_unknown_keys_are_ignored(kind: type[Event]) -> None:
    event = example(kind)
    written = {**json.loads(encode(event)), "fromTheFuture": {"a": [1]}, "operation_id": 3}

    assert decode(json.dumps(written).encode()) == event


def test_unknown_keys_of_nested_records_are_ignored() -> None:
    written = document(AfterStep)
    written["toolsCalling"][0]["fromTheFuture"] = 1
    written["toolsResult"][0]["fromTheFuture"] = 1

    assert decode(json.dumps(written).encode()) == example(AfterStep, time_unix_nano=written["timeUnixNano"])


def test_the_order_of_keys_does_not_matter() -> None:
    written = document(AfterStep)

    backwards = dict(reversed(written.items()))

    assert decode(json.dumps(backwards).encode()) == decode(json.dumps(written).encode())


class _Opaque:
    pass


@for_each(
    "value",
    [_Opaque(), {1, _Opaque()}, 1j, lambda: None, "\ud800", {"deep": [_Opaque()]}, {("a", "b"): 1}],
    ids=["object", "set", "complex", "function", "surrogate", "nested", "tuple-key"],
)
def test_a_value_that_json_cannot_carry_gives_an_encode_error(value: object) -> None:
    with pytest.raises(EventEncodeError) as caught:
        encode(example(BeforeToolCall, args={"x": value}))

    assert caught.value.event_type == "beforeToolCall"
    assert "beforeToolCall" in str(caught.value)


def test_metadata_that_json_cannot_carry_gives_an_encode_error() -> None:
    with pytest.raises(EventEncodeError):
        encode(example(AfterToolCall, metadata={"x": _Opaque()}))


def test_text_that_is_no_unicode_gives_an_encode_error() -> None:
    with pytest.raises(EventEncodeError):
        encode(example(OnError, error_message="\udcff"))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_cannot_carry_is_not_written_as_something_else(value: float) -> None:
    event = example(OnComplete, cost_usd=value)

    try:
        written = encode(event)
    except EventEncodeError:
        return

    assert isinstance(decode(written), OnComplete)


@for_each("value", [math.nan, math.inf, -math.inf])
@for_each("field", ["args", "metadata"])
def test_a_number_that_json_cannot_carry_is_not_written_as_null_in_args_or_metadata(field: str, value: float) -> None:
    event = example(AfterToolCall, **{field: {"deep": [{"n": value}]}})

    with pytest.raises(EventEncodeError):
        encode(event)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nor_in_the_args_of_the_calls_that_a_step_or_a_pause_tells_of(value: float) -> None:
    args = {"deep": [{"n": value}]}
    asked = ToolRequest(tool_name="search", args=args, tool_call_id="t1")
    waiting = PendingTool(toolset="local", tool_name="search", args=args, tool_call_id="t1")

    for event, field in (
        (example(AfterStep, tools_calling=[asked]), "tools_calling"),
        (example(BeforeHumanIntervention, pending_tools=[waiting]), "pending_tools"),
    ):
        with pytest.raises(EventEncodeError, match=rf"`{field}\[0\].args.deep\[0\].n`"):
            encode(event)


@settings(max_examples=30, deadline=None)
@given(number=st.integers())
def test_whole_numbers_of_any_size_are_exact(number: int) -> None:
    event = example(BeforeToolCall, args={"n": number, "list": [{"n": number}]})

    assert decode(encode(event)).args == {"n": number, "list": [{"n": number}]}


def test_a_mock_does_not_travel_with_the_event() -> None:
    event = example(BeforeToolCall)
    plain = encode(event)
    event.mock("42")

    assert encode(event) == plain
    assert not decode(encode(event)).mocked


@pytest.mark.parametrize(
    "error",
    [EventDecodeError("$.x", "bad"), EventEncodeError("onError", "bad")],
    ids=["decode", "encode"],
)
def test_the_errors_pickle(error: Exception) -> None:
    import pickle

    back = pickle.loads(pickle.dumps(error))

    assert type(back) is type(error)
    assert str(back) == str(error)


def _python_name(key: str) -> str:
    return "".join("_" + char.lower() if char.isupper() else char for char in key)
