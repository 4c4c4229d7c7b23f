"""The contracts of imports can fail, and errors are named by the package that users import them from."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from grimp import ImportGraph
from importlinter import Contract

import hookline
from hookline.errors import HooklineError, MissingExtraError

from .import_contracts import NoCirclesContract, PrivateModulesContract, circles_in

SOURCE = Path(hookline.__file__).parent


def checked(contract: type[Contract], *imports: tuple[str, str]) -> bool:
    """Whether a graph of these imports keeps a contract."""
    graph = ImportGraph()
    for importer, imported in imports:
        graph.add_import(importer=importer, imported=imported)
    graph.add_module("elsewhere", is_squashed=True)
    return bool(contract("", session_options={}, contract_options={}).check(graph, verbose=False).kept)


@pytest.mark.parametrize(
    ("importer", "imported", "kept"),
    [
        ("hookline.store._store", "hookline.store._rows", True),
        ("hookline.store", "hookline.store._rows", True),
        ("hookline.evals.faults._files", "hookline.evals._canonical", True),
        ("hookline.runtime._run", "hookline._checks", True),
        ("hookline.registry._rows", "hookline.store", True),
        ("hookline.registry._rows", "hookline.store._rows", False),
        ("hookline.evals", "hookline.evals.faults._files", False),
        ("hookline.storehouse", "hookline.store._rows", False),
    ],
)
def test_private_modules_are_imported_within_their_package_only(importer: str, imported: str, kept: bool) -> None:
    assert checked(PrivateModulesContract, (importer, imported)) is kept


def test_a_circle_of_modules_breaks_the_contract() -> None:
    line = [("hookline.a._x", "hookline.a._y"), ("hookline.a._y", "hookline.a._z")]

    assert checked(NoCirclesContract, *line)
    assert not checked(NoCirclesContract, *line, ("hookline.a._z", "hookline.a._x"))


def test_circles_are_found_apart_from_each_other() -> None:
    imports = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"c"}, "e": {"a"}, "f": {"f"}}

    assert sorted(circles_in(imports)) == [["a", "b"], ["c", "d"]]


def every_error() -> list[type[HooklineError]]:
    """Every class of error that hookline's modules define."""
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        if "_migrations" not in parts:
            try:
                import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
            except MissingExtraError:
                continue
    found, open_ = [], [HooklineError]
    while open_:
        kind = open_.pop()
        found.append(kind)
        open_ += kind.__subclasses__()
    return [kind for kind in found if kind.__module__.partition(".")[0] == "hookline"]


def test_every_error_is_imported_from_where_it_says_that_it_is() -> None:
    errors = every_error()

    assert len(errors) > 80
    for kind in errors:
        assert "._" not in kind.__module__
        assert getattr(import_module(kind.__module__), kind.__name__) is kind
