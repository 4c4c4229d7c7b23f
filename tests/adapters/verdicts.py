"""What the tests of verdicts share: the paths and decisions of a group, and its section of the page."""

from __future__ import annotations

import importlib.util
import types
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hookline.evals.verdicts import DECISIONS, Path, VerdictError, check_verdict
from tests.docs.markdown import ROOT
from tests.tables import for_each

__all__ = ["VerdictError", "check_page", "check_verdict", "each_verdict", "load_generator"]

PAGE = ROOT / "docs" / "reference" / "verdicts.md"


def load_generator() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("generate_verdicts", PAGE.with_name("generate_verdicts.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def each_verdict(paths: Sequence[Path]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test for each path, on each event loop of the path, that goes through all decisions."""
    cases = [pytest.param(backend, path, id=f"{path}-{backend}") for path in paths for backend in path.backends]

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        whole = for_each("decision", DECISIONS)(test)
        return pytest.mark.anyio(pytest.mark.parametrize(("anyio_backend", "path"), cases)(whole))

    return decorate


def check_page(group: str, paths: Sequence[Path]) -> None:
    """Fail unless the page has the section of a group as the generator writes it."""
    generator = load_generator()
    written = generator.read(PAGE.read_text()).get(group)
    assert written == generator.section(group, paths).rstrip() + "\n", (
        f"run `python docs/reference/generate_verdicts.py {group}`"
    )
