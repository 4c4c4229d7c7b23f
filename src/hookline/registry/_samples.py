"""Samples to try a hook out on: typed, made of as much as somebody has given."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import msgspec

from hookline.calls import CALLS, Call
from hookline.errors import HookUsageError
from hookline.events import EventFields
from hookline.interceptors import check_fields, result_of
from hookline.registry._definition import Point
from hookline.registry._errors import DefinitionError

__all__ = ["Sample", "sample_of"]

EMPTY: dict[object, Any] = {str: "", int: 0, float: 0.0, bool: False, bytes: b"", dict: {}, list: []}
TEXTS = {"operation_id": "op_sample", "api_name": "sample", "tool_call_id": "call_sample", "method": "GET", "path": "/"}
"""What stands for a text that is not given, where an empty one would be misleading."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What a hook is tried out on.

    Attributes:
        subject: The event or the call.
        result: The result of the call.
    """

    subject: Any
    result: Any = None


def sample_of(point: Point, given: object, tenant_id: str) -> Sample:
    """The sample of what was given; fields that are missing are filled in.

    Args:
        point: Where the hook stands.
        given: An event or a call, or a mapping with some of its fields, and `result` with some of the result's.
        tenant_id: Whose it is, unless it says so.

    Raises:
        DefinitionError: If it is no sample for that point.
    """
    kind = point.event or point.call
    assert kind is not None
    if isinstance(given, EventFields | Call):
        if not isinstance(given, kind):
            raise _bad("$.sample", f"{point.name} takes a {kind.__name__}; got a {type(given).__name__}")
        return Sample(subject=given, result=_filled(CALLS[type(given)], {}) if isinstance(given, Call) else None)
    if not isinstance(given, Mapping):
        raise _bad("$.sample", f"a sample is a mapping with fields of a {kind.__name__}; got {type(given).__name__}")
    fields = {_snake(str(key)): value for key, value in given.items()}
    kind_of_result = CALLS[point.call] if point.call is not None else None
    result = _result(kind_of_result, fields.pop("result", {})) if kind_of_result is not None else None
    if point.event is not None:
        fields.pop("type", None)
    fields.setdefault("tenant_id", tenant_id)
    subject = _filled(kind, fields)
    problem = check_fields(subject) if isinstance(subject, Call) else None
    if problem is not None:
        raise _bad("$.sample", problem)
    return Sample(subject=subject, result=result)


def _result(kind: type[msgspec.Struct], given: object) -> Any:
    if isinstance(given, Mapping):
        return _filled(kind, {_snake(str(key)): value for key, value in given.items()}, "$.sample.result")
    try:
        return result_of(kind, given)
    except HookUsageError as error:
        raise _bad("$.sample.result", str(error)) from None


def _filled(kind: type[Any], fields: dict[str, Any], path: str = "$.sample") -> Any:
    """A struct of some of its fields."""
    known = {field.name: field for field in msgspec.structs.fields(kind)}
    unknown = sorted(set(fields) - set(known))
    if unknown:
        raise _bad(f"{path}.{unknown[0]}", f"a {kind.__name__} has no field {unknown[0]!r:.100}")
    wire: dict[str, Any] = {}
    for name, field in known.items():
        if name in fields:
            wire[field.encode_name] = fields[name]
        elif name in TEXTS or field.required:
            wire[field.encode_name] = TEXTS.get(name, _empty(field.type))
    config = kind.__struct_config__
    if config.tag is not None:
        wire[config.tag_field] = config.tag
    try:
        return msgspec.convert(wire, kind)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).rpartition(" - at `")
        where = place.rstrip("`").removeprefix("$") if reason else ""
        raise _bad(f"{path}{where}", reason or str(error)) from None


def _empty(kind: Any) -> Any:
    origin = get_origin(kind)
    if origin is Literal:
        return get_args(kind)[0]
    if origin in (types.UnionType, typing.Union):
        return None if type(None) in get_args(kind) else _empty(get_args(kind)[0])
    return EMPTY.get(origin or kind)


def _snake(key: str) -> str:
    return "".join(f"_{character.lower()}" if character.isupper() else character for character in key)


def _bad(path: str, problem: str) -> DefinitionError:
    return DefinitionError("invalid", path, problem)
