"""Read definitions and their tests from TOML, YAML and JSON files, atomically, with line numbers in errors.

TOML is parsed by the standard library. `tomlkit` parses TOML too, but its items have no positions, so the lines of keys
are found here, by a scan of a document that is known to be valid.

```toml
[[hooks]]
name = "No shell"
point = "ToolCall.guard"
handler = "deny-tools"
config = { tools = ["bash"] }

[[tests]]
name = "A shell is refused"
call = { tool_name = "bash" }
expect = "denied"
```
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hookline._yaml import BadLine, LinedDict, LinedList, plain, read_lined
from hookline.errors import MissingExtraError, message_of
from hookline.registry._definition import HookDefinition, normalize_keys, read_definition
from hookline.registry._errors import DefinitionError, DefinitionFileError
from hookline.webhooks import to_camel

__all__ = [
    "DefinitionFiles",
    "FileEntry",
    "HookFile",
    "Lines",
    "blank_strings",
    "check_buildable",
    "check_unique",
    "derive_id",
    "find_key_line",
    "find_table_lines",
    "list_files",
    "load_file",
    "load_hook_file",
    "load_toml",
    "parse_hook_file",
]

Lines = dict[str, int]
"""Line numbers (from 1) of the keys of an entry, by path: `"webhook"`, `"webhook.timeout"`."""

TEXT = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?!")|' + r"'''.*?'''(?!')|" + r'"(?:[^"\\\n]|\\.)*"|' + r"'[^'\n]*'|#[^\n]*", re.DOTALL
)
"""A string of one or several lines, or a comment."""
NAME = r"[\"']?[\w-]+[\"']?"
PATH = rf"{NAME}(?:\s*\.\s*{NAME})*"
HEADER = re.compile(rf"\s*(\[\[?)\s*({PATH})\s*\]")
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


def find_table_lines(text: str, count: int, key: str = "hooks") -> list[tuple[int | None, Lines]]:
    """Find the lines of the tables of a top-level list and of their keys.

    Args:
        text: The document, which is valid TOML.
        count: The number of tables. If the scan finds another number, each table gets the line of the list itself.
        key: The key of the list.
    """
    found = _find_table_headers(text, key) or _find_inline_tables(text, key)
    if len(found) == count:
        return [*found]
    line = find_key_line(text, key)
    return [(line, {})] * count


def _find_table_headers(text: str, key: str) -> list[tuple[int, Lines]]:
    """Find tables that are written as `[[hooks]]`, with those inside: `[hooks.config]`, `[[tests.calls]]`."""
    found: list[tuple[int, Lines]] = []
    table: str | None = None  # where keys belong; `None` in tables of other lists
    counts: dict[str, int] = {}
    for line, content in enumerate(blank_strings(text).split("\n"), 1):
        if header := HEADER.match(content):
            path, is_list = _normalize_path(header[2]), header[1] == "[["
            table = None
            if path == key and is_list:
                found.append((line, {}))
                table, counts = "", {}
            elif found and path.startswith(f"{key}."):
                inner = path.removeprefix(f"{key}.")
                if is_list:
                    counts[inner] = counts.get(inner, -1) + 1
                table = _number_lists(inner, counts)
                _record_line(found[-1][1], table, line)
                table += "."
        elif table is not None and (named := KEY.match(content)):
            _record_line(found[-1][1], table + _normalize_path(named[1]), line)
    return found


def _number_lists(path: str, counts: Mapping[str, int]) -> str:
    """Return a path with the number of each list's present entry: `calls[1].expect`."""
    parts = path.split(".")
    names = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return ".".join(
        f"{part}[{counts[name]}]" if name in counts else part for part, name in zip(parts, names, strict=True)
    )


def _find_inline_tables(text: str, key: str) -> list[tuple[int, Lines]]:
    """Find tables that are written as `hooks = [{...}, {...}]`."""
    text = blank_strings(text, short=True)
    start = re.search(rf"^\s*{key}\s*=\s*(?=\[)", text, re.MULTILINE)
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
TICK = 1e-6
"""Seconds between the times of creation of two definitions of a file, whose order is that of their hooks in runs."""
KEYS = ("hooks", "tests")
"""The keys that a file may have."""
NAMED_KEYS = "the keys `hooks` and `tests`"
LARGEST_FILE = 8 * 1024 * 1024
SET_HERE = frozenset({"source", "revision", "createdAt", "updatedAt", "problem"})
"""Fields (wire names) that a file may not set."""

UNREADABLE = "unreadable"
LONG_NUMBER = re.compile(r"(?<![0-9A-Za-z_.])[+-]?[0-9][0-9_]{1000,}")
"""A number that Python may refuse: it parses 4,300 digits by default, and 640 under any setting."""
PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)")

Stamp = tuple[int, int, int]


