"""Show the arguments of a tool call so that people can read them, and none can be mistaken for another."""

from __future__ import annotations

from typing import Any

import msgspec

from hookline.server.page._json_layout import layout_json

__all__ = ["ShownArgument", "list_arguments"]


class ShownArgument(msgspec.Struct, frozen=True, kw_only=True):
    """One argument as it is shown.

    Attributes:
        name: The name.
        text: The value: a text as it is, anything else as JSON.
        is_text: Whether it is a text.
        hint: What tells it from a value that looks the same; `""` if none does.
        is_long: Whether it needs lines of its own.
    """

    name: str
    text: str
    is_text: bool
    hint: str = ""
    is_long: bool


def list_arguments(args: dict[str, Any]) -> list[ShownArgument]:
    """List the arguments of a call as they are shown.

    A text that looks like a number or like other JSON has a hint that it is a text, one that is empty says so, and one
    that begins or ends with spaces is in quotes.
    """
    return [_show_argument(name, value) for name, value in args.items()]


def _show_argument(name: str, value: Any) -> ShownArgument:
    if isinstance(value, str):
        text, hint = _show_text(value)
    else:
        text, hint = msgspec.json.encode(value, enc_hook=str).decode(), ""
        if isinstance(value, dict | list):
            text = layout_json(text)
    is_long = "\n" in text or len(text) > 80
    return ShownArgument(name=name, text=text, is_text=isinstance(value, str), hint=hint, is_long=is_long)


def _show_text(value: str) -> tuple[str, str]:
    """Return how a text is shown, and its hint."""
    if not value:
        return "", "empty text"
    if value != value.strip():
        return msgspec.json.encode(value).decode(), "text"
    try:
        msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return value, ""
    return value, "text"
