"""The pages of the reference have every public name, and their tables say what the code says."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import types

import msgspec
import pytest

from hookline import calls, errors
from hookline.errors import MissingExtraError
from hookline.evals import errors as evals_errors
from hookline.events import EVENTS, PendingTool, ToolOutcome, ToolRequest
from hookline.phases import TRANSITIONS, Phase
from hookline.registry import POINTS, HandlerCatalog
from hookline.registry import _errors as registry_errors
from tests.surface.describe import NAMES

from .markdown import ROOT, documented, rows

REFERENCE = ROOT / "docs" / "reference"
PAGES = {path.stem: path.read_text() for path in REFERENCE.glob("*.md")}
OF_OTHERS = {
    "hookline.execution": "what dispatchers and chains are made of",
    "hookline.instrumentation": "what telemetry attaches to",
    "hookline.cli": "how-to/command-line.md",
}
"""Public modules without a page in the reference, and why."""
INTERNAL = {
    *("as_tool_result", "tool_failure", "read_only", "message_of", "without_password", "hook_batch", "as_result"),
    *("Redacting", "InterceptorKey"),
}
"""Public names that serve other modules of hookline."""


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OF_OTHERS])
def test_every_public_class_and_function_is_in_the_reference(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except MissingExtraError:
        pytest.skip("its framework is not installed here")
    shown = {path.rpartition(".")[2] for page in PAGES.values() for path in documented(page)}

    public = {each for each in getattr(module, "__all__", ()) if has_docstring(getattr(module, each))}

    assert public - shown - INTERNAL == set(), "add them to a page of docs/reference"


def has_docstring(thing: object) -> bool:
    return inspect.isclass(thing) or inspect.isfunction(thing)


def test_no_name_is_documented_twice() -> None:
    shown = [path for page in PAGES.values() for path in documented(page)]

    assert sorted(shown) == sorted(set(shown))


def test_the_page_of_the_http_api_is_what_its_generator_writes() -> None:
    written = PAGES["http-api"]

    assert written == load_generator().render(), "run `python docs/reference/generate_http_api.py`"


def load_generator() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("generate_http_api", REFERENCE / "generate_http_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_events_lists_all_sixteen_with_their_names_on_the_wire() -> None:
    listed = {code(row[0]): code(row[1]) for row in rows(PAGES["events"], "Events")}

    assert listed == {kind.__name__: kind.hook_type.value for kind in EVENTS.values()}


@pytest.mark.parametrize(
    "kind", [*EVENTS.values(), ToolRequest, ToolOutcome, PendingTool], ids=lambda kind: kind.__name__
)
def test_a_field_on_the_wire_is_in_camel_case_or_its_page_says_otherwise(kind: type[msgspec.Struct]) -> None:
    named = {"toolset": "identifier", "tool_name": "apiName"}  # by `msgspec.field(name=...)`, which the page shows

    for field in msgspec.structs.fields(kind):
        assert field.encode_name == named.get(field.name, camel_case(field.name))


def camel_case(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


def test_the_table_of_calls_has_every_call_with_its_result() -> None:
    listed = {code(row[0]): code(row[2]) for row in rows(PAGES["control"], "Calls and results")}

    assert listed == {call.__name__: result.__name__ for call, result in calls.CALLS.items()}


def test_the_table_of_phases_has_every_move() -> None:
    listed = {code(row[0]): set(re.findall(r"`(\w+)`", row[2])) for row in rows(PAGES["control"], "Phases")}

    assert listed == {phase.value: {each.value for each in TRANSITIONS[phase]} for phase in Phase}


def test_the_table_of_handlers_has_all_that_hookline_brings_along() -> None:
    listed = {code(row[0]): (row[1], re.findall(r"`(\w+)`", row[2])) for row in rows(PAGES["registry"], "Handlers")}

    entries = [entry for entry in HandlerCatalog().entries() if entry.provided_by == "hookline"]
    assert listed == {entry.name: (entry.description, list(entry.parameters)) for entry in entries}


def test_the_page_of_the_registry_counts_the_places_of_hooks() -> None:
    assert f"the {len(POINTS)} points" in PAGES["registry"]
    assert all(f"`{name}`" in PAGES["registry"] for name, point in POINTS.items() if point.event)


def code(cell: str) -> str:
    """What stands in backticks in a cell."""
    return cell.split("`")[1]


@pytest.mark.parametrize(
    ("module", "page"),
    [(errors, "errors"), (evals_errors, "errors"), (registry_errors, "registry")],
    ids=["core", "evals", "registry"],
)
def test_the_page_draws_the_tree_of_errors_as_its_module_does(module: types.ModuleType, page: str) -> None:
    drawn = re.search(r"```\n(.*?)```", module.__doc__ or "", re.DOTALL)

    assert drawn is not None
    assert drawn[1] in PAGES[page]


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
