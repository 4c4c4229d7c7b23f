"""Read and write cassette files: the format, errors that name the line, and writes that lose nothing."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn, get_args

import msgspec

from hookline._yaml import BadLine, LinedDict, LinedList
from hookline.errors import MissingExtraError
from hookline.evals.cassettes._recorded_calls import Matching, RecordedCall
from hookline.evals.cassettes._tools import RecordedTool
from hookline.evals.cassettes._yaml import check_installed, read_yaml, write_yaml
from hookline.evals.errors import CassetteConflictError, CassetteFileError, CassetteVersionError, CassetteWriteError

__all__ = [
    "VERSION",
    "CassetteFile",
    "check_needs",
    "check_version",
    "describe_value",
    "digest_of",
    "encode_cassette",
    "parse_document",
    "read_bytes",
    "read_cassette",
    "read_replaceable",
    "write_cassette",
]

VERSION = 1
"""The format's version, as `hookline_cassette` says it."""

LOCK_NAME = ".hookline.lock"
"""One lock a folder: a lock file cannot be removed safely, and one beside every cassette would be in the way."""
LOCK_SECONDS = 30.0

KINDS: dict[str, tuple[type, str]] = {
    "agent": (str, "text"),
    "operation": (int, "a whole number from 1"),
    "tool": (str, "text"),
    "args": (dict, "a mapping"),
    "result": (str, "text"),
    "success": (bool, "true or false"),
    "raised": (str, "text"),
    "metadata": (dict, "a mapping"),
    "step": (int, "a whole number from 0"),
    "call_index": (int, "a whole number from 1"),
}
LEAST = {"operation": 1, "step": 0, "call_index": 1}
# They enclose the others in a call that was written whole, so that one that was cut off is found out.
REQUIRED = ("tool", "args", "result", "step", "call_index")
FILE_FIELDS = ("hookline_cassette", "name", "matching", "tools", "calls")
TOOL_FIELDS = {"agent": str, "tool": str, "parameters": dict, "schema": str, "version": str, "recorded": str}
TOOL_REQUIRED = ("tool", "schema", "recorded")


class CassetteFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a cassette's file when it was read.

    Attributes:
        name: The cassette's name.
        matching: How its recordings are found.
        tools: The tools that they are of, as they were then; none in files of versions that did not write them.
        recordings: The recordings.
        digest: A hash of the file's bytes; `None` if there was no file.
    """

    name: str | None = None
    matching: Matching | None = None
    tools: list[RecordedTool] = []
    recordings: list[RecordedCall] = []
    digest: str | None = None


def check_needs() -> None:
    """Raise an error unless the packages that cassette files need are installed.

    Raises:
        MissingExtraError: If PyYAML or filelock is not installed.
    """
    check_installed()
    _filelock()


def encode_cassette(
    name: str, matching: Matching, tools: Iterable[RecordedTool], recordings: Iterable[RecordedCall]
) -> bytes:
    """Encode a cassette as the bytes of its file. Equal tools and recordings in the same order give equal bytes."""
    document: dict[str, Any] = {"hookline_cassette": VERSION, "name": name, "matching": matching}
    described = [
        {field: value for field in TOOL_FIELDS if (value := getattr(tool, field)) or field in TOOL_REQUIRED}
        for tool in tools
    ]
    if described:
        document["tools"] = described
    document["calls"] = [_fields(recording) for recording in recordings]
    return write_yaml(document).encode()


def _fields(recording: RecordedCall) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if recording.agent:
        fields["agent"] = recording.agent
        if recording.operation > 1:
            fields["operation"] = recording.operation
    fields |= {"tool": recording.tool, "args": recording.args, "result": recording.result}
    if recording.raised is not None:
        fields["raised"] = recording.raised
    elif not recording.success:
        fields["success"] = False
    if recording.metadata:
        fields["metadata"] = recording.metadata
    return fields | {"step": recording.step, "call_index": recording.call_index}


# Reading.


def read_cassette(path: Path) -> CassetteFile:
    """Read a cassette's file. If there is no file, the result is empty and has no digest.

    Raises:
        CassetteFileError: If it is not a cassette or incomplete. The error names the line and the fix.
        CassetteVersionError: If it has another format version.
        MissingExtraError: If PyYAML is not installed.
    """
    data = read_bytes(path)
    if data is None:
        return CassetteFile()
    return _parse_cassette(str(path), parse_document(str(path), data), digest_of(data))


def read_replaceable(path: Path) -> CassetteFile:
    """Read a file that is to be replaced as a whole: a cassette of any version, or no file at all.

    Raises:
        CassetteFileError: If the file is something else.
        MissingExtraError: If PyYAML is not installed.
    """
    data = read_bytes(path)
    if data is None:
        return CassetteFile()
    document = parse_document(str(path), data)
    try:
        return _parse_cassette(str(path), document, digest_of(data))
    except CassetteFileError:
        return CassetteFile(digest=digest_of(data))


def read_bytes(path: Path, *, what: str = "cassette") -> bytes | None:
    """Read a file; `None` if there is none.

    Raises:
        CassetteFileError: If it cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CassetteFileError(str(path), f"it cannot be read ({error.strerror or error})", None, what) from error


