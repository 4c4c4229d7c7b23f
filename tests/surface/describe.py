"""The public surface as text: every name in the `__all__` of every public module, with what a caller may rely on."""

from __future__ import annotations

import ast
import enum
import inspect
import logging
import re
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import import_module
from typing import Any

import msgspec

from hookline.errors import HooklineError, MissingExtraError

MODULES = (
    *(
        "events",
        "calls",
        "hooks",
        "webhooks",
        "wakeups",
        "budgets",
        "redaction",
        "instrumentation",
        "signals",
        "errors",
        "phases",
        "execution",
        "interceptors",
        "dispatcher",
        "engines",
    ),
    *(
        "runtime",
        "loop",
        "adapters",
        "asgi",
        "otel",
        "builtin",
        "bus",
        "delivery",
        "store",
        "registry",
        "hosts",
        "server",
        "cli",
        "pytest_plugin",
    ),
    *(
        "evals",
        "evals.errors",
        "evals.faults",
        "evals.matching",
        "evals.suites",
        "evals.adapter_contract",
        "evals.verdicts",
        "evals.bus_contract",
        "evals.engine_contract",
    ),
)
ADAPTERS = (
    *("agent_framework", "agent_hooks", "claude_agent_sdk", "fastmcp", "google_adk", "langchain", "mcp", "models"),
    *("openai_agents", "pydantic_ai", "strands"),
)
NAMES = (*(f"hookline.{name}" for name in MODULES), *(f"hookline.adapters.{name}" for name in ADAPTERS), "hookline")
"""The public modules. What is in several of them is described in the first; the root comes last, as it has it all."""

COMMANDS = "the command line"
"""The last section."""

SPECIAL = {
    "__aenter__": "async with",
    "__enter__": "with",
    "__aiter__": "async for",
    "__iter__": "for",
    "__len__": "len()",
    "__contains__": "in",
    "__getitem__": "[]",
    "__await__": "await",
    "__add__": "+",
}
"""What objects can do without a method's name, in a reader's words."""


ATTRIBUTE = object()
"""Stands for an attribute that objects get when they are made."""
SCALARS = (str, int, float, types.NoneType)
MANY = 20


class Surface:
    """Describes modules one after the other, each thing once.

    Args:
        public: Every value that has a public name, so that what is private is not named.
    """

    def __init__(self, public: Collection[int]) -> None:
        self._public = public
        self._known: dict[int, str] = {}

    def describe(self, name: str) -> str:
        """Return the section of a module."""
        module = import_module(name)
        lines = [line for each in public_names(module) for line in self._name(name, each, getattr(module, each))]
        return "\n".join([f"[{name}]", *lines, ""])

    def _name(self, module: str, name: str, value: Any) -> Iterator[str]:
        if isinstance(value, types.ModuleType):
            yield f"{name}: module {value.__name__}"
            return
        if isinstance(value, type) or callable(value):
            # An alias such as a union is made anew wherever it is written, so it has no home.
            home = self._known.setdefault(id(value), f"{module}.{name}")
            if home != f"{module}.{name}":
                yield f"{name} = {home}"
                return
        if isinstance(value, type) and not typing.get_args(value):
            yield from describe_class(name, value, self._public)
        elif is_fixture(value):
            yield f"{name}: fixture"
        elif inspect.isroutine(value):
            yield f"{format_prefix(value)}{name}{format_signature(value)}"
        elif typing.get_origin(value) is not None or isinstance(value, types.UnionType | typing.TypeVar):
            yield f"{name} = {format_type(value)}"
        else:
            yield f"{name}: {format_value(value)}"


def public_names(module: types.ModuleType) -> list[str]:
    """Return the `__all__` of a module, or else, of the plugin of pytest, its fixtures."""
    return sorted(getattr(module, "__all__", None) or [name for name, each in vars(module).items() if is_fixture(each)])


def is_fixture(value: object) -> bool:
    """Say whether a value is a fixture of pytest, before version 8.4 or after it."""
    return type(value).__name__ == "FixtureFunctionDefinition" or hasattr(value, "_pytestfixturefunction")


