"""Definitions in TOML and YAML files: read as a whole or not at all, with the line of what is wrong.

```toml
[[hooks]]
name = "No shell"
point = "ToolCall.guard"
handler = "deny-tools"
config = { tools = ["bash"] }
```
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hookline._yaml import BadLine, LinedDict, LinedList, plain, read_lined
from hookline.errors import MissingExtraError, message_of
from hookline.registry._definition import HookDefinition, read_definition, spelled
from hookline.registry._errors import DefinitionError, DefinitionFileError

__all__ = ["Entry", "Files", "Lines", "line_of_key", "lines_of_tables", "load_file", "new_id"]

Lines = dict[str, int]
"""Where keys stand, from line 1, by their path in an entry: `"webhook"`, `"webhook.timeout"`."""

TEXT = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?!")|' + r"'''.*?'''(?!')|" + r'"(?:[^"\\\n]|\\.)*"|' + r"'[^'\n]*'|#[^\n]*", re.DOTALL
)
"""A text of several lines or one, or a comment."""
NAME = r"[\"']?[\w-]+[\"']?"
PATH = rf"{NAME}(?:\s*\.\s*{NAME})*"
HEADER = re.compile(r"\s*\[\[\s*[\"']?hooks[\"']?\s*\]\]")
TABLE = re.compile(rf"\s*\[\[?\s*[\"']?hooks[\"']?\s*\.\s*({PATH})\s*\]")
KEY = re.compile(rf"\s*({PATH})\s*=")
INLINE = re.compile(rf"[\[\]{{}}]|({PATH})\s*=")


def line_of_key(text: str, key: str) -> int | None:
    """The line of a key of the whole document: where it is set, or else that of its first table."""
    text = _without_texts(text)
    name = rf"[\"']?{re.escape(key)}[\"']?\s*"
    before = re.split(r"^\s*\[", text, maxsplit=1, flags=re.MULTILINE)[0]
    found = re.search(rf"^[^\S\n]*{name}[=.]", before, re.MULTILINE)
    found = found or re.search(rf"^[^\S\n]*\[\[?\s*{name}[\].]", text, re.MULTILINE)
    return None if found is None else text.count("\n", 0, found.start()) + 1


def lines_of_tables(text: str, count: int) -> list[tuple[int | None, Lines]]:
    """Where the tables of `hooks` begin, and their keys stand.

    Args:
        text: The document, which is valid TOML.
        count: How many there are. Where another number is found, only the line of `hooks` itself is told.
    """
    found = _below_headers(text) or _inline(text)
    if len(found) == count:
        return [*found]
    line = line_of_key(text, "hooks")
    return [(line, {})] * count


def _below_headers(text: str) -> list[tuple[int, Lines]]:
    """Tables that are written as `[[hooks]]`."""
    found: list[tuple[int, Lines]] = []
    table = ""
    for line, content in enumerate(_without_texts(text).split("\n"), 1):
        if HEADER.match(content):
            found.append((line, {}))
            table = ""
        elif found and (header := TABLE.match(content)):
            _note(found[-1][1], _path(header[1]), line)
            table = _path(header[1]) + "."
        elif found and (key := KEY.match(content)):
            _note(found[-1][1], table + _path(key[1]), line)
    return found


def _inline(text: str) -> list[tuple[int, Lines]]:
    """Tables that are written as `hooks = [{...}, {...}]`."""
    text = _without_texts(text, short=True)
    start = re.search(r"^\s*hooks\s*=\s*(?=\[)", text, re.MULTILINE)
    found: list[tuple[int, Lines]] = []
    depth = 0
    for match in INLINE.finditer(text, start.end() if start else len(text)):
        line = text.count("\n", 0, match.start()) + 1
        if match[0] in "[{":
            depth += 1
            if depth == 2:
                found.append((line, {}))
        elif match[0] in "]}":
            depth -= 1
            if depth == 0:
                break
        elif depth == 2:
            _note(found[-1][1], _path(match[1]), line)
    return found


def _note(lines: Lines, path: str, line: int) -> None:
    """Keep the line of a path, and that of what it is in, unless these are known."""
    for end in (*(match.start() for match in re.finditer(r"\.", path)), len(path)):
        lines.setdefault(path[:end], line)


def _path(written: str) -> str:
    return re.sub(r"[\"'\s]", "", written)


def _without_texts(text: str, *, short: bool = False) -> str:
    """A document with its lines, but without its comments and the texts in it.

    Args:
        text: The document.
        short: Whether to leave out texts of one line too; a key may be one.
    """

    def blank(match: re.Match[str]) -> str:
        is_short = match[0][0] in "\"'" and match[0][:3] not in ('"""', "'''")
        return match[0] if is_short and not short else "\n" * match[0].count("\n")

    return TEXT.sub(blank, text)


SUFFIXES = (".toml", ".yaml", ".yml")
LARGEST_FILE = 8 * 1024 * 1024
SET_HERE = frozenset({"source", "revision", "createdAt", "updatedAt", "problem"})
"""Fields that a file may not set."""

