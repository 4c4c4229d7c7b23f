"""Text that may leave the process: valid Unicode, of bounded length."""

from __future__ import annotations

from hookline.otel._attributes import OTHER

__all__ = ["clean", "count", "error_type"]

NAME_CHARACTERS = 256
"""How long a name or an id may be. A model can invent a tool's name of any length."""


def clean(text: object, limit: int = NAME_CHARACTERS) -> str:
    """A name or an id as an attribute can carry it: what is no valid Unicode is replaced, the rest is cut.

    Exporters drop a value with half of a surrogate pair, and write a traceback into the log.
    """
    if not isinstance(text, str):
        return f"<{type(text).__name__}>"
    if text.__class__ is not str:
        text = str.__str__(text)  # of a class of its own, which encoders do not know
    if len(text) > limit:
        text = f"{text[: limit - 1]}…"
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def error_type(name: object) -> str:
    """The class of a failure: a name, or `_OTHER`. Whoever answers with a failure may have written a sentence."""
    text = name if isinstance(name, str) else ""
    return text if len(text) <= NAME_CHARACTERS and text.isascii() and text.replace(".", "").isidentifier() else OTHER


def count(number: object) -> int | str:
    """A count as an attribute can carry it: exporters drop what does not fit into 64 bits."""
    return min(number, 2**63 - 1) if isinstance(number, int) else clean(number)
