"""Read faults from a YAML file, for runs started from a command line.

```yaml
faults:
  - {tool: "*/search", fault: timeout, seconds: 5, probability: 0.2}
  - {tool: bank/transfer, args: {currency: EUR}, fault: raise_error, error: ConnectionError, message: down}
  - {tool: "*", fault: latency, seconds: {lognormal: {median: 0.3, sigma: 0.5}}}
```
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hookline._checks import quote
from hookline._yaml import BadLine, LinedDict, LinedList, plain, read_lined
from hookline.evals.errors import FaultDefinitionError, FaultFileError, check_probability
from hookline.evals.faults._call_faults import FailedResult, Fault, FaultSpec, Latency, RaiseError, RateLimit, Timeout
from hookline.evals.faults._content_faults import (
    DuplicatedResult,
    EmptyResult,
    MalformedJson,
    Oversize,
    TruncatedJson,
    WrongSchema,
)
from hookline.evals.faults._times import LogNormal, Normal, Uniform

__all__ = ["FAULT_KINDS", "load_faults", "parse_fault"]


def load_faults(path: str | Path) -> list[FaultSpec]:
    """Read a file of faults: a mapping with one key, `faults`, that holds a list.

    Every entry has `tool` and `fault`, optionally `args`, `probability` and `name`, and the fault's own fields. A
    fault is named like its class in snake case: `rate_limit` for `RateLimit`.

    Args:
        path: The file, YAML in UTF-8.

    Returns:
        The faults, in the order of the file.

    Raises:
        FaultFileError: If it cannot be read, or says anything that no fault takes; it says in which line.
        MissingExtraError: If PyYAML is not installed.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise FaultFileError(str(path), f"the file cannot be read ({error.strerror or error})") from error
    try:
        return [
            parse_fault(*entry) for entry in _parse_entries(read_lined(data, needed_for="Reading faults from a file"))
        ]
    except BadLine as error:
        raise FaultFileError(str(path), error.problem, error.line) from error.__cause__


class FaultKind(NamedTuple):
    """How a file defines one kind of fault: the keys it takes, those it needs, and the function that makes it."""

    keys: tuple[str, ...]
    needed: tuple[str, ...]
    make: Callable[[dict[str, Any]], Fault]


def _parse_entries(document: Any) -> list[tuple[int, Any]]:
    """Return the line and the content of each entry."""
    if document is None:
        raise BadLine(1, "the file is empty; it holds a mapping with one key, `faults`")
    if not isinstance(document, LinedDict):
        raise BadLine(getattr(document, "line", 1), "the file holds a mapping with one key, `faults`")
    for key, line in document.lines.items():
        if key != "faults":
            raise BadLine(line, f"unknown key `{key}`; the file has one key, `faults`")
    faults = document.get("faults")
    if not isinstance(faults, LinedList):
        line = document.lines.get("faults", document.line)
        raise BadLine(line, f"`faults` is a list of mappings; got {quote(plain(faults))}")
    return list(zip(faults.lines, faults, strict=True))


def parse_fault(line: int, entry: Any) -> FaultSpec:
    """Parse a fault: a mapping with `tool`, `fault` and the fault's own fields.

    Args:
        line: The line of the fault, for errors.
        entry: The mapping, as `read_lined` reads it.

    Raises:
        BadLine: If it says anything that no fault takes.
    """
    if not isinstance(entry, LinedDict):
        raise BadLine(line, f"a fault is a mapping with `tool` and `fault`; got {quote(plain(entry))}")
    given = plain(entry)
    try:
        kind = _take_field(given, "fault", str, f"is one of {', '.join(FAULT_KINDS)}")
        tool = _take_field(given, "tool", str, "is a pattern of tools, such as '*/search'")
        args = _take_field(given, "args", dict, "is a mapping of arguments", default=None)
        name = _take_field(given, "name", str, "is text", default=None)
        probability = given.pop("probability", 1.0)
        fault = _make_fault(kind, given)
        check_probability(kind, probability)
    except FaultDefinitionError as error:
        at = entry.lines.get(error.field, line)
        raise BadLine(at, f"{error.fault}: `{error.field}` {error.problem}") from None
    return FaultSpec(tool=tool, fault=fault, args=args, probability=float(probability), name=name)