class FileEntry(NamedTuple):
    """One definition or one test in a file, as it is written.

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


class HookFile(NamedTuple):
    """The content of a file of definitions.

    Attributes:
        file: Its name, for people.
        hooks: The definitions, each with its entry, in the order of the file.
        tests: The entries of its tests, which are parsed where they are run.
    """

    file: str
    hooks: Sequence[tuple[HookDefinition, FileEntry]]
    tests: Sequence[FileEntry]

    @property
    def definitions(self) -> list[HookDefinition]:
        """The definitions, in the order of the file."""
        return [definition for definition, _ in self.hooks]


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
        stamps = {path: _file_stamp(path) for path in list_files(self.paths)}
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
        files = [load_hook_file(path, check) for path in list_files(self.paths)]
        check_unique(files)
        for file in files:
            for definition, entry in file.hooks:
                if definition.shadow_above is not None:
                    problem = "the registry cannot change the mode of a hook in a file; leave it out, or store the hook"
                    raise DefinitionFileError("invalid", "$.shadowAbove", problem, file.file, entry.line)
        self.definitions = tuple(definition for file in files for definition in file.definitions)
        return self.definitions


def list_files(paths: Iterable[Path]) -> list[Path]:
    """List files, and the files in folders that end in `.toml`, `.yaml` or `.yml`, in the order of their names.

    Raises:
        DefinitionFileError: If a folder cannot be read.
    """
    found: list[Path] = []
    for path in paths:
        try:
            if path.is_dir():
                found.extend(sorted(each for each in path.iterdir() if each.suffix in SUFFIXES and each.is_file()))
            else:
                found.append(path)
        except (OSError, ValueError) as error:
            problem = f"the folder cannot be read ({getattr(error, 'strerror', None) or error})"
            raise DefinitionFileError(UNREADABLE, "$", problem, str(path)) from None
    return found


def check_unique(files: Iterable[HookFile]) -> None:
    """Check that no two definitions of some files have the same id, or the same name at the same point.

    Raises:
        DefinitionFileError: If two have.
    """
    taken: set[tuple[str, ...]] = set()
    for file in files:
        for definition, entry in file.hooks:
            keys = {(definition.tenant_id, definition.id), (definition.tenant_id, definition.point, definition.name)}
            if keys & taken:
                problem = f"{definition.name!r} at {definition.point} is defined twice; give it another name and id"
                raise DefinitionFileError("invalid", "$.name", problem, file.file, entry.line)
            taken |= keys


def load_file(
    path: Path, check: Callable[[HookDefinition], object] | None = None
) -> list[tuple[HookDefinition, FileEntry]]:
    """Read the definitions of a file, each with its entry. See `load_hook_file`."""
    return [*load_hook_file(path, check).hooks]


def load_hook_file(path: Path, check: Callable[[HookDefinition], object] | None = None) -> HookFile:
    """Read a file of definitions.

    Args:
        path: A TOML file, a YAML file if it ends in `.yaml` or `.yml`, or a JSON file if it ends in `.json`; in UTF-8.
        check: Called with each definition; raises if it cannot be used.

    Raises:
        DefinitionFileError: If the file cannot be read, or a definition in it is invalid.
        MissingExtraError: If PyYAML is not installed and the file needs it.
    """
    data, written = _read_file(path)
    return parse_hook_file(str(path), data, suffix=path.suffix, written=written, check=check)


def parse_hook_file(
    file: str,
    data: bytes,
    *,
    suffix: str,
    written: float = 0.0,
    check: Callable[[HookDefinition], object] | None = None,
) -> HookFile:
    """Parse the content of a file of definitions.

    Args:
        file: The name of the file, for errors.
        data: Its content, in UTF-8.
        suffix: Its format: `".yaml"`, `".yml"` or `".json"`; any other is TOML.
        written: When it was written, in unix seconds.
        check: Called with each definition; raises if it cannot be used.

    Raises:
        DefinitionFileError: If it cannot be parsed, or a definition in it is invalid.
        MissingExtraError: If PyYAML is not installed and the file needs it.
    """
    if len(data) > LARGEST_FILE:
        raise DefinitionFileError("invalid", "$", f"it has more than {LARGEST_FILE} bytes, which is the limit", file)
    parse = PARSERS.get(suffix, _parse_toml)
    try:
        entries, tests = parse(file, data)
    except (DefinitionFileError, MissingExtraError):
        raise
    except Exception as error:  # whatever a parser raises, it must not end the task that looks for changes
        raise DefinitionFileError("invalid", "$", f"it cannot be read: {message_of(error)}", file) from error
    found = []
    for nth, entry in enumerate(entries):
        with _entry_errors(file, nth, entry):
            definition = _build_definition(entry.given, file, written + nth * TICK)
            if check is not None:
                check(definition)
        found.append((definition, entry))
    return HookFile(file, found, tests)


def check_buildable(file: HookFile, check: Callable[[HookDefinition], object]) -> None:
    """Check that the definitions of a file can be used in this process.

    Args:
        file: The file.
        check: Called with each definition; raises if it cannot be used.

    Raises:
        DefinitionFileError: If one cannot be used.
    """
    for nth, (definition, entry) in enumerate(file.hooks):
        with _entry_errors(file.file, nth, entry):
            check(definition)


@contextmanager
def _entry_errors(file: str, nth: int, entry: FileEntry) -> Iterator[None]:
    """Turn an error of a definition into one of its file, with the line."""
    try:
        yield
    except DefinitionError as error:
        inside = f"$.hooks[{nth}]{error.path.removeprefix('$')}"
        raise DefinitionFileError(error.code, inside, error.problem, file, entry.find_line(error.path)) from None
    except Exception as error:
        problem = f"it cannot be used: {message_of(error)}"
        raise DefinitionFileError("invalid", f"$.hooks[{nth}]", problem, file, entry.line) from error


def _read_file(path: Path) -> tuple[bytes, float]:
    """Read a file up to a byte more than the limit, and return its content and the time when it was written.

    Raises:
        DefinitionFileError: If it is no regular file, or cannot be read; `code` is "unreadable" if a later try may
            succeed although the file was not written meanwhile.
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


