"""`parse_docstring`: what a docstring says about a function and each of its parameters."""

from __future__ import annotations

import re

__all__ = ["parse_docstring"]


def parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the description and the notes on parameters or attributes, from Google sections or `:param name:` fields.

    Args:
        text: A docstring without its indentation, as `inspect.getdoc` returns it.
    """
    notes: dict[str, list[str]] = {}
    told: list[str] = []
    section, current, indent = "", None, 0
    for line in text.splitlines():
        field = re.match(r":param\s+(?:\S+\s+)?(\w+):\s*(.*)", line)
        if re.fullmatch(r"(Args|Arguments|Parameters|Attributes|Returns|Raises|Yields|Examples?|Notes?|Source):", line):
            section, current = line.rstrip(":"), None
        elif field or line.startswith(":"):
            section, current = "fields", field[1] if field else None
            if field:
                notes[field[1]] = [field[2]]
        elif not section:
            told.append(line)
        elif section in ("Args", "Arguments", "Parameters", "Attributes", "fields") and line.strip():
            entry = re.match(r"(\s+)\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)", line)
            if entry and section != "fields" and (current is None or len(entry[1]) <= indent):
                current, indent = entry[2], len(entry[1])
                notes[current] = [entry[3]]
            elif current is not None:
                notes[current].append(line.strip())
    return "\n".join(told).strip(), {name: " ".join(filter(None, lines)) for name, lines in notes.items()}
