"""Events as Python values: frozen, keyword-only, read-only all the way down, and easy to copy."""

from __future__ import annotations

import collections
import copy
import pickle
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import (
    AfterStep,
    AfterToolCall,
    BeforeHumanIntervention,
    BeforeStep,
    BeforeToolCall,
    DrainReport,
    Event,
    Hook,
    HookExecution,
    OnToolCallError,
    PendingTool,
    ToolOutcome,
    ToolRequest,
    ToolResult,
    decode,
    encode,
)
from tests.tables import for_each

from .samples import TABLE, events_of, example

EVERY = pytest.mark.parametrize("kind", list(TABLE), ids=lambda kind: kind.__name__)
WITH_ARGS = pytest.mark.parametrize("kind", [BeforeToolCall, AfterToolCall, OnToolCallError])

DICT_EDITS: dict[str, Callable[[Any], object]] = {
    "set": lambda d: d.__setitem__("new", 1),
    "replace": lambda d: d.__setitem__("q", 1),
    "del": lambda d: d.__delitem__("q"),
    "update": lambda d: d.update(q=1),
    "update nothing": lambda d: d.update(),
    "pop": lambda d: d.pop("q"),
    "pop default": lambda d: d.pop("absent", None),
    "popitem": lambda d: d.popitem(),
    "clear": lambda d: d.clear(),
    "setdefault": lambda d: d.setdefault("q", 1),
    "|=": lambda d: d.__ior__({"q": 1}),
}
LIST_EDITS: dict[str, Callable[[Any], object]] = {
    "set": lambda x: x.__setitem__(0, "n"),
    "slice": lambda x: x.__setitem__(slice(0, 1), []),
    "del": lambda x: x.__delitem__(0),
    "append": lambda x: x.append(1),
    "extend": lambda x: x.extend([1]),
    "insert": lambda x: x.insert(0, 1),
    "pop": lambda x: x.pop(),
    "remove": lambda x: x.remove(x[0]),
    "clear": lambda x: x.clear(),
    "sort": lambda x: x.sort(key=str),
    "reverse": lambda x: x.reverse(),
    "+=": lambda x: x.__iadd__([1]),
    "*=": lambda x: x.__imul__(2),
}


def unchanged_by(edit: Callable[[Any], object], value: Any, event: Event) -> bool:
    """An edit in place raises or is lost; either way the event says what it said."""
    before = encode(event)
    try:
        edit(value)
    except (TypeError, AttributeError):
        pass
    return encode(event) == before


@EVERY
def test_no_field_of_an_event_can_be_assigned(kind: type[Event]) -> None:
    event = example(kind)

    for name in kind.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(event, name, None)


@for_each("kind", [*TABLE, ToolOutcome, PendingTool, ToolResult, DrainReport, Hook, HookExecution])
def test_every_record_is_frozen_and_keyword_only(kind: type[msgspec.Struct]) -> None:
    assert kind.__struct_config__.frozen
    with pytest.raises(TypeError):
        kind("op")  # type: ignore[call-arg]


@WITH_ARGS
@for_each("edit", DICT_EDITS.values(), ids=DICT_EDITS.keys())
def test_args_cannot_be_edited_in_place(kind: Any, edit: Callable[[Any], object]) -> None:
    event = example(kind)

    assert unchanged_by(edit, event.args, event)
    assert unchanged_by(edit, event.args["q"], event)
    assert unchanged_by(edit, event.args["q"]["deep"][1], event)


@WITH_ARGS
@for_each("edit", LIST_EDITS.values(), ids=LIST_EDITS.keys())
def test_lists_in_args_cannot_be_edited_in_place(kind: Any, edit: Callable[[Any], object]) -> None:
    event = example(kind)

    assert unchanged_by(edit, event.args["q"]["deep"], event)


@for_each("kind", [AfterToolCall, OnToolCallError])
@for_each("edit", DICT_EDITS.values(), ids=DICT_EDITS.keys())
def test_metadata_cannot_be_edited_in_place(kind: Any, edit: Callable[[Any], object]) -> None:
    event = example(kind)

    assert unchanged_by(edit, event.metadata, event)
    assert unchanged_by(edit, event.metadata["rule"], event)


@for_each("edit", LIST_EDITS.values(), ids=LIST_EDITS.keys())
def test_lists_of_an_event_cannot_be_edited_in_place(edit: Callable[[Any], object]) -> None:
    step, pause = example(AfterStep), example(BeforeHumanIntervention)

    assert unchanged_by(edit, step.tools_calling, step)
    assert unchanged_by(edit, step.tools_result, step)
    assert unchanged_by(edit, pause.pending_tools, pause)


def test_the_arguments_that_a_model_asked_for_cannot_be_edited_in_place() -> None:
    event = example(AfterStep)

    assert unchanged_by(lambda args: args.__setitem__("q", "other"), event.tools_calling[0].args, event)


def test_the_arguments_that_wait_for_a_person_cannot_be_edited_in_place() -> None:
    event = example(BeforeHumanIntervention)

    assert unchanged_by(lambda args: args.__setitem__("to", "me"), event.pending_tools[0].args, event)
    assert unchanged_by(lambda args: args["to"].__setitem__("n", 2), event.pending_tools[0].args, event)


