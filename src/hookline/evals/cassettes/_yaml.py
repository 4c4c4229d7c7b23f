"""The YAML of cassette files: written for people to review, and read back to exactly the same values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from hookline._yaml import NESTING_PROBLEM, BadLine, LinedDict, LinedList
from hookline.errors import MissingExtraError

__all__ = ["check_installed", "read_yaml", "write_yaml"]

MAX_DEPTH = 64
"""Levels of nesting that a file may have. The parser needs time quadratic in them, and none in the middle of a file."""
MAX_BLOCK_DEPTH = 25
"""Columns of two that are written as YAML; what is nested deeper is written as one line of JSON."""
LOCATED_DEPTH = 3
"""Levels of which every line is kept: the file, its calls, the fields of a call."""
MAX_KEY = 100
"""YAML wants keys of at most 1,024 bytes; each character may take eight."""

JSON_TAG = "!json"
CONSTANTS = {"null": None, "~": None, "": None, "true": True, "false": False}
INTEGER = re.compile(r"[-+]?\d+")
FLOAT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
SPECIAL = {".inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}

# Text that is the same in YAML with nothing around it. Words that some YAML reads as something else get quotes.
BARE = re.compile(r"[^\W\d_](?:[\w./@+()$%;'?=~^<>!*&-]|,(?=\S)|[ ,](?=[\w./@+()$%;'?=~^<>!*&-])|:(?=[\w/.]))*")
RESERVED = re.compile(r"(?i:yes|no|on|off|true|false|null|nan|inf)")
# Text that fits into a block: what YAML leaves alone in one, and a first line that shows where the text begins.
BLOCK = re.compile(r"[\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]+")
ESCAPED = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
SURROGATE = re.compile(r"[\ud800-\udfff]")


def check_installed() -> None:
    """Make sure that cassettes can be read.

    Raises:
        MissingExtraError: If PyYAML is not installed.
    """
    _yaml()


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise MissingExtraError("evals", "A cassette file") from None
    return yaml


# Writing. PyYAML's own writer gives up on blocks where a line ends with a space, and differs between versions.


def write_yaml(document: dict[str, Any]) -> str:
    """Write a document as YAML that reads back as the same document."""
    return "".join(f"{line}\n" for line in _mapping(document, 0))


def _mapping(items: dict[str, Any], level: int) -> Iterator[str]:
    for key, value in items.items():
        yield from _entry(f"{_scalar(key)}:", value, level)


def _entry(start: str, value: Any, level: int) -> Iterator[str]:
    """Write a value after a key or a dash."""
    indent = "  " * level
    if isinstance(value, str) and "\n" in value and _fits_block(value):
        yield from _block(f"{indent}{start} ", value, f"{indent}  ")
    elif isinstance(value, dict | list) and value and _nests(value, level):
        yield f"{indent}{start}"
        yield from _mapping(value, level + 1) if isinstance(value, dict) else _items(value, level)
    else:
        yield f"{indent}{start} {_scalar(value)}"


def _items(items: list[Any], level: int) -> Iterator[str]:
    indent = "  " * level
    for item in items:
        if isinstance(item, dict | list) and item and _nests(item, level + 1):
            first, *further = _mapping(item, level + 1) if isinstance(item, dict) else _items(item, level + 1)
            yield f"{indent}- {first[len(indent) + 2 :]}"
            yield from further
        else:
            yield from _entry("-", item, level)


def _nests(value: dict[str, Any] | list[Any], level: int) -> bool:
    return level < MAX_BLOCK_DEPTH and (
        isinstance(value, list) or not any(len(key) > MAX_KEY or SURROGATE.search(key) for key in value)
    )


def _fits_block(text: str) -> bool:
    return bool(text.strip(" \t\n")) and BLOCK.fullmatch(text) is not None


def _block(start: str, text: str, indent: str) -> Iterator[str]:
    lines = text.split("\n")
    keep = "-" if lines[-1] else "" if lines[-2].strip(" \t") else "+"
    if not lines[-1]:
        lines.pop()
    shown = "2" if text[0] in (" ", "\t", "\n") else ""  # the indentation, which a first line of blanks does not show
    yield f"{start}|{shown}{keep}"
    for line in lines:
        yield f"{indent}{line}" if line else ""


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _quote(value)
    if value is None or isinstance(value, bool):
        return "null" if value is None else "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    return _json(value) if isinstance(value, dict | list) and value else repr(value)


def _quote(text: str) -> str:
    if BARE.fullmatch(text) and not RESERVED.fullmatch(text):
        return text
    if SURROGATE.search(text):
        return _json(text)
    return ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False))


def _json(value: Any) -> str:
    """Write a value as tagged JSON, where YAML cannot hold it or nobody could read it."""
    text = json.dumps(value)
    return f"{JSON_TAG} '{text.replace(chr(39), chr(39) * 2)}'"


# Reading. Values are built from the parser's events: nothing is guessed, no object is made, and every line is known.


def read_yaml(text: str) -> Any:
    """Read a YAML text. The outer mappings are `LinedDict`s and the outer lists `LinedList`s.

    Raises:
        BadLine: If it is not YAML, is nested too deeply, has a key twice, or has several documents, aliases or
            tags.
        MissingExtraError: If PyYAML is not installed.
    """
    yaml = _yaml()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _build(yaml.parse(text, Loader=loader))
    except yaml.reader.ReaderError as error:
        character = error.character if isinstance(error.character, str) else chr(error.character)
        problem = f"it holds the character {character!r}, which YAML does not allow"
        raise BadLine(text.count("\n", 0, max(text.find(character), 0)) + 1, problem) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if error.problem == NESTING_PROBLEM:
            problem = f"it is nested more than {MAX_DEPTH} levels deep"
            raise BadLine(mark.line + 1 if mark else 1, problem) from None
        said = ", ".join(filter(None, (error.context, error.problem)))
        raise BadLine(mark.line + 1 if mark else 1, f"it is not YAML ({said})") from None


def _build(events: Iterator[Any]) -> Any:
    root: list[Any] = []
    stack: list[Any] = []
    keys: list[str | None] = []
    for event in events:
        kind = type(event).__name__
        if kind == "ScalarEvent":
            if stack and keys[-1] is None and isinstance(stack[-1], dict):
                keys[-1] = _key(stack[-1], event)
                continue
            value = _value(event)
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            stack.pop()
            keys.pop()
            continue
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            value = _open_collection(event, kind == "MappingStartEvent", len(stack))
        elif kind == "AliasEvent":
            _refuse(event, f"`*{event.anchor}` repeats another part of the file; write that part out")
        elif kind == "DocumentStartEvent" and root:
            _refuse(event, "it holds several documents; a cassette is one")
        else:
            continue
        if not stack:
            root.append(value)
        elif isinstance(stack[-1], list):
            stack[-1].append(value)
            if isinstance(stack[-1], LinedList):
                stack[-1].lines.append(event.start_mark.line + 1)
        else:
            key, keys[-1] = keys[-1], None
            if key is None:
                _refuse(event, "a key is text, not a list or a mapping")
            stack[-1][key] = value
        if kind != "ScalarEvent":
            stack.append(value)
            keys.append(None)
    return root[0] if root else None


def _open_collection(event: Any, is_mapping: bool, depth: int) -> Any:
    if event.tag is not None:
        _refuse(event, f"the tag {event.tag} is not one of a cassette")
    if depth >= MAX_DEPTH:
        _refuse(event, f"it is nested more than {MAX_DEPTH} levels deep")
    if depth >= LOCATED_DEPTH:
        return {} if is_mapping else []
    return LinedDict(event.start_mark.line + 1) if is_mapping else LinedList(event.start_mark.line + 1)


def _key(owner: dict[str, Any], event: Any) -> str:
    key: str = event.value
    if event.tag is not None:
        _refuse(event, f"the tag {event.tag} is not one of a key")
    if key in owner:
        _refuse(event, f"`{key:.100}` is given twice; leave one of them out")
    if isinstance(owner, LinedDict):
        owner.lines[key] = event.start_mark.line + 1
    owner[key] = None
    return key


def _value(event: Any) -> Any:
    text: str = event.value
    if event.tag == JSON_TAG:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            _refuse(event, f"the text after {JSON_TAG} is not JSON ({error})")
    if event.tag not in (None, "!"):
        _refuse(event, f"the tag {event.tag} is not one of a cassette")
    if event.tag == "!" or not event.implicit[0]:
        return text
    if text in CONSTANTS:
        return CONSTANTS[text]
    if text in SPECIAL:
        return SPECIAL[text]
    if not text[:1].isalpha():
        if INTEGER.fullmatch(text):
            return _number(event, int)
        if FLOAT.fullmatch(text):
            return _number(event, float)
    return text


def _number(event: Any, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(event.value)
    except ValueError as error:
        _refuse(event, f"the number cannot be read ({error})")


def _refuse(event: Any, problem: str) -> NoReturn:
    raise BadLine(event.start_mark.line + 1, problem)
