"""Write values as canonical JSON: equal values give the same text."""

from __future__ import annotations

import json

import msgspec

from hookline._readonly import ReadOnlyDict

__all__ = ["canonical"]

_ONE_LINE = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def canonical(value: object, *, indent: int | None = None, sort_keys: bool = True) -> str:
    """Write a value as ASCII JSON. Values that JSON does not know are written as their `repr`.

    The standard library's encoder, since models and tools also give lone surrogates and integers beyond 64 bits, which
    faster ones refuse.

    Args:
        value: Structs, dicts, lists and plain values.
        indent: Columns per level; `None` for one line.
        sort_keys: Whether keys come in alphabetical order, so that equal values give equal texts.
    """
    if indent is None and sort_keys and (value.__class__ is ReadOnlyDict or value.__class__ is dict):
        try:
            return _ONE_LINE.encode(value)
        except TypeError:
            pass  # the value has parts that JSON does not know
    plain = msgspec.to_builtins(value, enc_hook=repr)
    separators = (",", ":") if indent is None else None
    return json.dumps(plain, sort_keys=sort_keys, indent=indent, separators=separators)