def describe_class(name: str, kind: type[Any], public: Collection[int]) -> Iterator[str]:
    """Return the lines of a class: its bases, how it is made, its public members."""
    bases = [base.__name__ for base in known_bases(kind, public)]
    what = "struct" if issubclass(kind, msgspec.Struct) else "enum" if issubclass(kind, enum.Enum) else "class"
    yield f"{what} {name}" + (f"({', '.join(bases)})" if bases else "")
    if issubclass(kind, enum.Enum):
        yield from (f"    {member.name} = {member.value!r}" for member in kind)
    elif issubclass(kind, msgspec.Struct):
        yield from describe_struct(kind)
    elif typing.is_typeddict(kind):
        yield from (f"    {key}" for key in kind.__annotations__)
    elif hasattr(kind, "_fields"):
        defaults = kind._field_defaults
        yield from (
            f"    {each}" + (f" = {format_value(defaults[each])}" if each in defaults else "") for each in kind._fields
        )
    elif is_own(kind.__init__) and not typing.is_typeddict(kind) and not getattr(kind, "_is_protocol", False):
        yield f"    {format_signature(kind.__init__, bound=True)}"
    yield from (f"    {line}" for line in describe_members(kind, public))


def known_bases(kind: type[Any], public: Collection[int]) -> list[type[Any]]:
    """Return the nearest bases that a reader knows: public ones, and those of other libraries."""
    found: list[type[Any]] = []
    for base in kind.__bases__:
        if base in (object, msgspec.Struct):
            continue
        found += [base] if not is_own(base) or id(base) in public else known_bases(base, public)
    return list(dict.fromkeys(found))


def describe_struct(kind: type[msgspec.Struct]) -> Iterator[str]:
    """Return the lines of a struct: what it is on the wire, and its fields."""
    config = kind.__struct_config__
    marks = ["frozen"] if config.frozen else ["mutable"]
    if kind.__struct_encode_fields__ != kind.__struct_fields__:
        marks.append("camelCase in JSON")
    marks += [f"{config.tag_field}={config.tag!r}"] if config.tag is not None else []
    marks += ["unknown keys refused"] if config.forbid_unknown_fields else []
    marks += ["defaults left out"] if config.omit_defaults else []
    yield f"    # {', '.join(marks)}"
    fields, defaults = kind.__struct_fields__, kind.__struct_defaults__
    padded = [*[msgspec.NODEFAULT] * (len(fields) - len(defaults)), *defaults]
    for name, wire, default in zip(fields, kind.__struct_encode_fields__, padded, strict=True):
        if name.startswith("_"):
            continue
        line = f"{name} by position" if name in kind.__match_args__ else name
        line += "" if default is msgspec.NODEFAULT else f" = {format_value(default)}"
        yield f"    {line}" + ("" if wire in (name, to_camel_case(name)) else f"  # {wire}")


def to_camel_case(name: str) -> str:
    """Return a name as `rename="camel"` spells it."""
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def is_own(value: Any) -> bool:
    """Say whether a function or a class is hookline's."""
    return str(getattr(value, "__module__", "")).startswith("hookline")


def describe_members(kind: type[Any], public: Collection[int]) -> Iterator[str]:
    """Return the public members of a class by name, without those that it has from a public base."""
    fields = {*getattr(kind, "__struct_fields__", ()), *getattr(kind, "_fields", ())}
    described = {each for base in known_bases(kind, public) for each in base.__mro__}
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if is_own(base) and base not in described:
            found.update(dict.fromkeys(assigned_attributes(base), ATTRIBUTE))
            found.update({name: value for name, value in vars(base).items() if name not in error_fields(base)})
    for name, value in sorted(found.items()):
        if name in SPECIAL and value is not None:
            yield f"{SPECIAL[name]}"
        elif name == "__call__":
            yield f"self{format_signature(value, bound=True)}"
        if name.startswith("_") or name in fields or (issubclass(kind, enum.Enum) and name in kind.__members__):
            continue
        if value is not ATTRIBUTE and not hasattr(kind, name):  # a descriptor that explains why there is none
            continue
        yield from describe_member(name, value)


def error_fields(kind: type[Any]) -> Collection[str]:
    """Return the fields that an error class annotates itself."""
    defined = issubclass(kind, HooklineError) and "__dataclass_fields__" in vars(kind)
    return vars(kind).get("__annotations__", ()) if defined else ()


