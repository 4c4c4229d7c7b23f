"""Show the arguments of a tool call so that people can read them, and none can be mistaken for another."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["ShownArgument", "list_arguments"]


class ShownArgument(msgspec.Struct, frozen=True, kw_only=True):
    """One argument as it is shown.

    Attributes:
        name: The name.
        text: The value: a text as it is, anything else as JSON.
        is_text: Whether it is a text that cannot be mistaken for JSON.
        is_long: Whether it needs lines of its own.
    """

    name: str
    text: str
    is_text: bool
    is_long: bool


def list_arguments(args: dict[str, Any]) -> list[ShownArgument]:
    """List the arguments of a call as they are shown.

    A text that could be mistaken for a number, for other JSON or for nothing is shown in quotes.
    """
    return [_show_argument(name, value) for name, value in args.items()]


def _show_argument(name: str, value: Any) -> ShownArgument:
    is_text = isinstance(value, str) and not _looks_like_json(value)
    if is_text:
        text = value
    else:
        encoded = msgspec.json.encode(value, enc_hook=str)
        text = (msgspec.json.format(encoded, indent=2) if isinstance(value, dict | list) else encoded).decode()
    return ShownArgument(name=name, text=text, is_text=is_text, is_long="\n" in text or len(text) > 80)


def _looks_like_json(text: str) -> bool:
    if not text or text != text.strip():
        return True
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return False
    return True
