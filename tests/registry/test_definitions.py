"""A definition is checked to the last field, and an error says which one and how to fix it."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.calls import CALLS
from hookline.events import EVENTS
from hookline.registry import POINTS, DefinitionError, DefinitionFileError, HookDefinition
from hookline.registry._definition import read_definition
from tests.tables import for_each

from .scenes import definition

VALID = {"name": "n", "point": "ToolCall.guard", "handler": "deny"}
HOOK = {"url": "https://a.example/x"}


def test_there_are_forty_eight_points_for_sixteen_events_and_eight_calls() -> None:
    assert len(POINTS) == 48
    assert {name for name, point in POINTS.items() if point.event} == {event.value for event in EVENTS}
    assert {point.call for point in POINTS.values() if point.call} == set(CALLS)


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"priority": 1001}, "invalid", "$.priority"),
    ({"priority": -1}, "invalid", "$.priority"),
    ({"priority": True}, "invalid", "$.priority"),
    ({"timeout": -3}, "invalid", "$.timeout"),
    ({"timeout": 0}, "invalid", "$.timeout"),
    ({"name": ""}, "invalid", "$.name"),
    ({"name": "a\nb"}, "invalid", "$.name"),
    ({"name": "\ud800"}, "invalid", "$.name"),
    ({"name": None}, "invalid", "$.name"),
    ({"id": "a/b"}, "invalid", "$.id"),
    *(({"id": reserved}, "invalid", "$.id") for reserved in ("alerts", "logs", "stats", "handlers", ".", "..")),
    ({"tenantId": "a\x00b"}, "invalid", "$.tenantId"),
    ({"point": "toolCall.guard"}, "invalid", "$.point"),
    ({"point": "ToolCall"}, "invalid", "$.point"),
    ({"onError": "perhaps"}, "invalid", "$.onError"),
    ({"point": "afterStep", "onError": "open"}, "invalid", "$.onError"),
    ({"point": "afterStep", "tool": "*/x"}, "invalid", "$.tool"),
    ({"point": "ModelCall.guard", "tool": "*/x"}, "invalid", "$.tool"),
    ({"on_eror": "open"}, "invalid", "$.onEror"),
    ({"tags": ["a", 1]}, "invalid", "$.tags[1]"),
    ({"tags": [""]}, "invalid", "$.tags[0]"),
    ({"config": []}, "invalid", "$.config"),
    ({"config": {"a": "x" * 70_000}}, "invalid", "$.config"),
    ({"config": {"a": "\ud800"}}, "invalid", "$.config"),
    ({"config": {"a": [float("inf")]}}, "invalid", "$.config"),
    ({"description": "x" * 2001}, "invalid", "$.description"),
    ({"handler": None}, "invalid", "$"),
    ({"script": "a.py"}, "invalid", "$"),
    ({"handler": None, "webhook": HOOK}, "point_not_served", "$.point"),
    ({"handler": None, "point": "afterStep", "webhook": HOOK | {"url": "ftp://x"}}, "webhook_refused", "$.webhook.url"),
    ({"handler": None, "point": "afterStep", "webhook": HOOK | {"timeout": 0}}, "webhook_refused", "$.webhook.timeout"),
    (
        {"handler": None, "point": "afterStep", "webhook": HOOK | {"eventFields": ["x"]}},
        "webhook_refused",
        "$.webhook.eventFields",
    ),
    (
        {"handler": None, "point": "afterStep", "webhook": HOOK | {"headers": {"a": "\n"}}},
        "webhook_refused",
        "$.webhook",
    ),
    (
        {"handler": None, "point": "afterStep", "webhook": HOOK | {"headers": {"a": "\x7f"}}},
        "webhook_refused",
        "$.webhook",
    ),
    (
        {"handler": None, "point": "afterStep", "webhook": HOOK | {"body": {"a": [float("nan")]}}},
        "webhook_refused",
        "$.webhook.body",
    ),
    ({"handler": None, "point": "afterStep", "webhook": HOOK | {"headers": {"a": "\ud800"}}}, "invalid", "$.webhook"),
    ({"handler": None, "point": "afterStep", "webhook": HOOK | {"x": 0}}, "invalid", "$.webhook.x"),
    (
        {"handler": None, "point": "afterStep", "webhook": HOOK | {"control": True}},
        "webhook_refused",
        "$.webhook.control",
    ),
    ({"handler": None, "point": "afterStep", "webhook": HOOK, "timeout": 3}, "invalid", "$.timeout"),
    ({"handler": None, "point": "afterStep", "webhook": HOOK, "config": {"a": 1}}, "invalid", "$.config"),
    (
        {"handler": None, "point": "beforeToolCall", "webhook": HOOK | {"control": True}, "priority": 5},
        "invalid",
        "$.priority",
    ),
]


@for_each("change, code, path", BAD)
def test_a_wrong_field_is_refused_with_its_path(change: dict[str, Any], code: str, path: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        read_definition(VALID | change)

    assert (refused.value.code, refused.value.path) == (code, path)
    assert len(str(refused.value)) < 600
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


@pytest.mark.parametrize(
    ("point", "meant"),
    [
        ("BeforeToolCall.guard", "you mean 'ToolCall.guard'"),
        ("afterCallAgent.after", "you mean 'SubAgentCall.after'"),
        ("toolCall.guard", "you mean 'ToolCall.guard'"),
        (
            "ToolCall",
            "use 'ToolCall.guard'; to observe it, use 'beforeToolCall' or 'afterToolCall' or 'onToolCallError'",
        ),
        ("RequestCall", "to decide about the call, use 'RequestCall.guard'"),
        ("AfterToolCall", "you mean 'afterToolCall'"),
        ("ToolCall.gaurd", "you mean 'ToolCall.guard'"),
        ("nowhere", "a call and a kind such as 'ToolCall.guard'"),
    ],
)
def test_a_point_that_does_not_exist_is_refused_with_the_one_that_is_meant(point: str, meant: str) -> None:
    with pytest.raises(DefinitionError, match="is not a point; ") as refused:
        read_definition(VALID | {"point": point})

    assert meant in str(refused.value)


@for_each("wrong", [None, 3, "text", [], [("name", "n")], object()])
def test_what_is_no_mapping_is_no_definition(wrong: object) -> None:
    with pytest.raises(DefinitionError):
        read_definition(wrong)


def test_a_definition_made_in_python_is_checked_as_one_from_the_wire_is() -> None:
    with pytest.raises(DefinitionError) as refused:
        read_definition(definition(priority=5000))

    assert refused.value.path == "$.priority"


def test_both_spellings_are_read_but_not_of_one_field() -> None:
    assert read_definition(VALID | {"on_error": "open"}).on_error == "open"
    assert read_definition(VALID | {"onError": "open"}).on_error == "open"
    with pytest.raises(DefinitionError, match="two spellings"):
        read_definition(VALID | {"onError": "open", "on_error": "open"})


@pytest.mark.parametrize("inherit", [None, True, False])
@pytest.mark.parametrize("point", ["ToolCall.guard", "AgentCall.around", "afterStep"])
def test_interceptors_go_along_into_sub_agents_and_observers_do_not_unless_told(
    point: str, inherit: bool | None
) -> None:
    read = read_definition(VALID | {"point": point, "inherit": inherit})

    assert read.inherit is inherit
    assert read.inherits is (point != "afterStep" if inherit is None else inherit)


@pytest.mark.parametrize("inherit", [None, True, False])
@pytest.mark.parametrize("control", [True, False])
def test_controls_go_along_into_sub_agents_and_other_webhooks_do_not_unless_told(
    control: bool, inherit: bool | None
) -> None:
    webhook = {**HOOK, "control": control}
    read = read_definition(VALID | {"handler": None, "point": "beforeToolCall", "webhook": webhook, "inherit": inherit})

    assert read.inherits is (control if inherit is None else inherit)


def test_a_definition_cannot_be_changed_by_those_who_read_it() -> None:
    shared = definition(config={"reason": "x", "list": [1]}, tags=["a"])

    with pytest.raises(TypeError, match="read-only"):
        shared.config["reason"] = "y"
    with pytest.raises(TypeError, match="read-only"):
        shared.config["list"].append(2)
    with pytest.raises(TypeError, match="read-only"):
        shared.tags.append("b")


def test_the_error_of_a_file_pickles_with_its_line() -> None:
    error = pickle.loads(pickle.dumps(DefinitionFileError("invalid", "$.hooks[0].name", "is wrong", "a.toml", 3)))

    assert str(error) == "a.toml, line 3: is wrong, at $.hooks[0].name"


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
fields = st.sampled_from([*HookDefinition.__struct_encode_fields__, *HookDefinition.__struct_fields__, "other"])


@given(st.dictionaries(fields, json, max_size=4))
def test_whatever_is_given_is_a_definition_that_survives_json_or_a_definition_error(given: dict[str, Any]) -> None:
    try:
        read = read_definition(VALID | given)
    except DefinitionError:
        return
    assert msgspec.json.decode(msgspec.json.encode(read), type=HookDefinition) == read
