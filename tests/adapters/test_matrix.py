"""The matrix of the docs says what the adapters say."""

from __future__ import annotations

import importlib.util
import types

import pytest

from tests.docs.markdown import ROOT

REFERENCE = ROOT / "docs" / "reference"


def load_generator() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("generate_adapters", REFERENCE / "generate_adapters.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generator = load_generator()
written = (REFERENCE / "adapters.md").read_text()


def test_the_page_is_what_the_generator_writes() -> None:
    assert generator.render(generator.read(written)) == written


@pytest.mark.parametrize("name", generator.ADAPTERS)
def test_the_column_of_an_adapter_is_what_it_can_drive(name: str) -> None:
    stage = generator.stage_of(name)
    if stage is None:
        pytest.skip("its framework is not installed here")
    drawn, column = generator.drawn(stage), generator.read(written)[generator.ADAPTERS[name]]

    assert column == {row: drawn[row] for row in column}, "run `python docs/reference/generate_adapters.py`"
    assert generator.UNKNOWN not in column.values()


def test_environments_may_take_turns_in_any_order() -> None:
    one, other = {"events": "yes"}, {"events": "no"}
    columns = {"Pydantic AI": one, "Strands": other}

    assert generator.render(columns) == generator.render(dict(reversed(columns.items())))
