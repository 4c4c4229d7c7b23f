"""Lay out JSON on as few lines as can be read: what fits on a line stays on it."""

from __future__ import annotations

import msgspec

__all__ = ["layout_json"]

WIDTH = 88
OPENING, CLOSING = ("{", "["), ("}", "]", "},", "],")


def layout_json(text: str | bytes) -> str:
    """Indent JSON, and put each object and list that is short on one line.

    Keys, numbers and repetitions stay as they are written, because nothing is decoded.

    Args:
        text: The JSON.

    Raises:
        msgspec.DecodeError: If it is not JSON.
    """
    indented = msgspec.json.format(text, indent=2)
    lines: list[str] = []
    open_blocks: list[int] = []  # the places in `lines` of the blocks that have not ended
    for line in (indented if isinstance(indented, str) else indented.decode("utf-8", "replace")).split("\n"):
        lines.append(line)
        if line.endswith(OPENING):
            open_blocks.append(len(lines) - 1)
        elif line.strip() in CLOSING and open_blocks:
            start = open_blocks.pop()
            parts = [part.strip() for part in lines[start:]] if len(lines) - start <= WIDTH else []
            if parts and sum(len(part) + 1 for part in parts) <= WIDTH:
                first, *middle, last = parts
                indent = lines[start][: len(lines[start]) - len(first)]
                lines[start:] = [f"{indent}{first}{' '.join(middle)}{last}"]
    return "\n".join(lines)
