"""The pages of the reference that are read off the code say what the code says."""

from __future__ import annotations

import importlib.util
import types

import msgspec
import pytest

from hookline import errors
from hookline.events import EVENTS

from .markdown import ROOT

REFERENCE = ROOT / "docs" / "reference"


def load_generator() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("generate", REFERENCE / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generator = load_generator()


@pytest.mark.parametrize("name", generator.PAGES)
def test_a_generated_page_is_what_the_generator_writes(name: str) -> None:
    written = (REFERENCE / name).read_text()

    assert written == generator.render(name), "run `python docs/reference/generate.py`"


@pytest.mark.parametrize("kind", EVENTS.values(), ids=lambda kind: kind.__name__)
def test_the_page_of_events_has_every_field_of_every_event(kind: type[msgspec.Struct]) -> None:
    page = generator.render("events.md")
    common = page.partition("## What every event says")[2].partition("\n## ")[0]
    section = page.partition(f"\n## {kind.__name__}\n")[2].partition("\n## ")[0]

    for field in msgspec.structs.fields(kind):
        assert f"| `{field.name}` | `{field.encode_name}` |" in common + section


def test_the_tree_of_errors_has_every_error_at_its_place() -> None:
    drawn = [line for line in (errors.__doc__ or "").splitlines() if "Error" in line]
    parents: list[str] = []
    tree: dict[str, str] = {}
    for line in drawn:
        name = next(word for word in line.split() if word.endswith("Error"))
        depth = line.index(name) // 4
        parents[depth:] = [name]
        if depth:
            tree[name] = parents[depth - 1]

    exported = {name for name in errors.__all__ if name.endswith("Error")}
    assert exported == {"HooklineError", *tree}
    assert all(getattr(errors, name).__bases__[0].__name__ == parent for name, parent in tree.items())
