"""Read YAML with the lines of all keys and items, and refuse everything that JSON does not have.

PyYAML parses; the walk over its nodes is ours. `ruamel.yaml` keeps lines too, but it accepts aliases, tags, dates and
infinities, so that the same checks would be needed, and it reads YAML 1.2, where `yes` and `010` differ.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hookline.errors import MissingExtraError

if TYPE_CHECKING:
    import yaml

__all__ = ["NESTING_PROBLEM", "BadLine", "LinedDict", "LinedList", "plain", "read_lined"]

MAX_DEPTH = 50
"""Levels of nesting. PyYAML's parser in C ends the process where there are tens of thousands."""
NESTING_PROBLEM = "exceeded maximum nesting depth"
"""What PyYAML's parser in C says since 6.0.4 of more than 1,000 levels, which it may find before we see the first."""

SCALARS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null"))

OPENING, CLOSING = ("MappingStartEvent", "SequenceStartEvent"), ("MappingEndEvent", "SequenceEndEvent")


class BadLine(Exception):
    """A text cannot be used; a caller that knows the file raises an error of its own in its place.

    Attributes:
        line: Where, from 1.
        problem: What is wrong, and how to fix it.
    """

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(line, problem)
        self.line, self.problem = line, problem


class LinedDict(dict[str, Any]):
    """A mapping of a YAML text.

    Attributes:
        line: Where it begins, from 1.
        lines: Where each of its keys stands.
    """

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}


class LinedList(list[Any]):
    """A list of a YAML text.

    Attributes:
        line: Where it begins, from 1.
        lines: Where each of its items begins.
    """

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: list[int] = []


def read_lined(data: bytes, *, needed_for: str) -> Any:
    """Read a YAML text; its mappings are `LinedDict`s and its lists `LinedList`s.

    Args:
        data: The text, in UTF-8.
        needed_for: What needs it, for the error if PyYAML is not installed.

    Returns:
        `None` for a text without content.

    Raises:
        BadLine: If it is no YAML, or has more than one document, a key twice, aliases, tags, or values that JSON
            does not have.
        MissingExtraError: If PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError:
        raise MissingExtraError("evals", needed_for) from None
    text = _decode_utf8(data)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_events(yaml.parse(text, Loader=loader))
        root = yaml.compose(text, Loader=loader)
    except yaml.reader.ReaderError as error:
        # Its position counts characters or bytes, as the loader likes; the character itself is beyond doubt.
        place = max(text.find(chr(error.character)), 0) if isinstance(error.character, int) else 0
        raise BadLine(text.count("\n", 0, place) + 1, f"not YAML: {error.reason}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        is_nested = error.problem == NESTING_PROBLEM
        problem = f"nested more than {MAX_DEPTH} levels deep" if is_nested else f"not YAML: {error.problem}"
        raise BadLine(mark.line + 1 if mark else 1, problem) from None
    return None if root is None else _value(root, yaml.constructor.SafeConstructor())


def plain(value: Any) -> Any:
    """Return the same values as ordinary dicts and lists.

    Args:
        value: What `read_lined` gave, or a part of it.
    """
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def _decode_utf8(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadLine(error.object.count(b"\n", 0, error.start) + 1, "not text in UTF-8") from None


def _check_events(events: Any) -> None:
    depth = 0
    for event in events:
        name = type(event).__name__
        if name == "AliasEvent":
            problem = f"`*{event.anchor}` repeats another part of the file; write that part out"
            raise BadLine(event.start_mark.line + 1, problem)
        if getattr(event, "tag", None) is not None:
            raise BadLine(event.start_mark.line + 1, f"the tag {event.tag} has no meaning here; leave it out")
        depth += (name in OPENING) - (name in CLOSING)
        if depth > MAX_DEPTH:
            raise BadLine(event.start_mark.line + 1, f"nested more than {MAX_DEPTH} levels deep")


def _value(node: Any, constructor: yaml.constructor.SafeConstructor) -> Any:
    line = node.start_mark.line + 1
    if node.id == "mapping":
        return _mapping(node, constructor, line)
    if node.id == "sequence":
        items = LinedList(line)
        for item in node.value:
            items.append(_value(item, constructor))
            items.lines.append(item.start_mark.line + 1)
        return items
    if node.tag not in SCALARS:
        kind = node.tag.rpartition(":")[2]
        raise BadLine(line, f"{node.value!r:.100} is a {kind}, which JSON does not have; put it in quotes")
    try:
        value = constructor.construct_object(node)
    except ValueError as error:
        raise BadLine(line, f"{node.value!r:.100} cannot be read ({error})") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise BadLine(line, f"{node.value} is a number that JSON does not have")
    return value


def _mapping(node: Any, constructor: yaml.constructor.SafeConstructor, line: int) -> LinedDict:
    found = LinedDict(line)
    for key_node, value_node in node.value:
        key_line = key_node.start_mark.line + 1
        if key_node.id != "scalar" or not key_node.tag.endswith(":str"):
            key_shown = f"`{key_node.value}`" if key_node.id == "scalar" else f"a {key_node.id}"
            raise BadLine(key_line, f"a key is text, and {key_shown:.100} is not; put it in quotes")
        key = key_node.value
        if key in found:
            raise BadLine(key_line, f"`{key}` is given twice; it is in line {found.lines[key]} already")
        found[key] = _value(value_node, constructor)
        found.lines[key] = key_line
    return found