def digest_of(data: bytes) -> str:
    """Return a hash of the bytes of a file."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def parse_document(path: str, data: bytes, *, what: str = "cassette") -> LinedDict:
    """Parse a file as YAML, and raise an error unless it begins like a cassette, or a tape, and is complete.

    Args:
        path: The file, for errors.
        data: Its bytes.
        what: `"cassette"` or `"tape"`.

    Raises:
        CassetteFileError: If it is something else, or is cut off.
    """
    restore = "restore it from version control, or delete it and record again"
    marker = f"hookline_{what}"
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CassetteFileError(path, f"it is not text in UTF-8; {restore}", line, what) from None
    if not text.strip():
        raise CassetteFileError(path, "it is empty; delete it, and it will be recorded", 1, what)
    try:
        document = read_yaml(text)
    except BadLine as error:
        raise CassetteFileError(path, f"{error.problem}; mend that line, or {restore}", error.line, what) from None
    if not isinstance(document, LinedDict) or marker not in document:
        problem = f"it does not begin with `{marker}`, so it is some other file; name another path"
        raise CassetteFileError(path, problem, document.line if isinstance(document, LinedDict) else 1, what)
    if not text.endswith("\n"):
        # Every complete file ends with a newline; without one it was cut off, even if it is valid YAML.
        raise CassetteFileError(path, f"it is cut off in its last line; {restore}", text.count("\n") + 1, what)
    return document


def check_version(path: str, document: LinedDict, known: int, *, what: str = "cassette") -> None:
    """Check the version of the format that a file names first.

    Raises:
        CassetteFileError: If it is not a number.
        CassetteVersionError: If it is another version.
    """
    marker = f"hookline_{what}"
    version, line = document[marker], document.lines[marker]
    if version.__class__ is not int:
        problem = f"`{marker}` is the format's version, a whole number; got {describe_value(version)}"
        raise CassetteFileError(path, problem, line, what)
    if version != known:
        raise CassetteVersionError(path, line, version, known, what)


def _parse_cassette(path: str, document: LinedDict, digest: str) -> CassetteFile:
    def wrong(problem: str, line: int) -> NoReturn:
        raise CassetteFileError(path, problem, line)

    check_version(path, document, VERSION)
    for field in document:
        if field not in FILE_FIELDS:
            known = ", ".join(f"`{each}`" for each in FILE_FIELDS)
            wrong(f"`{field:.100}` is not a field of a cassette, which has {known}", document.lines[field])
    calls = document.get("calls")
    if "calls" not in document:
        wrong("it has no `calls`; write `calls: []` for none", document.line)
    if not isinstance(calls, LinedList):
        wrong(f"`calls` is a list; got {describe_value(calls)}", document.lines["calls"])
    name, matching = document.get("name"), document.get("matching")
    if not isinstance(name, str | None):
        wrong(f"`name` is text; got {describe_value(name)}. Put it in quotes", document.lines["name"])
    if matching is not None and matching not in get_args(Matching):
        wrong(f"`matching` is keyed or sequential; got {describe_value(matching)}", document.lines["matching"])
    tools = document.get("tools", LinedList(document.line))
    if not isinstance(tools, LinedList):
        wrong(f"`tools` is a list; got {describe_value(tools)}", document.lines["tools"])
    return CassetteFile(
        name=name,
        matching=matching,
        tools=[_parse_tool(tool, line, wrong) for tool, line in zip(tools, tools.lines, strict=True)],
        recordings=[_parse_recording(call, line, wrong) for call, line in zip(calls, calls.lines, strict=True)],
        digest=digest,
    )


def _parse_tool(tool: Any, line: int, wrong: Callable[[str, int], NoReturn]) -> RecordedTool:
    if not isinstance(tool, LinedDict):
        wrong(f"a tool is a mapping with {', '.join(TOOL_REQUIRED)}; got {describe_value(tool)}", line)
    for field, value in tool.items():
        kind = TOOL_FIELDS.get(field)
        if kind is None:
            wrong(f"`{field:.100}` is not a field of a tool, which has {', '.join(TOOL_FIELDS)}", tool.lines[field])
        if not isinstance(value, kind):
            expected, hint = ("a mapping", "") if kind is dict else ("text", ". Put it in quotes")
            wrong(f"`{field}` is {expected}; got {describe_value(value)}{hint}", tool.lines[field])
    missing = [field for field in TOOL_REQUIRED if field not in tool]
    if missing:
        wrong(f"this tool has no {' and no '.join(f'`{field}`' for field in missing)}", line)
    parameters = tool.get("parameters", {})
    if not all(isinstance(kind, str) for kind in parameters.values()):
        wrong("`parameters` has the type of each parameter as text", tool.lines["parameters"])
    try:
        datetime.date.fromisoformat(tool["recorded"])
    except ValueError:
        wrong(f"`recorded` is a date such as 2026-01-31; got {tool['recorded']!r:.100}", tool.lines["recorded"])
    return RecordedTool(**tool)


def _parse_recording(call: Any, line: int, wrong: Callable[[str, int], NoReturn]) -> RecordedCall:
    if not isinstance(call, LinedDict):
        wrong(f"a call is a mapping with {', '.join(REQUIRED)}; got {describe_value(call)}", line)
    for field, value in call.items():
        kind = KINDS.get(field)
        if kind is None:
            wrong(f"`{field:.100}` is not a field of a call, which has {', '.join(KINDS)}", call.lines[field])
        if isinstance(value, kind[0]) and (kind[0] is not int or (value.__class__ is int and value >= LEAST[field])):
            continue
        hint = ". Put it in quotes" if kind[0] is str and isinstance(value, int | float) else ""
        wrong(f"`{field}` is {kind[1]}; got {describe_value(value)}{hint}", call.lines[field])
    missing = [field for field in REQUIRED if field not in call]
    if missing:
        wrong(f"this call has no {' and no '.join(f'`{field}`' for field in missing)}", line)
    if call.get("raised") is not None and "success" in call:
        wrong("a call has `raised` or `success`, not both", call.lines["success"])
    return RecordedCall(**{**call, "success": call.get("success", True) and "raised" not in call})


def describe_value(value: object) -> str:
    """Describe a value of a file in an error."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return "nothing" if value is None else repr(value)[:100]


