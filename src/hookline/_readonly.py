"""Read-only views of JSON-like values, so that one copy can be shown to any number of hooks, and `NotStored`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec
from msgspec.structs import force_setattr

from hookline.errors import FieldNotStoredError

__all__ = [
    "NO_DICT",
    "NO_LIST",
    "NotStored",
    "ReadOnlyDict",
    "ReadOnlyList",
    "check_finite",
    "freeze_dict",
    "freeze_list",
    "keep_jsonable",
    "read_only",
    "read_only_value",
    "writable",
]


class _ReadOnly:
    """Refuses every change of a dict or a list."""

    __slots__ = ()

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("what a hook is shown is read-only: copy it first, and return or use the copy")

    __setitem__ = __delitem__ = __ior__ = __iadd__ = __imul__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse
    append = extend = insert = remove = reverse = sort = _refuse


class ReadOnlyDict(_ReadOnly, dict[str, Any]):
    """A dict that equals, encodes and reads like any other, but cannot be changed. Copies of it can."""

    __slots__ = ()

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    copy = __copy__

    def __deepcopy__(self, memo: object) -> dict[str, Any]:
        return {key: writable(value) for key, value in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return (ReadOnlyDict, (dict(self),))


class ReadOnlyList(_ReadOnly, list[Any]):
    """A list that equals, encodes and reads like any other, but cannot be changed. Copies of it can."""

    __slots__ = ()

    def __copy__(self) -> list[Any]:
        return list(self)

    copy = __copy__

    def __deepcopy__(self, memo: object) -> list[Any]:
        return [writable(value) for value in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return (ReadOnlyList, (list(self),))


def writable(value: Any) -> Any:
    """Return a copy of a read-only value that can be changed; any other value is returned as it is."""
    if isinstance(value, ReadOnlyDict | ReadOnlyList):
        return value.__deepcopy__(None)
    if value.__class__ is tuple:
        return tuple(writable(item) for item in value)
    return value


def read_only_value(value: Any) -> Any:
    """Return a read-only copy of a JSON-like value; anything but a dict, list or tuple is returned as it is."""
    kind = value.__class__
    if kind is str or kind is int or kind is float or kind is bool or value is None:
        return value
    if kind is ReadOnlyDict or kind is ReadOnlyList:
        return value
    if isinstance(value, dict):
        return ReadOnlyDict({key: read_only_value(item) for key, item in value.items()})
    if isinstance(value, list):
        return ReadOnlyList([read_only_value(item) for item in value])
    if kind is tuple:
        return tuple(read_only_value(item) for item in value)
    return value


def read_only(value: Mapping[str, Any]) -> ReadOnlyDict:
    """Return a read-only copy of a JSON object, nested values included; a read-only one is returned as it is."""
    if value.__class__ is ReadOnlyDict:
        return value
    if _SCALARS.issuperset(map(type, value.values())):  # as most are; no Python call for each value
        return ReadOnlyDict(value)
    return ReadOnlyDict({key: read_only_value(item) for key, item in value.items()})


_SCALARS = frozenset({str, int, float, bool, type(None)})


NO_LIST = ReadOnlyList()
NO_DICT = ReadOnlyDict()
"""Defaults that all structs share."""


def freeze_dict(struct: msgspec.Struct, name: str, value: Any) -> None:
    """Make a field a read-only copy of the JSON object that it was given, inside of `__post_init__`.

    Raises:
        TypeError: If it is no mapping.
    """
    kind = value.__class__
    if kind is not ReadOnlyDict:
        if kind is NotStored:
            return
        if kind is not dict and not isinstance(value, Mapping):
            raise TypeError(f"`{name}` of a {type(struct).__name__} is a mapping; got {value!r:.200}")
        force_setattr(struct, name, read_only(value) if value else NO_DICT)


def freeze_list(struct: msgspec.Struct, name: str, value: Any) -> None:
    """Make a field a read-only copy of the list that it was given, inside of `__post_init__`.

    Raises:
        TypeError: If it is no sequence.
    """
    kind = value.__class__
    if kind is not ReadOnlyList:
        if kind is NotStored:
            return
        if kind is not list and (not isinstance(value, Sequence) or isinstance(value, str)):
            raise TypeError(f"`{name}` of a {type(struct).__name__} is a list; got {value!r:.200}")
        force_setattr(struct, name, ReadOnlyList(value))


def check_finite(path: str, value: object) -> None:
    """Refuse a number that JSON does not have, which the encoder would write as `null`.

    Raises:
        ValueError: That names the path of the number.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"`{path}` is {value}")
    elif isinstance(value, dict):
        for key, item in value.items():
            check_finite(f"{path}.{key}", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            check_finite(f"{path}[{index}]", item)


def keep_jsonable(given: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a mapping that JSON can carry, as they are after it."""
    if not given:
        return {}
    carried = {}
    for key, value in given.items():
        try:
            carried[key] = msgspec.json.decode(msgspec.json.encode({key: value}))[key]
        except (TypeError, ValueError, RecursionError, KeyError):
            continue
    return carried


class NotStored:
    """Stands for a field that is not stored, so that a hook which uses it fails instead of seeing a default.

    Args:
        name: The field, such as `"ModelCall.settings"`.
        reads: A list to which the name is added whenever somebody uses the field.
    """

    __slots__ = ("_name", "_reads")

    def __init__(self, name: str, reads: list[str]) -> None:
        self._name = name
        self._reads = reads

    def __repr__(self) -> str:
        return "<not stored>"

    def __eq__(self, other: object) -> bool:
        # Copies of a call are compared with it, which reads nothing.
        return self is other if other.__class__ is NotStored else self._refuse()

    def _refuse(self, *args: object) -> NoReturn:
        self._reads.append(self._name)
        raise FieldNotStoredError(self._name)

    __getattr__ = __getitem__ = __iter__ = __len__ = __bool__ = __contains__ = _refuse
    __hash__ = __str__ = __format__ = __int__ = __float__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
