"""Read definitions from TOML and YAML files, atomically, with line numbers in errors.

TOML is parsed by the standard library. `tomlkit` parses TOML too, but its items have no positions, so the lines of keys
are found here, by a scan of a document that is known to be valid.

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
from hookline.registry._definition import HookDefinition, normalize_keys, read_definition
from hookline.registry._errors import DefinitionError, DefinitionFileError

__all__ = [
    "DefinitionFiles",
    "FileEntry",
    "Lines",
    "blank_strings",
    "derive_id",
    "find_key_line",
    "find_table_lines",
    "load_file",
    "load_toml",
]

Lines = dict[str, int]
"""Line numbers (from 1) of the keys of an entry, by path: `"webhook"`, `"webhook.timeout"`."""

TEXT = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?!")|' + r"'''.*?'''(?!')|" + r'"(?:[^"\\\n]|\\.)*"|' + r"'[^'\n]*'|#[^\n]*", re.DOTALL
)
"""A string of one or several lines, or a comment."""
NAME = r"[\"']?[\w-]+[\"']?"
PATH = rf"{NAME}(?:\s*\.\s*{NAME})*"
HEADER = re.compile(r"\s*\[\[\s*[\"']?hooks[\"']?\s*\]\]")
TABLE = re.compile(rf"\s*\[\[?\s*[\"']?hooks[\"']?\s*\.\s*({PATH})\s*\]")
KEY = re.compile(rf"\s*({PATH})\s*=")
INLINE = re.compile(rf"[\[\]{{}}]|({PATH})\s*=")


def find_key_line(text: str, key: str) -> int | None:
    """Return the line of a top-level key: where it is set, else that of its first table."""
    text = blank_strings(text)
    name = rf"[\"']?{re.escape(key)}[\"']?\s*"
    before = re.split(r"^\s*\[", text, maxsplit=1, flags=re.MULTILINE)[0]
    found = re.search(rf"^[^\S\n]*{name}[=.]", before, re.MULTILINE)
    found = found or re.search(rf"^[^\S\n]*\[\[?\s*{name}[\].]", text, re.MULTILINE)
    return None if found is None else text.count("\n", 0, found.start()) + 1


def find_table_lines(text: str, count: int) -> list[tuple[int | None, Lines]]:
    """Find the lines of the tables of `hooks` and of their keys.

    Args:
        text: The document, which is valid TOML.
        count: The number of tables. If the scan finds another number, each table gets the line of `hooks` itself.
    """
    found = _find_table_headers(text) or _find_inline_tables(text)
    if len(found) == count:
        return [*found]
    line = find_key_line(text, "hooks")
    return [(line, {})] * count


def _find_table_headers(text: str) -> list[tuple[int, Lines]]:
    """Find tables that are written as `[[hooks]]`."""
    found: list[tuple[int, Lines]] = []
    table = ""
    for line, content in enumerate(blank_strings(text).split("\n"), 1):
        if HEADER.match(content):
            found.append((line, {}))
            table = ""
        elif found and (header := TABLE.match(content)):
            _record_line(found[-1][1], _normalize_path(header[1]), line)
            table = _normalize_path(header[1]) + "."
        elif found and (key := KEY.match(content)):
            _record_line(found[-1][1], table + _normalize_path(key[1]), line)
    return found


def _find_inline_tables(text: str) -> list[tuple[int, Lines]]:
    """Find tables that are written as `hooks = [{...}, {...}]`."""
    text = blank_strings(text, short=True)
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
            _record_line(found[-1][1], _normalize_path(match[1]), line)
    return found


def _record_line(lines: Lines, path: str, line: int) -> None:
    """Record the line of a path and of its parents, unless they have one already."""
    for end in (*(match.start() for match in re.finditer(r"\.", path)), len(path)):
        lines.setdefault(path[:end], line)


def _normalize_path(written: str) -> str:
    return re.sub(r"[\"'\s]", "", written)


def blank_strings(text: str, *, short: bool = False) -> str:
    """Blank out comments and strings of a document, keeping its line breaks.

    Args:
        text: The document.
        short: Whether to blank out strings of one line too; a quoted key is one.
    """

    def blank(match: re.Match[str]) -> str:
        is_short = match[0][0] in "\"'" and match[0][:3] not in ('"""', "'''")
        return match[0] if is_short and not short else "\n" * match[0].count("\n")

    return TEXT.sub(blank, text)


SUFFIXES = (".toml", ".yaml", ".yml")
LARGEST_FILE = 8 * 1024 * 1024
SET_HERE = frozenset({"source", "revision", "createdAt", "updatedAt", "problem"})
"""Fields (wire names) that a file may not set."""

UNREADABLE = "unreadable"
LONG_NUMBER = re.compile(r"(?<![0-9A-Za-z_.])[+-]?[0-9][0-9_]{1000,}")
"""A number that Python may refuse: it parses 4,300 digits by default, and 640 under any setting."""
PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)")

Stamp = tuple[int, int, int]