ParsedLists = tuple[list[FileEntry], list[FileEntry]]
"""The entries of `hooks` and of `tests`."""


def _parse_yaml(file: str, data: bytes) -> ParsedLists:
    try:
        document = read_lined(data, needed_for="Reading definitions from a YAML file")
        if document is None:
            return [], []
        if not isinstance(document, LinedDict):
            raise BadLine(getattr(document, "line", 1), f"the file must be a mapping with {NAMED_KEYS}")
        for key, line in document.lines.items():
            if key not in KEYS:
                raise BadLine(line, f"unknown key {key!r:.100}; the file must be a mapping with {NAMED_KEYS}")
        hooks, tests = (_read_yaml_list(document, key) for key in KEYS)
        return hooks, tests
    except BadLine as error:
        raise DefinitionFileError("invalid", "$", error.problem, file, error.line) from None


def _read_yaml_list(document: LinedDict, key: str) -> list[FileEntry]:
    """Return the entries of one of the lists of a YAML document.

    Raises:
        BadLine: If it is no list of mappings.
    """
    entries = document.get(key, LinedList(1))
    what = "definition" if key == "hooks" else "test"
    if not isinstance(entries, LinedList):
        raise BadLine(document.lines[key], f"`{key}` must be a list of {what}s")
    for line, entry in zip(entries.lines, entries, strict=True):
        if not isinstance(entry, LinedDict):
            raise BadLine(line, f"a {what} must be a mapping with its fields")
    return [
        FileEntry(plain(entry), line, dict(_iterate_yaml_lines(entry)))
        for line, entry in zip(entries.lines, entries, strict=True)
    ]


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


def _parse_toml(file: str, data: bytes) -> ParsedLists:
    text, document = load_toml(file, data)
    for key in document:
        if key not in KEYS:
            problem = f"unknown key {key!r:.100}; the file must have only {NAMED_KEYS}"
            raise DefinitionFileError("invalid", "$", problem, file, find_key_line(text, key))
    hooks, tests = (_read_toml_list(file, text, document, key) for key in KEYS)
    return hooks, tests


def _read_toml_list(file: str, text: str, document: Mapping[str, Any], key: str) -> list[FileEntry]:
    entries = document.get(key, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        problem = f"`{key}` must be a list of tables: [[{key}]]"
        raise DefinitionFileError("invalid", f"$.{key}", problem, file, find_key_line(text, key))
    places = find_table_lines(text, len(entries), key)
    return [FileEntry(entry, line, lines) for entry, (line, lines) in zip(entries, places, strict=True)]


def _parse_json(file: str, data: bytes) -> ParsedLists:
    """Parse a definition, a list of definitions, or an object with the keys of a file. No lines are known."""
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"it is not JSON ({error}); other files end in .toml, .yaml or .yml"
        raise DefinitionFileError("invalid", "$", problem, file) from None
    if isinstance(found, dict) and not set(found) & set(KEYS):
        found = [found]
    lists = {"hooks": found} if isinstance(found, list) else found
    if not isinstance(lists, dict) or not set(lists) <= set(KEYS):
        problem = f"it must be a definition, a list of definitions, or an object with {NAMED_KEYS}"
        raise DefinitionFileError("invalid", "$", problem, file)
    for key, entries in lists.items():
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            what = "definition" if key == "hooks" else "test"
            problem = f"`{key}` must be a list, and a {what} must be a mapping with its fields"
            raise DefinitionFileError("invalid", f"$.{key}", problem, file)
    hooks, tests = ([FileEntry(entry, None, {}) for entry in lists.get(key, [])] for key in KEYS)
    return [each._replace(given=_without_set_fields(each.given)) for each in hooks], tests


def _without_set_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a definition without the fields that the registry sets, as JSON is also what the registry shows."""
    return {name: value for name, value in given.items() if to_camel(name) not in SET_HERE}


PARSERS = {".yaml": _parse_yaml, ".yml": _parse_yaml, ".json": _parse_json}
"""The parsers by the suffix of a file; any other file is TOML."""
