"""Who imports an adapter loads its framework, and none of the others; without it, the error says what to install."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hookline.errors import install_command

from .conftest import MISSING, MODULES

FRAMEWORKS = {*MODULES.values(), "langchain"}
WITHOUT = [("agent_framework", "agent_framework"), ("mcp", "mcp"), ("mcp", "pydantic"), ("mcp", "httpx2")]
"""Adapters, and a package that each of them needs."""

# Each adapter is imported in a fork of one process, since to start Python and to import hookline takes longer than some
# of them; without the collector of garbage, which would look through all that is imported for a third of the time.
IMPORTING = """
import gc, importlib, json, os, sys
import anyio, hookline, msgspec  # no module of hookline: an adapter may be the first that is imported
import httpx2, mcp, openai, pydantic.v1  # no framework: several of them load these

gc.disable()
for adapter, missing in json.loads(sys.argv[1]):
    if not os.fork():
        inner = [name for name in sys.modules if name.startswith(f"{missing}.")]
        sys.modules.update(dict.fromkeys([missing, *inner]) if missing else {})
        try:
            importlib.import_module(f"hookline.adapters.{adapter}")
            error = ""
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        print(json.dumps([adapter, missing, sorted(sys.modules), error]), flush=True)
        os._exit(0)
    os.wait()
"""

Imported = dict[tuple[str, str], tuple[set[str], str]]


@pytest.fixture(scope="module")
def imported() -> Imported:
    """The modules that are loaded after the import of each adapter, by a package that is missing, and the error."""
    cases = [*((adapter, "") for adapter in MODULES), *WITHOUT]
    command = [sys.executable, "-c", IMPORTING, json.dumps(cases)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {(adapter, missing): (set(loaded), error) for adapter, missing, loaded, error in map(json.loads, lines)}


@pytest.mark.parametrize("adapter", sorted(set(MODULES) - set(MISSING)))
def test_importing_an_adapter_loads_no_other_framework(adapter: str, imported: Imported) -> None:
    loaded, error = imported[adapter, ""]

    own = {MODULES[adapter]} | ({"langchain"} if adapter == "langchain" else set())
    assert (FRAMEWORKS & loaded, error) == (own, "")


@pytest.mark.parametrize(
    ("adapter", "package"),
    [*((adapter, "") for adapter in MISSING), *(each for each in WITHOUT if each[0] not in MISSING)],
)
def test_an_adapter_without_a_package_says_what_to_install(adapter: str, package: str, imported: Imported) -> None:
    _, error = imported[adapter, package]

    assert error.startswith("MissingExtraError: ")
    assert install_command(adapter.replace("_", "-")) in error