def assigned_attributes(kind: type[Any]) -> Iterator[str]:
    """Return the attributes that a class gives to its objects: an error's fields, or those that its constructor sets."""
    yield from error_fields(kind)
    if not inspect.isfunction(made := vars(kind).get("__init__")) or not is_own(made):
        return
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(made)))
    except OSError:  # a dataclass's, which has no source
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def describe_member(name: str, value: Any) -> Iterator[str]:
    """Return the line of a member."""
    if (
        value is ATTRIBUTE
        or isinstance(value, property)
        or type(value).__name__ in ("cached_property", "member_descriptor")
    ):
        yield f".{name}"
    elif isinstance(value, classmethod | staticmethod):
        bound = isinstance(value, classmethod)
        yield f"{type(value).__name__} .{name}{format_signature(value.__func__, bound=bound)}"
    elif inspect.isroutine(value):
        yield f"{format_prefix(value)}.{name}{format_signature(value, bound=True)}"
    elif isinstance(value, type):
        yield f".{name}: class {value.__name__}"
    else:
        yield f".{name} = {format_value(value)}"


def format_prefix(function: Any) -> str:
    """Return `async ` for what is awaited, and `async with ` for what makes a context."""
    if inspect.isasyncgenfunction(getattr(function, "__wrapped__", None)):
        return "async with "
    return "async " if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function) else ""


def format_signature(function: Callable[..., Any], *, bound: bool = False) -> str:
    """Return the parameters of a function, their kinds and their defaults, without annotations."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    parameters = list(signature.parameters.values())[1 if bound else 0 :]
    plain = [parameter.replace(annotation=parameter.empty) for parameter in parameters]
    defaults = [
        each if each.default is each.empty else each.replace(default=Shown(format_value(each.default)))
        for each in plain
    ]
    return str(signature.replace(parameters=defaults, return_annotation=signature.empty))


class Shown:
    """A default that is printed as given."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def format_type(kind: Any) -> str:
    """Return a type in short names, whatever modules they are in."""
    text = kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", text)


def format_value(value: Any) -> str:
    """Return a value as a reader knows it: no addresses, no private modules, long ones by their size."""
    if type(value).__name__ == "Factory":  # msgspec's, of a default that is made anew
        return f"{value.factory.__name__}()"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, type):
        return value.__name__
    if inspect.isroutine(value):
        return f"{value.__name__}()"
    if isinstance(value, Mapping | frozenset | set) and value:
        keys = ", ".join(sorted(format_value(key) for key in value))
        return f"{'mapping' if isinstance(value, Mapping) else 'set'} of {keys}"
    if isinstance(value, tuple | list) and len(value) > MANY:
        return f"{len(value)} of {', '.join(sorted({type(each).__name__ for each in value}))}"
    if isinstance(value, tuple) and type(value) is tuple:
        return f"({', '.join(format_value(each) for each in value)}{',' if len(value) == 1 else ''})"
    if isinstance(value, re.Pattern):
        return "<pattern>"
    if isinstance(value, msgspec.Struct):
        fields = [getattr(value, name) for name in value.__struct_fields__]
        return repr(value) if all(isinstance(each, SCALARS) for each in fields) else f"{type(value).__name__}(...)"
    if value.__class__.__repr__ is object.__repr__:
        return f"<{type(value).__name__}>"
    if isinstance(value, logging.Logger):
        return f"<Logger {value.name}>"  # its level is that of whatever has run before
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def describe_commands(path: str, command: Any) -> Iterator[str]:
    """Return the lines of a command and of those below it: its arguments and its options."""
    if not command.hidden or path == "hookline eval suite":
        parts = [
            param.opts[0] if param.param_type_name == "argument" else "/".join(param.opts) for param in command.params
        ]
        yield f"{path}: {', '.join(sorted(parts))}" if parts else path
    for name in sorted(getattr(command, "commands", ())):
        yield from describe_commands(f"{path} {name}", command.get_command(None, name))


def describe_sections(missing: list[str]) -> dict[str, str]:
    """Return the section of every public module.

    Args:
        missing: Takes the names of those whose libraries are not installed.
    """
    modules: dict[str, types.ModuleType] = {}
    for name in NAMES:
        try:
            modules[name] = import_module(name)
        except MissingExtraError:
            missing.append(name)
    public = {id(getattr(module, name)) for module in modules.values() for name in public_names(module)}
    surface = Surface(public)
    found = {name: surface.describe(name) for name in modules}
    import typer

    from hookline.cli._app import app

    commands = describe_commands("hookline", typer.main.get_command(app))
    return found | {COMMANDS: "\n".join([f"[{COMMANDS}]", *commands, ""])}
