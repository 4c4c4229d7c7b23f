"""Arguments and results are laid out so that people can read them, and no value is taken for another."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.server.page._arguments import list_arguments
from hookline.server.page._json_layout import WIDTH, layout_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=120),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=20), inner, max_size=8),
    max_leaves=20,
)


@given(VALUES)
def test_json_keeps_its_values_and_the_order_of_its_keys(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)

    laid_out = layout_json(text)

    assert json.loads(laid_out, object_pairs_hook=list) == json.loads(text, object_pairs_hook=list)


@given(st.lists(VALUES) | st.dictionaries(st.text(max_size=20), VALUES))
def test_what_fits_on_a_line_is_on_one_and_nothing_else_is(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)

    lines = layout_json(text).split("\n")

    assert (lines == [text]) == (len(text) + 3 <= WIDTH)


def test_numbers_and_repeated_keys_are_shown_as_they_are_written() -> None:
    assert layout_json('{"total":129.90,"total":1e400,"id":123456789012345678901234567890}') == (
        '{"total": 129.90, "total": 1e400, "id": 123456789012345678901234567890}'
    )


def test_a_list_that_is_long_has_a_line_for_each_entry() -> None:
    rows = [{"title": f"Returns and refunds, part {number}", "url": "/help/refunds"} for number in range(3)]

    lines = layout_json(msgspec.json.encode(rows)).split("\n")

    assert lines[1] == '  {"title": "Returns and refunds, part 0", "url": "/help/refunds"},'
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("value", "text", "hint"),
    [
        (8812, "8812", ""),
        ("8812", "8812", "text"),
        (True, "true", ""),
        ("true", "true", "text"),
        (None, "null", ""),
        ("null", "null", "text"),
        ("", "", "empty text"),
        (" 8812", '" 8812"', "text"),
        ("pytest -q", "pytest -q", ""),
        (["8812"], '["8812"]', ""),
        ('["8812"]', '["8812"]', "text"),
    ],
)
def test_a_text_that_looks_like_another_value_says_that_it_is_a_text(value: object, text: str, hint: str) -> None:
    shown = list_arguments({"order": value})[0]

    assert (shown.text, shown.hint) == (text, hint)


@given(st.text(), VALUES)
def test_no_two_arguments_look_the_same(text: str, value: Any) -> None:
    one, other = list_arguments({"a": text, "b": value})

    assert (one.text, one.hint) != (other.text, other.hint) or text == value
