"""Read and write the file of a run: JSON lines, one for each task, written as the task ends.

The first line is the header, with the planned tasks. Each line after it is one of these:

- `{"result": {...}, "elapsedMs": 12.5}`: the result of a task, and the time since the run began;
- `{"end": {...}}`: the end of a run, with its duration, its tool coverage and the tasks that did not run;
- `{"resumed": {...}}`: the run was continued. More results and another end follow.

Lines are appended and never changed. A file without an end belongs to a run that was killed or still runs. Only its
last line can be incomplete; readers drop it.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import threading
import weakref
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import IO, Any, TypeVar, overload

import msgspec

from hookline.evals._canonical import canonical
from hookline.evals.errors import RunFileError, RunResumeError, RunWriteError
from hookline.evals.running._provenance import Provenance, hookline_version
from hookline.evals.running._results import Mode, TaskKey, TaskResult
from hookline.evals.trajectories import Coverage

__all__ = [
    "FORMAT",
    "VERSION",
    "RunEnd",
    "RunFile",
    "RunHeader",
    "RunJournal",
    "StoredResults",
    "describe_key",
    "format_line",
    "impossible_in",
    "is_run_file",
    "parse_line",
    "planned_tasks",
    "read_run_file",
    "run_lines",
    "utc_now",
]

FORMAT = "hookline-run"
VERSION = 2

IN_MEMORY = 1 << 20
"""Bytes of results that a run without a file keeps in memory before it writes them to a temporary file."""

T = TypeVar("T")


class RunHeader(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The first line of the file of a run.

    Attributes:
        format: Always `"hookline-run"`.
        version: The version of the format.
        hookline: The version of hookline that wrote it.
        saved_at: The time at which the file was begun, in UTC.
        targets: The suites, as the caller named them.
        mode: The mode of the run, which says who answered tool calls.
        seed: The seed of the run's faults.
        faults: A digest of the faults that the run was given; empty if there were none.
        cases: The names of the tasks, in the order in which they are run.
        repeat: How often each task is run.
        models: The models that each task is run with; empty if the suite's own model answers.
        agent: The import path of the agent that runs the tasks; empty for the suite's own.
        provenance: When, with which versions and by which command the run was made.
    """

    format: str = FORMAT
    version: int = VERSION
    hookline: str = msgspec.field(default_factory=hookline_version)
    saved_at: str = msgspec.field(default_factory=lambda: utc_now())
    targets: list[str]
    mode: Mode
    seed: int
    faults: str = ""
    cases: list[str]
    repeat: int = 1
    models: list[str] = []
    agent: str = ""
    provenance: Provenance = Provenance()


