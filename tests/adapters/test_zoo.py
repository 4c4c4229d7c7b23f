"""The programs of the zoo run in every framework that is installed, and print what the page shows."""

from __future__ import annotations

import contextlib
import io
import pathlib
import runpy
import sys

import pytest

from tests.docs.markdown import ROOT, Block, blocks

from .conftest import MISSING, MODULES

PAGE = ROOT / "docs" / "how-to" / "hooks-zoo.md"
BLOCKS = list(blocks(PAGE.read_text()))
HOOKS, PROGRAMS = BLOCKS[0], BLOCKS[1::2]


def file_of(block: Block) -> str:
    return block.marker.removeprefix("file:").strip()


def framework_of(program: Block) -> str:
    return file_of(program).removeprefix("with_").removesuffix(".py")


@pytest.mark.parametrize("program", PROGRAMS, ids=framework_of)
def test_a_program_of_the_zoo_prints_what_the_page_shows(
    program: Block, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if framework_of(program) in MISSING:
        pytest.skip("its framework is not installed here")
    (tmp_path / file_of(HOOKS)).write_text(HOOKS.code)
    (tmp_path / file_of(program)).write_text(program.code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "zoo", raising=False)  # else its spans would be those of the program before
    shown = BLOCKS[BLOCKS.index(program) + 1]

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(tmp_path / file_of(program)))

    assert printed.getvalue() == shown.code


def test_every_program_has_its_output_beside_it_and_every_adapter_its_program() -> None:
    assert [block.language for block in BLOCKS] == ["python", *["python", "text"] * len(PROGRAMS)]
    assert {framework_of(program) for program in PROGRAMS} == {"hookline", *MODULES}


def test_the_same_calls_are_mocked_refused_and_made_in_every_framework() -> None:
    tools = [[line.strip() for line in block.code.splitlines() if "execute_tool" in line] for block in BLOCKS[2::2]]

    assert tools == [["execute_tool search mocked", "execute_tool pay denied", "execute_tool pay"]] * len(tools)
    assert {block.code.splitlines()[0] for block in BLOCKS[2::2]} == {"Ann is a-1 | more than 100 | paid 50 to a-1"}