@pytest.mark.parametrize(
    "nested",
    [collections.OrderedDict(a=1), collections.defaultdict(list, a=1), collections.Counter(a=1)],
    ids=lambda value: type(value).__name__,
)
def test_a_nested_dict_of_another_kind_cannot_be_edited_in_place_either(nested: dict[str, Any]) -> None:
    event = example(BeforeToolCall, args={"x": nested})

    assert unchanged_by(lambda args: args["x"].__setitem__("a", 2), event.args, event)


@WITH_ARGS
def test_the_dict_that_the_caller_gave_stays_the_callers(kind: Any) -> None:
    given_args: dict[str, Any] = {"q": {"deep": [1]}}

    event = example(kind, args=given_args)
    given_args["q"]["deep"].append(2)
    given_args["more"] = True

    assert event.args == {"q": {"deep": [1]}}
    assert type(given_args) is dict
    assert given_args == {"q": {"deep": [1, 2]}, "more": True}


def test_the_lists_that_the_caller_gave_stay_the_callers() -> None:
    calling = [ToolRequest(tool_name="a", tool_call_id="t")]
    pending = [PendingTool(toolset="l", tool_name="a", tool_call_id="t", args={})]

    step = example(AfterStep, tools_calling=calling)
    pause = example(BeforeHumanIntervention, pending_tools=pending)
    calling.clear()
    pending.clear()

    assert len(step.tools_calling) == 1
    assert len(pause.pending_tools) == 1


def test_read_only_values_read_like_plain_ones() -> None:
    args = example(BeforeToolCall).args

    assert isinstance(args, dict)
    assert args == {"q": {"deep": [1, {"x": 2}]}}
    assert {**args} == args
    assert type(args | {"y": 1}) is dict
    assert isinstance(args["q"]["deep"], list)
    assert sorted(args["q"]["deep"] + [], key=str)
    assert args.get("absent", 3) == 3


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda value: value.copy()], ids=["copy", "deepcopy", "method"]
)
def test_a_copy_of_args_is_the_handlers_own(copied: Callable[[Any], Any]) -> None:
    event = example(BeforeToolCall)

    mine = copied(event.args)
    mine["q"] = 1

    assert mine == {"q": 1}
    assert event.args == {"q": {"deep": [1, {"x": 2}]}}


def test_a_deep_copy_of_args_can_be_edited_all_the_way_down() -> None:
    event = example(BeforeToolCall)

    mine = copy.deepcopy(event.args)
    mine["q"]["deep"][1]["x"] = 3
    mine["q"]["deep"].append(4)

    assert mine == {"q": {"deep": [1, {"x": 3}, 4]}}
    assert event.args == {"q": {"deep": [1, {"x": 2}]}}


@EVERY
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_events_pickle_and_copy_and_stay_read_only(kind: type[Event], data: st.DataObject) -> None:
    event = data.draw(events_of(kind))

    for other in (pickle.loads(pickle.dumps(event)), copy.copy(event), copy.deepcopy(event)):
        assert other == event
        assert type(other) is kind
        assert encode(other) == encode(event)
        for name in ("args", "metadata"):
            if hasattr(other, name):
                with pytest.raises(TypeError):
                    getattr(other, name)["new"] = 1


def test_a_decoded_event_is_read_only_too() -> None:
    event = decode(encode(example(BeforeToolCall)))

    assert isinstance(event, BeforeToolCall)
    with pytest.raises(TypeError):
        event.args["q"]["deep"][1]["x"] = 3


def test_replace_makes_a_new_read_only_event() -> None:
    event = example(BeforeToolCall)

    other = msgspec.structs.replace(event, args={"a": {"b": 1}})

    assert event.args != other.args
    with pytest.raises(TypeError):
        other.args["a"]["b"] = 2


def test_a_copy_of_a_mocked_event_is_not_mocked() -> None:
    event = example(BeforeToolCall)
    event.mock("42")

    assert event.mocked
    for other in (pickle.loads(pickle.dumps(event)), copy.deepcopy(event), copy.copy(event)):
        assert not other.mocked
        assert other == event


def test_a_negative_time_is_what_it_was_given_as() -> None:
    assert example(BeforeStep, time_unix_nano=-1).time_unix_nano == -1


def test_mock_on_another_event_is_told_where_it_works() -> None:
    event = BeforeStep(operation_id="op", step_index=0)

    with pytest.raises(
        AttributeError, match=r"'BeforeStep' object has no attribute 'mock'; .* hooks\.on\(BeforeToolCall\)"
    ):
        event.mock("answer")  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"has no attribute 'stepindex'$"):
        event.stepindex  # type: ignore[attr-defined]


@EVERY
def test_no_event_has_a_getattr_that_slows_each_read_of_its_fields(kind: type[Event]) -> None:
    assert not hasattr(kind, "__getattr__")
    assert hasattr(kind, "operation_id")


def test_only_a_call_that_has_not_run_has_mock() -> None:
    assert [kind.__name__ for kind in TABLE if hasattr(example(kind), "mock")] == ["BeforeToolCall"]