class RunEnd(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The last line of the file of a run.

    Attributes:
        saved_at: The time of the end, in UTC.
        duration_ms: How long the run took. The parts of a run that was resumed are added up.
        coverage: The tool coverage of each suite.
        not_run: Names of the tasks of which a planned run is missing, each once.
        stopped: The reason for which the run ended before all tasks had run; empty if they all did.
    """

    saved_at: str
    duration_ms: float
    coverage: list[Coverage] = []
    not_run: list[str] = []
    stopped: str = ""


class RunLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A line after the header: one of its fields is given.

    Attributes:
        result: The result of a task.
        elapsed_ms: The time from the start of the run to the end of that task.
        end: The end of the run.
        resumed: When, with which versions and by which command the run was continued.
    """

    result: TaskResult | None = None
    elapsed_ms: float = 0.0
    end: RunEnd | None = None
    resumed: Provenance | None = None


def utc_now() -> str:
    """Return the present time in UTC, as ISO 8601 with seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def planned_tasks(header: RunHeader) -> dict[TaskKey, int]:
    """Return the runs of tasks that a run plans, with their places in its order.

    All tasks run once, with each model, before any task runs a second time.
    """
    return {
        (name, attempt, model): place
        for place, (attempt, model, name) in enumerate(
            (attempt, model, name)
            for attempt in range(1, header.repeat + 1)
            for name in header.cases
            for model in header.models or [""]
        )
    }


def run_lines(header: RunHeader, results: Iterable[TaskResult], end: RunEnd) -> Iterator[bytes]:
    """Yield the lines of the file of a whole run."""
    yield format_line(header)
    for result in results:
        yield format_line({"result": result})
    yield format_line({"end": end})


def format_line(value: object) -> bytes:
    """Return a value as a line of JSON."""
    # The standard library's encoder writes what models and tools return as it is: NaN, lone surrogates, large integers.
    return canonical(value, sort_keys=False).encode() + b"\n"


def parse_line(line: bytes, kind: type[T]) -> T:
    """Return the value of a line of JSON.

    Raises:
        ValueError: If it is not JSON, or another kind of value.
    """
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, RecursionError):  # slower, and reads what `format_line` writes
        return msgspec.convert(json.loads(line.decode("utf-8")), kind)


class LineStore:
    """Lines in a file that are appended and read in any order, by several threads.

    Args:
        file: The file.
        size: Its size in bytes.
        name: The name of the file in errors.
    """

    def __init__(self, file: IO[bytes], size: int, name: str) -> None:
        self._file, self.size, self.name = file, size, name
        self._lock = threading.Lock()
        self.close = weakref.finalize(self, file.close)

    def append(self, line: bytes) -> tuple[int, int]:
        """Append a line, and return its place and its length.

        Raises:
            OSError: If it cannot be written. The file is left without it.
        """
        with self._lock:
            start = self.size
            try:
                self._file.seek(start)
                rest = memoryview(line)
                while rest:
                    rest = rest[self._file.write(rest) :]
                self._file.flush()
            except BaseException:  # half a line would make every later one unreadable
                self._file.truncate(start)
                raise
            self.size = start + len(line)
            return start, len(line)

    def unlock(self) -> None:
        """Let other processes write the file."""
        if self._file.closed:
            return
        with suppress(ModuleNotFoundError, OSError):
            import fcntl

            fcntl.flock(self._file, fcntl.LOCK_UN)

    def copy_to(self, path: Path) -> None:
        """Write all lines to a pipe or a device."""
        with self._lock, open(path, "wb") as target:
            self._file.seek(0)
            shutil.copyfileobj(self._file, target)

    def read(self, start: int, length: int) -> bytes:
        """Return a line."""
        with self._lock:
            self._file.seek(start)
            return self._file.read(length)


class StoredResults(Sequence[TaskResult]):
    """The results of a run, in a file. Each is read when it is needed, so that few are in memory at a time.

    Iterate over it, and as few times as possible: every item is parsed anew.

    Args:
        lines: The file.
        spans: The place and the length of the line of each result.
    """

    def __init__(self, lines: LineStore, spans: Sequence[tuple[int, int]]) -> None:
        self._lines = lines
        self._starts = array("Q", [start for start, _ in spans])
        self._lengths = array("Q", [length for _, length in spans])

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> TaskResult: ...

    @overload
    def __getitem__(self, index: slice) -> list[TaskResult]: ...

    def __getitem__(self, index: int | slice) -> TaskResult | list[TaskResult]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        data = self._lines.read(self._starts[index], self._lengths[index])
        try:
            found = parse_line(data, RunLine).result
        except ValueError as error:
            raise RunFileError(self._lines.name, f"it was changed while it was read ({error})") from error
        if found is None:
            raise RunFileError(self._lines.name, "it was changed while it was read")
        return found

    def __iter__(self) -> Iterator[TaskResult]:
        for index in range(len(self)):
            yield self[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have no hash either

    def __repr__(self) -> str:
        return f"StoredResults({len(self)} in {self._lines.name!r})"

    def __reduce__(self) -> tuple[type[list[TaskResult]], tuple[list[TaskResult]]]:
        return list, (list(self),)


class RunFile:
    """The file of a run, as it was read.

    Attributes:
        path: The file.
        header: Its first line.
        keys: The runs of tasks that it has, in the order of its lines.
        results: The results, in the order in which the run planned them.
        end: Its last line; `None` if the run was killed or still runs.
        resumed: When and by which command it was continued, for each time.
        elapsed_ms: How long the run took, as far as the file says.
        cut_off: The number of bytes of an incomplete last line, which was dropped.
        size: The length of the file in bytes, without such a line.
    """

    def __init__(self, path: Path, data: IO[bytes]) -> None:
        self.path = path
        self.keys: dict[TaskKey, tuple[int, int]] = {}
        self.end: RunEnd | None = None
        self.resumed: list[Provenance] = []
        self.elapsed_ms = 0.0
        self.cut_off = 0
        self.size = 0
        first = data.readline()
        self.header = _parse_header(path, first)
        self._planned = planned_tasks(self.header)
        self.size = len(first)
        for number, line in enumerate(data, start=2):
            if not line.endswith(b"\n"):
                self.cut_off = len(line)
                break
            self._take(number, line)
            self.size += len(line)
        spans = sorted(self.keys.items(), key=lambda item: self._planned[item[0]])
        self.results = StoredResults(LineStore(data, self.size, str(path)), [span for _, span in spans])

    @property
    def not_run(self) -> list[str]:
        """Names of the tasks of which a planned run is missing, each once."""
        return list(dict.fromkeys(key[0] for key in self._planned if key not in self.keys))

    def _take(self, number: int, data: bytes) -> None:
        try:
            line = parse_line(data, RunLine)
        except UnicodeDecodeError:
            raise RunFileError(str(self.path), f"line {number} is not UTF-8") from None
        except msgspec.ValidationError as error:
            raise RunFileError(str(self.path), f"line {number}: {error}") from error
        except (ValueError, RecursionError) as error:
            raise RunFileError(str(self.path), f"line {number} is not JSON ({error})") from error
        if line.result is not None:
            self._take_result(number, line.result, len(data))
            self.elapsed_ms = max(self.elapsed_ms, line.elapsed_ms)
            self.end = None
        elif line.end is not None:
            self.end = line.end
            self.elapsed_ms = line.end.duration_ms
        elif line.resumed is not None:
            self.resumed.append(line.resumed)
            self.end = None
        else:
            raise RunFileError(str(self.path), f"line {number} has neither a `result`, nor an `end`, nor `resumed`")

    def _take_result(self, number: int, result: TaskResult, length: int) -> None:
        key = result.key
        if key in self.keys:
            raise RunFileError(str(self.path), f"line {number}: it has the task {describe_key(key)} twice")
        if key not in self._planned:
            raise RunFileError(
                str(self.path), f"line {number} is a result of {describe_key(key)}, which its first line does not plan"
            )
        problem = impossible_in(result)
        if problem is not None:
            raise RunFileError(str(self.path), f"line {number}: {problem}")
        self.keys[key] = (self.size, length)


def describe_key(key: TaskKey, *, quote: bool = True) -> str:
    """Name a run of a task: `'shop/tea'`, with its model and its attempt where there are several.

    Args:
        key: The run.
        quote: Whether the name of the task stands in quotation marks.
    """
    name, attempt, model = key
    shown = repr(name) if quote else name
    further = [each for each in (model, f"attempt {attempt}" if attempt != 1 else "") if each]
    return f"{shown} ({', '.join(further)})" if further else shown


def impossible_in(result: TaskResult) -> str | None:
    """Describe an invalid score, cost, weight or number of calls of a result; `None` if there is none."""
    if result.score is not None and not 0 <= result.score <= 1:
        return f"the score of {result.name!r} is {result.score!r}, which is not a number from 0 to 1"
    if result.cost_usd is not None and not 0 <= result.cost_usd < math.inf:
        return f"the cost of {result.name!r} is {result.cost_usd!r}, which is not a number from 0"
    if not 0 < result.weight < math.inf:
        return f"the weight of {result.name!r} is {result.weight!r}, which is not a number above 0"
    if result.tool_calls < 0:
        return f"{result.name!r} has {result.tool_calls} tool calls"
    return None


def is_run_file(first: bytes) -> bool:
    """Whether a file with this first line is in the format of JSON lines."""
    try:
        found: Any = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("format") == FORMAT and found.get("version") != 1


def read_run_file(path: Path) -> RunFile:
    """Read the file of a run, and check every line.

    Raises:
        RunFileError: If it cannot be read or is not such a file.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115  # the results are read from it later
    except OSError as error:
        raise RunFileError(str(path), error.strerror or str(error)) from error
    try:
        return RunFile(path, file)
    except OSError as error:
        file.close()
        raise RunFileError(str(path), error.strerror or str(error)) from error
    except BaseException:
        file.close()
        raise


def _parse_header(path: Path, line: bytes) -> RunHeader:
    cut_off = RunFileError(str(path), "its first line was cut off, so that it has no results")
    whole = line.endswith(b"\n")
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise (RunFileError(str(path), f"it is not JSON ({error})") if whole else cut_off) from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise RunFileError(str(path), f"its `format` is not {FORMAT!r}")
    if found.get("version") != VERSION:
        raise RunFileError(
            str(path), f"its version is {found.get('version')!r:.40}, and this hookline reads 1 and {VERSION}"
        )
    if not whole:
        raise cut_off
    try:
        header = msgspec.convert(found, RunHeader)
    except msgspec.ValidationError as error:
        raise RunFileError(str(path), f"line 1: {error}") from error
    if header.repeat < 1:
        raise RunFileError(str(path), f"line 1: `repeat` is {header.repeat}, and a run has at least one attempt")
    for names, what in ((header.cases, "the task"), (header.models, "the model")):
        if len(set(names)) != len(names):
            twice = next(name for name, times in Counter(names).items() if times > 1)
            raise RunFileError(str(path), f"line 1: it plans {what} {twice!r} twice")
    return header


class RunJournal:
    """Keeps the results of a run as its tasks end: in the file of the run, or in a temporary file.

    Each line is handed to the operating system at once, so that it survives the end of the process.

    Args:
        header: The first line.
        lines: The file.
        path: The file of the run; `None` for a temporary one.
        read: What the file has already, if a run is continued.

    Attributes:
        spans: The place and the length of the line of each result.
        elapsed_before: How long the earlier parts of the run took, in milliseconds.
        kept_aside: The new name of an unfinished run that was in the place of the file.
        resumed: When and by which command the run was continued, for each time.
    """

    def __init__(
        self, header: RunHeader, lines: LineStore, path: Path | None = None, read: RunFile | None = None
    ) -> None:
        self.header = header
        self.path = path
        self.read = read
        self.spans: dict[TaskKey, tuple[int, int]] = {} if read is None else dict(read.keys)
        self.kept_aside: Path | None = None
        self.resumed = [] if read is None else list(read.resumed)
        self._planned = planned_tasks(header)
        self._lines = lines
        self.elapsed_before = 0.0 if read is None else read.elapsed_ms
        self._ended = read is not None and read.end is not None

    @classmethod
    def begin(cls, header: RunHeader, path: Path | None = None) -> RunJournal:
        """Begin the file of a run. A file that exists is replaced, but an unfinished run is renamed.

        Args:
            header: The first line.
            path: The file; `None` for a temporary one.

        Raises:
            RunWriteError: If the file cannot be written, or if another process writes it.
        """
        try:
            if path is None or (path.exists() and not path.is_file()):  # a pipe or a device cannot be read again
                spool = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115
                journal = cls(header, LineStore(spool, 0, "a temporary file"), path)
            else:
                aside = keep_aside(path)
                file = open(path, "a+b", buffering=0)  # noqa: SIM115
                _lock(file, path)
                file.truncate(0)
                journal = cls(header, LineStore(file, 0, str(path)), path)
                journal.kept_aside = aside
        except RunWriteError:
            raise
        except OSError as error:
            raise _write_error(path, error) from error
        journal._append(header)
        return journal

    @classmethod
    def resume(cls, header: RunHeader, path: Path, *, into: Path | None = None) -> RunJournal:
        """Continue the file of a run.

        Args:
            header: The run that is continued; its tasks and settings must be those of the file.
            path: The file.
            into: Another file, which becomes a copy of it and is continued in its place.

        Raises:
            RunFileError: If the file cannot be read or is not a run.
            RunResumeError: If it is a run of other tasks or with other settings.
            RunWriteError: If it cannot be written, or if another process writes it.
        """
        aside = None
        if into is not None and not (into.exists() and into.samefile(path)):
            _check_resumable(path, header)
            aside, path = _copy(path, into), into
        try:
            file = open(path, "r+b", buffering=0)  # noqa: SIM115
        except FileNotFoundError as error:
            raise RunFileError(str(path), error.strerror or str(error)) from error
        except OSError as error:
            raise _write_error(path, error) from error
        _lock(file, path)  # before it is read, since another process may be adding lines
        try:
            read = _check_resumable(path, header)
            file.truncate(read.size)
        except OSError as error:
            file.close()
            raise _write_error(path, error) from error
        except BaseException:
            file.close()
            raise
        # The order of the file holds, so that its results and the further ones are in one order.
        header = msgspec.structs.replace(header, cases=read.header.cases, models=read.header.models)
        journal = cls(header, LineStore(file, read.size, str(path)), path, read)
        journal.kept_aside = aside
        if journal.missing:
            journal._append({"resumed": header.provenance})
            journal.resumed.append(header.provenance)
            journal._ended = False
        return journal

    @property
    def notes(self) -> list[str]:
        """The changes to the files when this one was opened, as sentences."""
        found = [] if self.kept_aside is None else [f"{self.path} was an unfinished run; it is now {self.kept_aside}"]
        if self.read is not None and self.read.cut_off:
            found.append(f"the last line of {self.read.path} was cut off and is left out")
        return found

    @property
    def missing(self) -> list[TaskKey]:
        """The planned runs of tasks that have no result yet, in their order."""
        return [key for key in self._planned if key not in self.spans]

    @property
    def not_run(self) -> list[str]:
        """Names of the tasks of which a planned run is missing, each once."""
        return list(dict.fromkeys(name for name, _, _ in self.missing))

    @property
    def results(self) -> StoredResults:
        """The results so far, in the order in which the run planned them."""
        done = sorted(self.spans.items(), key=lambda item: self._planned[item[0]])
        return StoredResults(self._lines, [span for _, span in done])

    def add(self, result: TaskResult, elapsed_ms: float) -> None:
        """Write the result of a task.

        Args:
            result: The result.
            elapsed_ms: The time since this part of the run began.

        Raises:
            RunWriteError: If it cannot be written. The file has all results before it.
        """
        line = {"result": result, "elapsedMs": round(self.elapsed_before + elapsed_ms, 3)}
        self.spans[result.key] = self._append(line)

    def end(self, elapsed_ms: float, coverage: Sequence[Coverage], stopped: str = "") -> RunEnd:
        """Write the end of the run.

        Args:
            elapsed_ms: How long this part of the run took.
            coverage: The tool coverage of each suite.
            stopped: The reason for which tasks did not run.

        Raises:
            RunWriteError: If it cannot be written.
        """
        if self._ended and self.read is not None and self.read.end is not None:
            return self.read.end
        end = RunEnd(
            saved_at=utc_now(),
            duration_ms=self.elapsed_before + elapsed_ms,
            coverage=list(coverage),
            not_run=self.not_run,
            stopped=stopped,
        )
        self._append({"end": end})
        self._ended = True
        if self.path is not None and not self.path.is_file():
            self._lines.copy_to(self.path)
        return end

    def release(self) -> None:
        """Let other processes write the file. The results can be read all the same."""
        self._lines.unlock()

    def _append(self, value: object) -> tuple[int, int]:
        try:
            return self._lines.append(format_line(value))
        except OSError as error:
            done = len(self.spans) if self.path is not None and self.path.is_file() else None
            raise RunWriteError(self._lines.name, error.strerror or str(error), done) from error


def refusal_to_resume(saved: RunHeader, wanted: RunHeader) -> str | None:
    """Say why a run cannot be continued as another one; `None` if it can."""
    for what, one, other in (
        ("mode", saved.mode, wanted.mode),
        ("seed", saved.seed, wanted.seed),
        ("number of attempts per task", saved.repeat, wanted.repeat),
    ):
        if one != other:
            return f"its {what} is {one!r}, and the {what} of this run is {other!r}"
    if saved.faults != wanted.faults:
        return "it was made with other faults"
    if set(saved.models) != set(wanted.models):
        return f"its models are {_names(saved.models)}, and those of this run are {_names(wanted.models)}"
    if saved.agent != wanted.agent:
        agents = (f"the agent {agent}" if agent else "the suites' own agents" for agent in (saved.agent, wanted.agent))
        return "its tasks were run by {}, and this run is by {}".format(*agents)
    ours, theirs = set(wanted.cases), set(saved.cases)
    more = [name for name in wanted.cases if name not in theirs]
    less = [name for name in saved.cases if name not in ours]
    if more or less:
        parts = [f"it has {_names(less)}, and this run has not" if less else ""]
        parts.append(f"this run has {_names(more)}, and the file has not" if more else "")
        return f"it is a run of other tasks: {'; '.join(filter(None, parts))}"
    return None


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (", ".join(map(repr, names[:3])) or "none") + more


def keep_aside(path: Path) -> Path | None:
    """Rename a file if it is an unfinished run with results; return its new name."""
    file = Path(os.path.realpath(path))
    try:
        with open(file, "rb") as data:
            if not is_run_file(data.readline()) or not data.readline() or _is_finished(_last_line(data)):
                return None
            _lock(data, path)
    except FileNotFoundError:
        return None
    names = (file.with_name(f"{file.name}.interrupted{f'-{number}' if number > 1 else ''}") for number in count(1))
    free = next(name for name in names if not name.exists())
    file.rename(free)
    return free


def _check_resumable(path: Path, header: RunHeader) -> RunFile:
    """Read the file of a run that is to be continued as the run of this header.

    Raises:
        RunFileError: If it cannot be read or is not a run.
        RunResumeError: If it is another run.
    """
    try:
        read = read_run_file(path)
    except RunFileError:
        if _is_one_document(path):
            reason = "it is in version 1 of the format, which only holds runs that have ended"
            raise RunResumeError(str(path), reason) from None
        raise
    refusal = refusal_to_resume(read.header, header)
    if refusal is not None:
        raise RunResumeError(str(path), refusal)
    return read


def _is_one_document(path: Path) -> bool:
    """Whether a file is a run in version 1 of the format."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("format") == FORMAT and document.get("version") == 1


def _write_error(path: Path | None, error: OSError) -> RunWriteError:
    return RunWriteError("a temporary file" if path is None else str(path), error.strerror or str(error))


def _copy(path: Path, into: Path) -> Path | None:
    """Copy the file of a run; return the new name of an unfinished run that was in the place of the copy."""
    try:
        aside = keep_aside(into)
        shutil.copyfile(path, into)
    except RunWriteError:
        raise
    except OSError as error:
        raise _write_error(into, error) from error
    return aside


def _is_finished(line: bytes) -> bool:
    try:
        end = parse_line(line, RunLine).end
    except ValueError:
        return False
    return end is not None and not end.not_run


def _last_line(data: IO[bytes]) -> bytes:
    size = data.seek(0, os.SEEK_END)
    tail = 1 << 16
    while True:
        data.seek(max(0, size - tail))
        lines = data.read().splitlines(keepends=True)
        if len(lines) > 1 or tail >= size:
            return lines[-1] if lines else b""
        tail *= 8


def _lock(file: IO[bytes], path: Path) -> None:
    """Take the file for this process, as far as the system can.

    Raises:
        RunWriteError: If another process writes it.
    """
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows, which does not let two programs write one file anyway
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise RunWriteError(str(path), "another run is being written to it", None) from None
    except OSError:  # a file system without locks
        return
