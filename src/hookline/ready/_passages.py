"""Cutting passages out of text, and text out of whatever holds it."""

from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["Span", "in_every_text", "replaced"]

Span = tuple[int, int]
"""Where a passage starts and ends, in characters."""


def replaced(text: str, spans: Iterable[Span], replacement: str) -> str:
    """The text with every passage replaced; those that overlap or touch are replaced as one."""
    parts: list[str] = []
    at = 0
    for start, end in _joined(spans):
        parts += text[at:start], replacement
        at = end
    return "".join([*parts, text[at:]]) if parts else text


def _joined(spans: Iterable[Span]) -> list[Span]:
    joined: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def in_every_text(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON-like value with every text in it changed, keys excepted; the very same value if nothing changes."""
    if isinstance(value, str):
        changed = change(value)
        return value if changed == value else changed
    if isinstance(value, dict):
        items = {key: in_every_text(item, change) for key, item in value.items()}
        return value if all(items[key] is value[key] for key in items) else items
    if isinstance(value, list | tuple):
        parts = [in_every_text(item, change) for item in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        return tuple(parts) if isinstance(value, tuple) else parts
    return value