class FileEntry(NamedTuple):
    """One definition in a file, as it is written.

    Attributes:
        given: Its fields.
        line: The line where it begins; `None` if it is not known.
        lines: The lines of its keys, as far as they are known.
    """

    given: dict[str, Any]
    line: int | None
    lines: Lines

    def find_line(self, path: str) -> int | None:
        """Return the line of a JSON path in the entry: that of its longest known parent, else of the entry."""
        known = {_normalize_spelling(path): line for path, line in self.lines.items()}
        left = _normalize_spelling(path.removeprefix("$").removeprefix("."))
        while left and left not in known:
            left = re.sub(r"(?:^|[.\[])[^.\[]*$", "", left)
        return known.get(left, self.line)


class DefinitionFiles:
    """The definitions of files and folders, which are read again when they change.

    Args:
        paths: Files, or folders of files that end in `.toml`, `.yaml` or `.yml`.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths = tuple(Path(path) for path in paths)
        self._stamps: dict[Path, Stamp | None] = {}
        self.definitions: tuple[HookDefinition, ...] = ()

    def have_changed(self) -> bool:
        """Return whether a file was added, removed or written since the last call."""
        stamps = {path: _file_stamp(path) for path in self._list_files()}
        differs = stamps != self._stamps
        self._stamps = stamps
        return differs

    def load(self, check: Callable[[HookDefinition], object] | None = None) -> tuple[HookDefinition, ...]:
        """Read all files.

        Args:
            check: Called with each definition; raises if it cannot be used.

        Raises:
            DefinitionFileError: If one of the files is broken; `definitions` stay as they were.
        """
        try:
            return self._load(check)
        except DefinitionFileError as error:
            if error.code == UNREADABLE:
                self._stamps = {}  # the file may become readable without being written again
            raise

    def _load(self, check: Callable[[HookDefinition], object] | None) -> tuple[HookDefinition, ...]:
        taken: dict[tuple[str, str, str], HookDefinition] = {}
        ids: set[tuple[str, str]] = set()
        for path in self._list_files():
            for definition, entry in load_file(path, check):
                if definition.shadow_above is not None:
                    problem = "the registry cannot change the mode of a hook in a file; leave it out, or store the hook"
                    raise DefinitionFileError("invalid", "$.shadowAbove", problem, str(path), entry.line)
                name = (definition.tenant_id, definition.point, definition.name)
                if name in taken or (definition.tenant_id, definition.id) in ids:
                    problem = f"{definition.name!r} at {definition.point} is defined twice; give it another name and id"
                    raise DefinitionFileError("invalid", "$.name", problem, str(path), entry.line)
                taken[name] = definition
                ids.add((definition.tenant_id, definition.id))
        self.definitions = tuple(taken.values())
        return self.definitions

    def _list_files(self) -> list[Path]:
        found: list[Path] = []
        for path in self.paths:
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
) -> list[tuple[HookDefinition, FileEntry]]:
    """Read the definitions of a file, each with its entry.

    Args:
        path: A TOML file, or a YAML file if it ends in `.yaml` or `.yml`; in UTF-8.
        check: Called with each definition; raises if it cannot be used.

    Raises:
        DefinitionFileError: If the file cannot be read, or a definition in it is invalid.
        MissingExtraError: If PyYAML is not installed and the file needs it.
    """
    file = str(path)
    data, written = _read_file(path)
    try:
        entries = _parse_yaml(file, data) if path.suffix in (".yaml", ".yml") else _parse_toml(file, data)
    except (DefinitionFileError, MissingExtraError):
        raise
    except Exception as error:  # whatever a parser raises, it must not end the task that looks for changes
        raise DefinitionFileError("invalid", "$", f"it cannot be read: {message_of(error)}", file) from error
    found = []
    for nth, entry in enumerate(entries):
        try:
            definition = _build_definition(entry.given, file, written)
            if check is not None:
                check(definition)
        except DefinitionError as error:
            inside = f"$.hooks[{nth}]{error.path.removeprefix('$')}"
            raise DefinitionFileError(error.code, inside, error.problem, file, entry.find_line(error.path)) from None
        except Exception as error:
            problem = f"it cannot be used: {message_of(error)}"
            raise DefinitionFileError("invalid", f"$.hooks[{nth}]", problem, file, entry.line) from error
        found.append((definition, entry))
    return found


def _read_file(path: Path) -> tuple[bytes, float]:
    """Read a file, and return its content and the time when it was written.

    Raises:
        DefinitionFileError: If it is no regular file, is too large, or cannot be read; `code` is "unreadable" if a
            later try may succeed although the file was not written meanwhile.
    """
    file = str(path)
    try:
        # Without O_NONBLOCK, opening a named pipe waits for its writer, maybe forever.
        opened = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(opened, "rb") as stream:
            status = os.fstat(opened)
            if not stat.S_ISREG(status.st_mode):
                raise DefinitionFileError("invalid", "$", "it is not a regular file", file)
            data = stream.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        problem = f"it cannot be read ({getattr(error, 'strerror', None) or error})"
        raise DefinitionFileError(UNREADABLE, "$", problem, file) from None
    if len(data) > LARGEST_FILE:
        raise DefinitionFileError("invalid", "$", f"it has more than {LARGEST_FILE} bytes, which is the limit", file)
    return data, status.st_mtime


def derive_id(*parts: str) -> str:
    """Derive the id of a definition from its parts, so that the same parts always give the same id."""
    return f"hook_{sha256(chr(0).join(parts).encode(errors='surrogatepass')).hexdigest()[:12]}"


def _build_definition(given: dict[str, Any], file: str, written: float) -> HookDefinition:
    wire = normalize_keys(given)
    for name in SET_HERE & set(wire):
        raise DefinitionError("read_only", f"$.{name}", f"`{name}` is set by the registry; leave it out")
    definition = read_definition(wire)
    return msgspec.structs.replace(
        definition,
        id=definition.id or derive_id(definition.tenant_id, definition.point, definition.name),
        source=file,
        created_at=written,
        updated_at=written,
    )


def _normalize_spelling(path: str) -> str:
    """Normalize a path so that snake_case and camelCase spellings of a field are equal."""
    return path.replace("_", "").casefold()


def _file_stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _parse_yaml(file: str, data: bytes) -> list[FileEntry]:
    try:
        document = read_lined(data, needed_for="Reading definitions from a YAML file")
        if document is None:
            return []
        if not isinstance(document, LinedDict):
            raise BadLine(getattr(document, "line", 1), "the file must be a mapping with the single key `hooks`")
        for key, line in document.lines.items():
            if key != "hooks":
                raise BadLine(line, f"unknown key {key!r:.100}; the file must be a mapping with the single key `hooks`")
        hooks = document.get("hooks", LinedList(1))
        if not isinstance(hooks, LinedList):
            raise BadLine(document.lines["hooks"], "`hooks` must be a list of definitions")
        for line, entry in zip(hooks.lines, hooks, strict=True):
            if not isinstance(entry, LinedDict):
                raise BadLine(line, "a definition must be a mapping with its fields")
        return [
            FileEntry(plain(entry), line, dict(_iterate_yaml_lines(entry)))
            for line, entry in zip(hooks.lines, hooks, strict=True)
        ]
    except BadLine as error:
        raise DefinitionFileError("invalid", "$", error.problem, file, error.line) from None


def _iterate_yaml_lines(value: object, path: str = "") -> Iterator[tuple[str, int]]:
    """Yield the path and line of everything inside of a value."""
    inner: list[tuple[str, int, object]]
    if isinstance(value, LinedDict):
        inner = [(f"{path}.{key}" if path else key, value.lines[key], each) for key, each in value.items()]
    elif isinstance(value, LinedList):
        inner = [(f"{path}[{nth}]", value.lines[nth], each) for nth, each in enumerate(value)]
    else:
        return
    for place, line, each in inner:
        yield place, line
        yield from _iterate_yaml_lines(each, place)


def load_toml(file: str, data: bytes) -> tuple[str, dict[str, Any]]:
    """Load a TOML document; return its text, and what is in it.

    Args:
        file: The name of the file, for errors.
        data: Its content, in UTF-8.

    Raises:
        DefinitionFileError: If it is no TOML.
    """
    try:
        text = data.decode("utf-8-sig")
        document = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DefinitionFileError("invalid", "$", "not text in UTF-8", file, line) from None
    except tomllib.TOMLDecodeError as error:
        message, place = message_of(error), PLACE.search(message_of(error))
        line = int(place[1]) if place and place[1] else text.count("\n") + 1
        raise DefinitionFileError("invalid", "$", f"not TOML: {PLACE.sub('', message)}", file, line) from None
    except RecursionError:
        raise DefinitionFileError("invalid", "$", "nested too deeply", file) from None
    except ValueError as error:  # Python's error for a number with too many digits
        number = LONG_NUMBER.search(text)
        place_of_number = None if number is None else text.count("\n", 0, number.start()) + 1
        problem = f"a value cannot be read: {message_of(error)}"
        raise DefinitionFileError("invalid", "$", problem, file, place_of_number) from None
    return text, document


def _parse_toml(file: str, data: bytes) -> list[FileEntry]:
    text, document = load_toml(file, data)
    hooks = document.pop("hooks", [])
    if document:
        key = next(iter(document))
        problem = f"unknown key {key!r:.100}; the file must have the single key `hooks`"
        raise DefinitionFileError("invalid", "$", problem, file, find_key_line(text, key))
    if not isinstance(hooks, list) or not all(isinstance(entry, dict) for entry in hooks):
        problem = "`hooks` must be a list of tables: [[hooks]]"
        raise DefinitionFileError("invalid", "$.hooks", problem, file, find_key_line(text, "hooks"))
    places = find_table_lines(text, len(hooks))
    return [FileEntry(entry, line, lines) for entry, (line, lines) in zip(hooks, places, strict=True)]