UNREADABLE = "unreadable"
LONG_NUMBER = re.compile(r"(?<![0-9A-Za-z_.])[+-]?[0-9][0-9_]{1000,}")
"""Python reads whole numbers of up to 4,300 digits, or what it is told to, but of 640 in any case."""
PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)")

Stamp = tuple[int, int, int]


class Entry(NamedTuple):
    """One definition in a file.

    Attributes:
        given: What it says.
        line: Where it begins; `None` where nobody can tell.
        lines: Where its keys stand, as far as that is known.
    """

    given: dict[str, Any]
    line: int | None
    lines: Lines

    def line_of(self, path: str) -> int | None:
        """The line that a JSON path in it means: that of its longest part that is known, or of the entry."""
        known = {_loose(path): line for path, line in self.lines.items()}
        left = _loose(path.removeprefix("$").removeprefix("."))
        while left and left not in known:
            left = re.sub(r"(?:^|[.\[])[^.\[]*$", "", left)
        return known.get(left, self.line)


class Files:
    """The definitions of some files, which are read again when they change.

    Args:
        paths: Files, or folders of files that end in `.toml`, `.yaml` or `.yml`.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = [Path(path) for path in paths]
        self._stamps: dict[Path, Stamp | None] = {}
        self.definitions: tuple[HookDefinition, ...] = ()

    def changed(self) -> bool:
        """Whether a file is there that was not, is gone, or was written since it was read last."""
        stamps = {path: _stamp(path) for path in self._found()}
        differs = stamps != self._stamps
        self._stamps = stamps
        return differs

    def load(self, check: Callable[[HookDefinition], object] | None = None) -> tuple[HookDefinition, ...]:
        """Read all files.

        Args:
            check: Looks at each definition.

        Raises:
            DefinitionFileError: If one of them cannot be used; `definitions` are those of before.
        """
        try:
            return self._load(check)
        except DefinitionFileError as error:
            if error.code == UNREADABLE:
                self._stamps = {}  # nobody writes it when it can be read again
            raise

    def _load(self, check: Callable[[HookDefinition], object] | None) -> tuple[HookDefinition, ...]:
        taken: dict[tuple[str, str, str], HookDefinition] = {}
        ids: set[tuple[str, str]] = set()
        for path in self._found():
            for definition, entry in load_file(path, check):
                name = (definition.tenant_id, definition.point, definition.name)
                if name in taken or (definition.tenant_id, definition.id) in ids:
                    problem = f"{definition.name!r} at {definition.point} is defined twice; give it another name and id"
                    raise DefinitionFileError("invalid", "$.name", problem, str(path), entry.line)
                taken[name] = definition
                ids.add((definition.tenant_id, definition.id))
        self.definitions = tuple(taken.values())
        return self.definitions

    def _found(self) -> list[Path]:
        found: list[Path] = []
        for path in self._paths:
            try:
                if path.is_dir():
                    found.extend(sorted(each for each in path.iterdir() if each.suffix in SUFFIXES and each.is_file()))
                else:
                    found.append(path)
            except OSError as error:
                problem = f"the folder cannot be read ({error.strerror or error})"
                raise DefinitionFileError(UNREADABLE, "$", problem, str(path)) from None
        return found


def load_file(
    path: Path, check: Callable[[HookDefinition], object] | None = None
) -> list[tuple[HookDefinition, Entry]]:
    """The definitions of a file, each with where it stands.

    Args:
        path: TOML, or YAML if it ends in `.yaml` or `.yml`; in UTF-8.
        check: Looks at each definition.

    Raises:
        DefinitionFileError: If anything in it cannot be used.
        MissingExtraError: If PyYAML is not installed and the file needs it.
    """
    file = str(path)
    data, written = _read(path)
    try:
        entries = _yaml_entries(file, data) if path.suffix in (".yaml", ".yml") else _toml_entries(file, data)
    except (DefinitionFileError, MissingExtraError):
        raise
    except Exception as error:  # no text may end the looking for changes, whatever a parser makes of it
        raise DefinitionFileError("invalid", "$", f"it cannot be read: {message_of(error)}", file) from error
    found = []
    for nth, entry in enumerate(entries):
        try:
            definition = _definition(entry.given, file, written)
            if check is not None:
                check(definition)
        except DefinitionError as error:
            inside = f"$.hooks[{nth}]{error.path.removeprefix('$')}"
            raise DefinitionFileError(error.code, inside, error.problem, file, entry.line_of(error.path)) from None
        except Exception as error:
            problem = f"it cannot be used: {message_of(error)}"
            raise DefinitionFileError("invalid", f"$.hooks[{nth}]", problem, file, entry.line) from error
        found.append((definition, entry))
    return found


def _read(path: Path) -> tuple[bytes, float]:
    """What a file holds, and when it was written.

    Raises:
        DefinitionFileError: If it is no ordinary file, is too large, or cannot be read; `code` is "unreadable" where a
            later try may find it readable although it was not written meanwhile.
    """
    file = str(path)
    try:
        # Whoever opens a pipe waits for its writer, maybe for ever.
        opened = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(opened, "rb") as stream:
            status = os.fstat(opened)
            if not stat.S_ISREG(status.st_mode):
                raise DefinitionFileError("invalid", "$", "it is no ordinary file; write the definitions to one", file)
            data = stream.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        problem = f"it cannot be read ({getattr(error, 'strerror', None) or error})"
        raise DefinitionFileError(UNREADABLE, "$", problem, file) from None
    if len(data) > LARGEST_FILE:
        raise DefinitionFileError("invalid", "$", f"it has more than {LARGEST_FILE} bytes, which is the most", file)
    return data, status.st_mtime


def new_id(*parts: str) -> str:
    """The id of a definition that is always the same for the same parts."""
    return f"hook_{sha256(chr(0).join(parts).encode(errors='surrogatepass')).hexdigest()[:12]}"


def _definition(given: dict[str, Any], file: str, written: float) -> HookDefinition:
    wire = spelled(given)
    for name in SET_HERE & set(wire):
        raise DefinitionError("read_only", f"$.{name}", f"`{name}` is set by the registry; leave it out")
    definition = read_definition(wire)
    return msgspec.structs.replace(
        definition,
        id=definition.id or new_id(definition.tenant_id, definition.point, definition.name),
        source=file,
        created_at=written,
        updated_at=written,
    )


def _loose(path: str) -> str:
    """A path in which both spellings of a field are one."""
    return path.replace("_", "").casefold()


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _yaml_entries(file: str, data: bytes) -> list[Entry]:
    try:
        document = read_lined(data, needed_for="Reading definitions from a YAML file")
        if document is None:
            return []
        if not isinstance(document, LinedDict):
            raise BadLine(getattr(document, "line", 1), "the file holds a mapping with one key, `hooks`")
        for key, line in document.lines.items():
            if key != "hooks":
                raise BadLine(line, f"unknown key {key!r:.100}; the file has one key, `hooks`")
        hooks = document.get("hooks", LinedList(1))
        if not isinstance(hooks, LinedList):
            raise BadLine(document.lines["hooks"], "`hooks` is a list of definitions")
        for line, entry in zip(hooks.lines, hooks, strict=True):
            if not isinstance(entry, LinedDict):
                raise BadLine(line, "a definition is a mapping with its fields")
        return [
            Entry(plain(entry), line, dict(_yaml_lines(entry))) for line, entry in zip(hooks.lines, hooks, strict=True)
        ]
    except BadLine as error:
        raise DefinitionFileError("invalid", "$", error.problem, file, error.line) from None


def _yaml_lines(value: object, path: str = "") -> Iterator[tuple[str, int]]:
    """The lines of all that is in a value, each with its path."""
    inner: list[tuple[str, int, object]]
    if isinstance(value, LinedDict):
        inner = [(f"{path}.{key}" if path else key, value.lines[key], each) for key, each in value.items()]
    elif isinstance(value, LinedList):
        inner = [(f"{path}[{nth}]", value.lines[nth], each) for nth, each in enumerate(value)]
    else:
        return
    for place, line, each in inner:
        yield place, line
        yield from _yaml_lines(each, place)


def _toml_entries(file: str, data: bytes) -> list[Entry]:
    try:
        text = data.decode("utf-8-sig")
        document = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DefinitionFileError("invalid", "$", "not text in UTF-8", file, line) from None
    except tomllib.TOMLDecodeError as error:
        said, place = message_of(error), PLACE.search(message_of(error))
        line = int(place[1]) if place and place[1] else text.count("\n") + 1
        raise DefinitionFileError("invalid", "$", f"not TOML: {PLACE.sub('', said)}", file, line) from None
    except RecursionError:
        raise DefinitionFileError("invalid", "$", "nested too deeply", file) from None
    except ValueError as error:  # what Python says of a number that has too many digits
        number = LONG_NUMBER.search(text)
        place_of_number = None if number is None else text.count("\n", 0, number.start()) + 1
        problem = f"a value cannot be read: {message_of(error)}"
        raise DefinitionFileError("invalid", "$", problem, file, place_of_number) from None
    hooks = document.pop("hooks", [])
    if document:
        key = next(iter(document))
        problem = f"unknown key {key!r:.100}; the file has one, `hooks`"
        raise DefinitionFileError("invalid", "$", problem, file, line_of_key(text, key))
    if not isinstance(hooks, list) or not all(isinstance(entry, dict) for entry in hooks):
        problem = "`hooks` is a list of tables: [[hooks]]"
        raise DefinitionFileError("invalid", "$.hooks", problem, file, line_of_key(text, "hooks"))
    places = lines_of_tables(text, len(hooks))
    return [Entry(entry, line, lines) for entry, (line, lines) in zip(hooks, places, strict=True)]