REQUIRED: Any = object()


def _take_field(given: dict[str, Any], key: str, kind: type, expected: str, *, default: Any = REQUIRED) -> Any:
    """Remove a field from an entry and return its value, if it is of the expected type."""
    if key not in given:
        if default is not REQUIRED:
            return default
        raise FaultDefinitionError("a fault", key, f"is missing; it {expected}")
    value = given.pop(key)
    if not isinstance(value, kind) or value == "":
        raise FaultDefinitionError("a fault", key, f"{expected}; got {quote(value)}")
    return value


def _make_fault(name: str, given: dict[str, Any]) -> Fault:
    kind = FAULT_KINDS.get(name)
    if kind is None:
        raise FaultDefinitionError("a fault", "fault", f"is one of {', '.join(FAULT_KINDS)}; got {quote(name)}")
    for key in given:
        if key not in kind.keys:
            takes = ", ".join((*kind.keys, "tool", "fault", "args", "probability", "name"))
            raise FaultDefinitionError(name, key, f"is an unknown key; it takes {takes}")
    for key in kind.needed:
        if key not in given:
            raise FaultDefinitionError(name, key, "is missing")
    return kind.make(given)


def _make_raise_error(given: dict[str, Any]) -> RaiseError:
    name, message = given["error"], given.get("message", "")
    error = getattr(builtins, name, None) if isinstance(name, str) else None
    if not isinstance(error, type) or not issubclass(error, Exception):
        problem = f"is the name of a built-in exception, such as ConnectionError; got {quote(name)}"
        raise FaultDefinitionError("raise_error", "error", problem)
    if not isinstance(message, str):
        raise FaultDefinitionError("raise_error", "message", f"is text; got {quote(message)}")
    try:
        return RaiseError(error(message) if message else error())
    except TypeError as failure:
        raise FaultDefinitionError("raise_error", "error", f"takes more than a message ({failure})") from None


DISTRIBUTIONS: dict[object, type[Uniform | Normal | LogNormal]] = {
    "uniform": Uniform,
    "normal": Normal,
    "lognormal": LogNormal,
}


def _make_latency(given: dict[str, Any]) -> Latency:
    seconds = given["seconds"]
    if not isinstance(seconds, dict):
        return Latency(seconds)
    name, *others = seconds or [None]
    distribution = DISTRIBUTIONS.get(name)
    if distribution is None or others:
        problem = f"is a number, or a mapping with one of {', '.join(map(str, DISTRIBUTIONS))}; got {quote(seconds)}"
        raise FaultDefinitionError("latency", "seconds", problem)
    fields = [field.name for field in msgspec.structs.fields(distribution)]
    arguments = seconds[name]
    if not isinstance(arguments, dict) or set(arguments) != set(fields):
        problem = f"takes `{name}` as a mapping with {' and '.join(fields)}; got {quote(arguments)}"
        raise FaultDefinitionError("latency", "seconds", problem)
    try:
        return Latency(distribution(**arguments))
    except FaultDefinitionError as error:
        raise FaultDefinitionError("latency", "seconds", f"has a `{error.field}` that {error.problem}") from None


def _kind_of(fault: type[Any]) -> FaultKind:
    fields = msgspec.structs.fields(fault)
    needed = tuple(field.name for field in fields if field.required)
    return FaultKind(tuple(field.name for field in fields), needed, lambda given: fault(**given))


FAULT_KINDS: dict[str, FaultKind] = {
    RaiseError.name: FaultKind(("error", "message"), ("error",), _make_raise_error),
    FailedResult.name: _kind_of(FailedResult),
    Timeout.name: _kind_of(Timeout),
    Latency.name: FaultKind(("seconds",), ("seconds",), _make_latency),
    RateLimit.name: _kind_of(RateLimit),
    TruncatedJson.name: _kind_of(TruncatedJson),
    MalformedJson.name: _kind_of(MalformedJson),
    WrongSchema.name: _kind_of(WrongSchema),
    Oversize.name: _kind_of(Oversize),
    EmptyResult.name: _kind_of(EmptyResult),
    DuplicatedResult.name: _kind_of(DuplicatedResult),
}
"""Every fault that a file may name."""