# Writing.


def write_cassette(path: Path, data: bytes, *, before: str | None, name: str, what: str = "cassette") -> str:
    """Replace the file of a cassette or a tape, if nobody has changed it since it was read.

    Args:
        path: The file; its folder is made.
        data: The new content.
        before: The digest of what it held when it was read; `None` if there was no file.
        name: The cassette, for the error.
        what: `"cassette"` or `"tape"`, for the error.

    Returns:
        The digest of what it holds now.

    Raises:
        CassetteConflictError: If another process has written it. Nothing is overwritten.
        CassetteWriteError: If it cannot be written.
    """
    filelock = _filelock()
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(target.parent / LOCK_NAME, timeout=LOCK_SECONDS):
            held = read_bytes(target)
            if (None if held is None else digest_of(held)) != before:
                raise CassetteConflictError(str(path), name, what)
            _replace(target, data)
    except filelock.Timeout as error:
        reason = f"another process has held {target.parent / LOCK_NAME} for {LOCK_SECONDS:g} s"
        raise CassetteWriteError(str(path), reason, what) from error
    except CassetteFileError as error:
        raise CassetteWriteError(str(path), error.problem, what) from error
    except OSError as error:
        raise CassetteWriteError(str(path), error.strerror or str(error), what) from error
    return digest_of(data)


def _replace(target: Path, data: bytes) -> None:
    """Replace a file atomically: readers see the old file or the new one, even if the process is killed."""
    # A file's name may have 255 bytes, so the temporary one's cannot hold all of it. One name is enough: the lock is
    # ours, and what stands there is the rest of a process that was killed here.
    name = hashlib.blake2b(os.fsencode(target.name), digest_size=8).hexdigest()
    temporary = target.parent / f".hookline-{name}.tmp"
    temporary.unlink(missing_ok=True)
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _filelock() -> Any:
    try:
        import filelock
    except ImportError:
        raise MissingExtraError("evals", "A cassette file") from None
    return filelock
