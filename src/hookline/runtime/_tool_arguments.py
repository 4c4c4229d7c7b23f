"""Arguments of tools: the schema of a function's parameters, and the check of what a model gives for them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from hookline._readonly import writable
from hookline.errors import AgentDefinitionError, ToolArgumentsError

__all__ = ["compile_binding", "describe_parameters"]

_ARGUMENTS = "_Arguments"
"""Name of the struct that holds a tool's parameters, unlikely to be that of one of their types."""


def describe_parameters(
    fn: Callable[..., Any], name: str, notes: dict[str, str]
) -> tuple[type[msgspec.Struct], dict[str, Any]]:
    """Return a struct whose fields are the parameters of a tool's function, and its schema.

    Args:
        fn: The function.
        name: The name of the tool.
        notes: What its docstring says of parameters, by their names.

    Raises:
        AgentDefinitionError: If the parameters cannot be described by a schema.
    """
    where = f"Tool {name!r}"
    try:
        signature = inspect.signature(fn)
        target: Any = getattr(fn, "func", fn)
        hints = typing.get_type_hints(target if inspect.isroutine(target) else target.__call__, include_extras=True)
    except (NameError, TypeError, ValueError) as error:
        raise AgentDefinitionError(where, f"its annotations cannot be resolved: {error}") from error
    fields: list[Any] = []
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise AgentDefinitionError(where, f"`{parameter}` cannot be described by a schema; use named parameters")
        hint = hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            # The function's own default applies, so that any object may be one.
            fields.append((parameter.name, hint | msgspec.UnsetType if hint is not Any else Any, msgspec.UNSET))
    try:
        struct = msgspec.defstruct(_ARGUMENTS, fields, kw_only=True)
        schema = _schema(struct, notes)
        msgspec.convert({}, msgspec.defstruct("_", [("inner", struct | None, None)]), dec_hook=_validate)
    except (TypeError, ValueError) as error:
        raise AgentDefinitionError(where, f"its parameters cannot be described by a schema: {error}") from error
    return struct, schema


def _schema(parameters: type[msgspec.Struct], notes: dict[str, str]) -> dict[str, Any]:
    _, components = msgspec.json.schema_components([parameters], schema_hook=_schema_of, ref_template="#/$defs/{name}")
    own: dict[str, Any] = components.pop(_ARGUMENTS)
    own.pop("title", None)
    own["additionalProperties"] = False
    for parameter, note in notes.items():
        if parameter in own["properties"]:
            own["properties"][parameter].setdefault("description", note)
    for field in own["properties"].values():
        if field.get("default", ...) is msgspec.UNSET:
            del field["default"]
    if components:
        own["$defs"] = components
    return own


def _schema_of(kind: type) -> dict[str, Any]:
    describe = getattr(kind, "model_json_schema", None)
    if callable(describe):
        return typing.cast("dict[str, Any]", describe())
    raise TypeError(f"{kind!r} has no JSON Schema")


def _validate(kind: type, value: object) -> object:
    validate = getattr(kind, "model_validate", None)
    if callable(validate):
        return validate(value)
    raise TypeError(f"cannot make a {kind.__name__} of JSON")


def compile_binding(name: str, parameters: type[msgspec.Struct]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return a function that checks a model's arguments, and returns those to call the tool's function with.

    It raises `ToolArgumentsError` for arguments that do not fit.

    Args:
        name: The name of the tool.
        parameters: The struct of its parameters.
    """
    fields = parameters.__struct_fields__
    known, has_defaults = frozenset(fields), bool(parameters.__struct_defaults__)

    def bind(args: Mapping[str, Any]) -> dict[str, Any]:
        if not known.issuperset(args):
            unknown = [key for key in args if key not in known]
            raise ToolArgumentsError(
                name, f"unknown {', '.join(map(repr, unknown))}; it takes {', '.join(fields) or 'nothing'}"
            )
        try:
            values = msgspec.convert(writable(args), parameters, strict=False, dec_hook=_validate)
        except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as error:
            raise ToolArgumentsError(name, str(error)) from error
        bound = msgspec.structs.asdict(values)
        return {name: value for name, value in bound.items() if value is not msgspec.UNSET} if has_defaults else bound

    return bind
