"""Contracts of import-linter that the house is held to; `pyproject.toml` names them."""

from __future__ import annotations

from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, output


class PrivateModulesContract(Contract):
    """Nobody imports a private module of a package from outside of that package.

    A package's `__init__` is its only door. Packages inside of a package may use what is private to it.
    """

    type_name = "private_modules"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Find the imports that go past a package's door."""
        wrong = sorted(
            (importer, imported)
            for imported in modules_of(graph)
            if imported.rpartition(".")[2].startswith("_")
            for importer in graph.find_modules_that_directly_import(imported)
            if not f"{importer}.".startswith(f"{imported.rpartition('.')[0]}.")
        )
        return ContractCheck(kept=not wrong, metadata={"wrong": wrong})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print each import that goes past a door, and the door."""
        for importer, imported in check.metadata["wrong"]:
            output.print_error(f"{importer} imports {imported}: import from {imported.rpartition('.')[0]}", bold=False)


class NoCirclesContract(Contract):
    """No modules import each other in a circle, imports for annotations alone included.

    A package's `__init__` is left out: it imports from modules that may need one another's package.
    """

    type_name = "no_circles"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Find the circles."""
        single = {module for module in modules_of(graph) if not graph.find_children(module)}
        imports = {
            module: {each for each in graph.find_modules_directly_imported_by(module) if each in single}
            for module in single
        }
        return ContractCheck(kept=not (found := circles_in(imports)), metadata={"circles": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print each circle."""
        for circle in check.metadata["circles"]:
            output.print_error(f"a circle: {' <-> '.join(circle)}", bold=False)


def modules_of(graph: ImportGraph) -> list[str]:
    """Return the modules of hookline, without those of other distributions, of which the graph knows no inside."""
    return [module for module in graph.modules if module.partition(".")[0] == "hookline"]


def circles_in(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that reach each other, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = lowest[module] = len(index)
        stack.append(module)
        for imported in sorted(imports.get(module, ())):
            if imported not in index:
                visit(imported)
                lowest[module] = min(lowest[module], lowest[imported])
            elif imported in stack:
                lowest[module] = min(lowest[module], index[imported])
        if lowest[module] == index[module]:
            group: list[Any] = []
            while not group or group[-1] != module:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for module in sorted(imports):
        if module not in index:
            visit(module)
    return found
