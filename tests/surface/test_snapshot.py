"""The public surface is what `surface.txt` says; a change of one shows as a change of the other."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import pytest

from hookline.errors import MissingExtraError

from .describe import COMMANDS, NAMES, describe_sections

SNAPSHOT = Path(__file__).with_name("surface.txt")
SECTIONS = (*NAMES, COMMANDS)
UPDATE = "HOOKLINE_UPDATE_SURFACE"
HEAD = f"""\
# The public surface of hookline, written by tests/surface: every name in the `__all__` of every public module.
# A test compares it with the code. When a change is meant, write this file anew and let the diff be read:
#
#     {UPDATE}=1 python -m pytest tests/surface
#
# A name that is in several modules is described once. Annotations are left out, as the type checker reads them.
# Sections of adapters whose libraries are not installed are kept as they are, and are checked where they are installed;
# those that nobody could write yet (claude_agent_sdk, google_adk, strands, until their libraries are there) are missing.
"""


def read_sections() -> dict[str, str]:
    """Return the sections of the snapshot by module; none if it is to be written for the first time."""
    if not SNAPSHOT.exists():
        return {}
    found: dict[str, str] = {}
    for section in SNAPSHOT.read_text().split("\n[")[1:]:
        found[section.partition("]")[0]] = f"[{section.rstrip()}\n"
    return found


def test_the_surface_is_the_one_of_the_snapshot() -> None:
    missing: list[str] = []
    now = describe_sections(missing)
    stored = read_sections()
    kept = {name: now.get(name) or stored.get(name) for name in SECTIONS}
    if os.environ.get(UPDATE):
        SNAPSHOT.write_text("\n".join([HEAD, *(section for section in kept.values() if section)]))
        stored = read_sections()

    changed = list(difflib.unified_diff(_lines(stored), _lines(kept), "surface.txt", "the code", lineterm="", n=1))

    if changed:
        meant = f"The public surface has changed. If that is meant, write the snapshot anew with {UPDATE}=1."
        pytest.fail("\n".join([meant, *changed]), pytrace=False)
    assert [name for name in missing if not name.startswith("hookline.adapters.")] == []


def _lines(found: Mapping[str, str | None]) -> list[str]:
    """Return all sections as lines, each with the name of its module, so that a diff says where it is."""
    return [
        line if line.startswith("[") else f"{name}  {line}"
        for name, section in found.items()
        for line in (section or "").splitlines()
        if line
    ]


@pytest.mark.parametrize("name", [name for name in SECTIONS if name not in read_sections()])
def test_a_module_without_a_section_cannot_be_imported_here(name: str) -> None:
    with pytest.raises(MissingExtraError):
        import_module(name)
