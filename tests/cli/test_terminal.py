"""Tables, fields and JSON lines of commands, whatever text is in them."""

from __future__ import annotations

import contextlib
import io
import json
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.cli._terminal import JOINERS, Column, print_list, print_result

COLUMNS = [Column("whole", str), Column("cut", str, rank=1, cut=True), Column("right", str, rank=2, right=True)]


def printed(show: Callable[[], None]) -> str:
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")) as out:
        show()
        out.flush()
    return out.buffer.getvalue().decode()  # type: ignore[attr-defined]


def is_obeyed(char: str) -> bool:
    """Say whether a terminal may take a character for a command, or show the text around it in another order."""
    return char != "\n" and char not in JOINERS and unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")


@given(text=st.text(st.characters(exclude_categories=())))
def test_no_cell_of_a_table_reaches_the_terminal_as_a_command(text: str) -> None:
    out = printed(lambda: print_list([text], COLUMNS, as_json=False, nothing=""))

    assert [char for char in out if is_obeyed(char)] == []
    assert len(out.splitlines()) >= 3


@given(text=st.text())
def test_no_field_reaches_the_terminal_as_a_command(text: str) -> None:
    out = printed(lambda: print_result(None, [("name", text), ("other", [text])], as_json=False))

    assert [char for char in out if is_obeyed(char) and char != "\t"] == []


@given(texts=st.lists(st.text(), min_size=1))
def test_each_entry_is_one_line_of_json_that_holds_its_text(texts: list[str]) -> None:
    out = printed(lambda: print_list(texts, COLUMNS, as_json=True, nothing=""))

    assert [json.loads(line) for line in out.rstrip("\n").split("\n")] == texts


@pytest.mark.parametrize("as_json", [True, False])
def test_a_list_without_entries_prints_nothing_on_stdout(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    print_list([], COLUMNS, as_json=as_json, nothing="There is nothing.")

    told = capsys.readouterr()
    assert told.out == ""
    assert (told.err == "There is nothing.\n") is not as_json
