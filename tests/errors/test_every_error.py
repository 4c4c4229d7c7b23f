"""Every error class of hookline takes its fields in any way, says them in its sentence, and survives pickling."""

from __future__ import annotations

import copy
import inspect
import pickle
import string
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from surface.describe import NAMES

from hookline.errors import (
    HookDenied,
    HooklineError,
    MissingExtraError,
    StoreUnavailableError,
    TransientModelError,
    define_error,
)
from hookline.events import PendingTool
from tests.tables import for_each

SAMPLES = {
    "str": "some {text}",
    "int": 7,
    "float": 0.5,
    "bool": True,
    "object": "stop",
    "list[str]": ["a", "b"],
    "Sequence[str]": ["a", "b"],
    "tuple[str, ...]": ("a", "b"),
    "Sequence[Any]": [PendingTool(toolset="local", tool_name="pay", tool_call_id="c1", args={})],
    "Sequence[tuple[str, str, str]]": [("a", "guard", "ToolCall")],
    "DeliveryCode": "gone",
    "ScriptCode": "timeout",
}
"""A value for each type of a field. A text has braces, which a sentence must leave alone."""


def find_subclasses(kind: type[HooklineError]) -> Iterator[type[HooklineError]]:
    for below in kind.__subclasses__():
        if below.__module__.startswith("hookline."):
            yield below
            yield from find_subclasses(below)


def import_everything() -> None:
    for name in (*NAMES, "hookline.cli.errors"):
        try:
            import_module(name)
        except MissingExtraError:
            continue


import_everything()
CLASSES = sorted(set(find_subclasses(HooklineError)), key=lambda kind: (kind.__module__, kind.__name__))
every_class = for_each("kind", CLASSES)


def fields_of(kind: type[HooklineError]) -> dict[str, Any]:
    """Return a value for each parameter of an error's constructor; one text for a class that has no fields."""
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    return {
        each.name: SAMPLES[inspect.formatannotation(each.annotation).strip("'").removesuffix(" | None")]
        for each in parameters
        if each.kind is not each.VAR_POSITIONAL and each.kind is not each.VAR_KEYWORD
    }


def make(kind: type[HooklineError]) -> HooklineError:
    fields = fields_of(kind)
    return kind(**fields) if fields else kind()


@every_class
def test_it_pickles_with_its_fields_and_its_notes(kind: type[HooklineError]) -> None:
    error = make(kind)
    error.add_note("in the third attempt")

    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is kind
        assert (str(again), repr(again), vars(again)) == (str(error), repr(error), vars(error))


@every_class
def test_it_can_be_copied(kind: type[HooklineError]) -> None:
    error = make(kind)

    for again in (copy.copy(error), copy.deepcopy(error)):
        assert (type(again), str(again), vars(again)) == (kind, str(error), vars(error))


@every_class
def test_fields_by_position_and_by_keyword_make_the_same_error(kind: type[HooklineError]) -> None:
    fields = fields_of(kind)
    parameters = inspect.signature(kind.__init__).parameters
    by_keyword_only = {name: value for name, value in fields.items() if parameters[name].kind.name == "KEYWORD_ONLY"}
    by_position = [value for name, value in fields.items() if name not in by_keyword_only]

    first, second = kind(*by_position, **by_keyword_only), make(kind)

    assert (str(first), repr(first), vars(first), first.args) == (str(second), repr(second), vars(second), second.args)
    assert {name: getattr(first, name) for name in fields} == fields


@every_class
def test_its_repr_shows_its_fields(kind: type[HooklineError]) -> None:
    error = make(kind)
    parameters = inspect.signature(kind.__init__).parameters

    assert repr(error).startswith(f"{kind.__name__}(")
    for name, value in fields_of(kind).items():
        assert parameters[name].kind.name == "KEYWORD_ONLY" or repr(value) in repr(error)


@every_class
def test_it_says_its_sentence_which_has_no_other_fields_than_its_own(kind: type[HooklineError]) -> None:
    fields, sentence = fields_of(kind), vars(kind).get("_sentence", "")

    names = {name for _, name, _, _ in string.Formatter().parse(sentence) if name is not None}

    assert names <= set(fields)
    assert not sentence or str(make(kind)) == sentence.format_map(fields)


@every_class
def test_a_forgotten_field_is_refused_by_its_name(kind: type[HooklineError]) -> None:
    required = [
        each.name
        for each in list(inspect.signature(kind.__init__).parameters.values())[1:]
        if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
    ]

    for name in required:
        with pytest.raises(TypeError, match=name):
            kind(**{each: value for each, value in fields_of(kind).items() if each != name})


@given(reason=st.text())
def test_text_in_a_field_is_never_read_as_a_part_of_the_sentence(reason: str) -> None:
    assert str(HookDenied("h", reason)) == f"Hook 'h' denied the call: {reason}"


def test_a_class_of_a_user_without_fields_takes_a_text_like_any_exception() -> None:
    class RateLimited(TransientModelError):
        pass

    class Broken(HooklineError):
        pass

    assert (str(RateLimited("slow down", 3.0)), RateLimited("slow down", 3.0).retry_after) == ("slow down", 3.0)
    assert (str(Broken("all of {it}")), repr(Broken("it"))) == ("all of {it}", "Broken('it')")


def test_a_class_of_a_user_keeps_its_own_constructor() -> None:
    class QuotaReached(TransientModelError):
        def __init__(self, quota: int) -> None:
            super().__init__(f"{quota} tokens are used up", 60.0)
            self.quota = quota

    error = QuotaReached(5)

    assert (str(error), error.retry_after, error.quota) == ("5 tokens are used up", 60.0, 5)


def test_an_error_of_the_system_has_its_reason_as_its_strerror() -> None:
    assert StoreUnavailableError("sqlite:///a.db", problem="disk full").strerror == "disk full"


def test_a_field_that_is_changed_later_is_said_as_it_is() -> None:
    error = HookDenied("h", "first")

    error.reason = "second"

    assert str(error) == "Hook 'h' denied the call: second"


def test_a_defined_error_says_its_sentence_although_its_base_has_words_of_its_own() -> None:
    class Base(HooklineError):
        def __str__(self) -> str:
            return "words of the base"

    @define_error("{size} is too large.")
    class TooLarge(Base):
        size: int

    assert str(TooLarge(3)) == "3 is too large."
