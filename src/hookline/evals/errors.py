"""What evaluations raise, in one tree.

```
HooklineError
├── AnswerError                         a rule of mocks has no answer to a call; the model is told
├── CassetteError
│   ├── CassetteFileError (ValueError)  the file is no cassette that can be used; says the line
│   │   └── CassetteVersionError        it has another version of the format
│   ├── CassetteConflictError           somebody else has written the file since it was read
│   └── CassetteWriteError (OSError)    the file cannot be written
├── FaultDefinitionError (ValueError)   a fault with a value that makes no sense
├── FaultFileError (ValueError)         a file of faults cannot be used; says the line
├── UnrecordedOperationError (KeyError)
│                                       nothing was seen of an operation
├── NotOneOperationError (LookupError)  several operations were seen, or none
├── UnseenEventError (LookupError)      no such event was seen
├── EventWaitError (TimeoutError)       no such event came in time; says which did
├── UnknownSuiteError (LookupError)     no such suite; says which there are
├── UnknownTaskError (LookupError)      no such task in the suite; says which there are
├── HookUsageError
│   └── ToolNameError                   a check is about a tool that the agent does not have
├── SuiteFileError (ValueError)         a suite of one's own cannot be used; says the line
├── RunFileError (ValueError)           a saved run cannot be read or written
├── CassetteFolderError (ValueError)    a folder of cassettes cannot be used, or has none for a task
├── UnknownAttackChoiceError            no such policy or injection task; says which there are
├── ReportError (OSError)               the report cannot be written there
├── EventFileError (ValueError)         a file of events cannot be read or written; says which line
└── ToolCallError
    └── ForbiddenToolError              a real tool was about to run in a replay
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from hookline._checks import quote
from hookline.errors import HooklineError, HookUsageError, ToolCallError, define_error

__all__ = [
    "AnswerError",
    "CassetteConflictError",
    "CassetteError",
    "CassetteFileError",
    "CassetteFolderError",
    "CassetteVersionError",
    "CassetteWriteError",
    "EventFileError",
    "EventWaitError",
    "FaultDefinitionError",
    "FaultFileError",
    "ForbiddenToolError",
    "NotOneOperationError",
    "ReportError",
    "RunFileError",
    "SuiteFileError",
    "ToolNameError",
    "UnknownAttackChoiceError",
    "UnknownSuiteError",
    "UnknownTaskError",
    "UnrecordedOperationError",
    "UnseenEventError",
]


@define_error()
class UnknownSuiteError(HooklineError, LookupError):
    """There is no suite of that name.

    Attributes:
        name: What was asked for.
        known: The suites that there are.
    """

    name: str
    known: list[str]

    def __str__(self) -> str:
        return f"There is no suite {self.name!r}. Suites: {', '.join(self.known)}."


@define_error()
class UnknownTaskError(HooklineError, LookupError):
    """A suite has no task of that name.

    Attributes:
        suite: The suite.
        name: What was asked for.
        known: The tasks that the suite has.
    """

    suite: str
    name: str
    known: list[str]

    def __str__(self) -> str:
        return f"Suite {self.suite!r} has no task {self.name!r}. Tasks: {', '.join(self.known)}."


@define_error("The real tool {tool!r} is forbidden in this run: no hook had answered the call.")
class ForbiddenToolError(ToolCallError):
    """A tool would really have run although the run was to be answered by a recording alone.

    Attributes:
        tool: The tool, as `toolset/name`.
    """

    tool: str


@define_error(
    "The report cannot be written to {path}: {reason}. Name a file in a folder that exists and that you may write to."
)
class ReportError(HooklineError, OSError):
    """A report cannot be written where it was asked for.

    Attributes:
        path: Where.
        reason: Why not.
    """

    path: str
    reason: str


@define_error()
class EventFileError(HooklineError, ValueError):
    """A file of events cannot be read or written.

    Attributes:
        path: The file.
        what: What cannot be done with it: `"read"` or `"written"`.
        reason: Why not.
        line: The line that it is about, from 1; `None` where it is about the file as a whole.
    """

    path: str
    what: str
    reason: str
    line: int | None = None

    def __str__(self) -> str:
        if self.line is None:
            return f"{self.path} cannot be {self.what}: {self.reason}."
        hint = " A recorded run has one event per line, as `write_events` writes it." if self.what == "read" else ""
        return f"Line {self.line} of {self.path} cannot be {self.what}: {self.reason}.{hint}"


@define_error("{reason}")
class AnswerError(HooklineError):
    """A rule is for a call and has no answer to it; the model is told so, and the real tool does not run.

    Attributes:
        reason: Why it has none.
    """

    reason: str


class NeverMatchingRuleWarning(UserWarning):
    """A rule was made that no call can ever match."""


def checked_name(name: object) -> str:
    """The name of a rule or of a fault, which stands in the provenance of every call that it is for.

    Raises:
        HookUsageError: If it is no text.
    """
    if not isinstance(name, str):
        raise HookUsageError(f"The name of a rule or of a fault is text; got {name!r:.100}.")
    return name


class CassetteError(HooklineError):
    """Something is wrong with a cassette. The file that it is about is left as it is.

    Attributes:
        path: The file.
    """

    path: str


@define_error()
class CassetteFileError(CassetteError, ValueError):
    """A file cannot be used as a cassette.

    Attributes:
        path: The file.
        problem: What is wrong with it, and how to fix it.
        line: The line that it is about, from 1; `None` where it is about the file as a whole.
    """

    path: str
    problem: str
    line: int | None = None

    def __str__(self) -> str:
        where = self.path if self.line is None else f"{self.path}, line {self.line}"
        return f"The cassette {where} cannot be used: {self.problem}. Nothing was written."


class CassetteVersionError(CassetteFileError):
    """A cassette has a format version that this hookline does not read.

    Attributes:
        path: The file.
        problem: What to do about it.
        line: Where the version stands.
        version: The version of the file.
        known: The version that this hookline reads and writes.
    """

    def __init__(self, path: str, line: int, version: int, known: int) -> None:
        todo = "upgrade hookline" if version > known else "this format is no longer read"
        problem = f"its format version is {version}, and this hookline reads {known}: {todo}, or record the file again"
        super().__init__(path, f"{problem} with mode='rewrite'", line)
        self.args = (path, line, version, known)
        self.version, self.known = version, known


@define_error(
    "The cassette {name!r} was not saved: {path} has changed since it was read, so another test or process has "
    "written it. Name one file a case; if it was a passing collision, run this one again."
)
class CassetteConflictError(CassetteError):
    """Somebody else has written a cassette's file since it was read, so that saving would lose recordings.

    Attributes:
        path: The file.
        name: Name of the cassette that was not saved; what it recorded is still in memory.
    """

    path: str
    name: str


@define_error("The cassette {path} cannot be written: {reason}. Name a file that you may write to.")
class CassetteWriteError(CassetteError, OSError):
    """A cassette's file cannot be written where it is to be.

    Attributes:
        path: The file.
        reason: Why not.
    """

    path: str
    reason: str


@define_error()
class UnrecordedOperationError(HooklineError, KeyError):
    """A recorder has seen nothing of an operation.

    Attributes:
        operation_id: What was asked for.
        known: The operations that it has.
    """

    operation_id: str
    known: list[str]

    def __str__(self) -> str:
        return f"No operation {self.operation_id!r} was recorded. {_recorded(self.known)}"


@define_error()
class NotOneOperationError(HooklineError, LookupError):
    """The only operation was asked for, and there is none, or more than one.

    Attributes:
        known: The operations that were recorded, sub-agents' left out.
    """

    known: list[str]

    def __str__(self) -> str:
        if not self.known:
            return f"No operation was recorded. {_recorded(self.known)}"
        return (
            f"{len(self.known)} operations were recorded, not one. {_recorded(self.known)} Ask for one with `of(id)`."
        )


@define_error()
class UnseenEventError(HooklineError, LookupError):
    """An operation has no event of the kind that was asked for.

    Attributes:
        wanted: What was asked for.
        seen: What the operation has, a line per event.
    """

    wanted: str
    seen: list[str]

    def __str__(self) -> str:
        return f"There is no {self.wanted}.{_told(self.seen)}"


@define_error()
class EventWaitError(HooklineError, TimeoutError):
    """An event that was waited for did not happen in time.

    Attributes:
        wanted: What was waited for.
        timeout: For how many seconds.
        count: How many of them were to happen.
        met: How many did.
        seen: What was seen, a line per event.
    """

    wanted: str
    timeout: float
    count: int
    met: int
    seen: list[str]

    def __str__(self) -> str:
        wanted = f"no {self.wanted}" if self.count == 1 else f"only {self.met} of {self.count} {self.wanted}"
        return f"There was {wanted} within {self.timeout:g} s.{_told(self.seen)}"


def _recorded(known: list[str]) -> str:
    if not known:
        return "Give `recorder.hooks` to the run, as hooks=[recorder.hooks]."
    names = ", ".join(map(repr, known[:20]))
    return f"There are: {names}{', …' if len(known) > 20 else ''}."


def _told(seen: list[str]) -> str:
    if not seen:
        return " No event was seen at all: give `recorder.hooks` to the run, as hooks=[recorder.hooks]."
    return "\nSeen:\n" + "\n".join(f"  {line}" for line in seen)


MAX_SECONDS = 1e9
"""About thirty years: far beyond any run, and sums of it stay exact enough to compare."""


@define_error("{fault}: `{field}` {problem}.")
class FaultDefinitionError(HooklineError, ValueError):
    """A fault cannot strike as it was given.

    Attributes:
        fault: Which kind of fault, or which rule for one.
        field: What was given wrongly.
        problem: What is wrong, and what is expected.
    """

    fault: str
    field: str
    problem: str


@define_error()
class FaultFileError(HooklineError, ValueError):
    """A file of faults cannot be read; nothing of it is used.

    Attributes:
        path: The file.
        problem: What is wrong, and what is expected.
        line: Where, from 1; `None` if no line is to blame.
    """

    path: str
    problem: str
    line: int | None = None

    def __str__(self) -> str:
        where = self.path if self.line is None else f"{self.path}, line {self.line}"
        return f"{where}: {self.problem}."


def check_seconds(fault: str, field: str, value: object, *, positive: bool = False) -> None:
    """Refuse what is no duration.

    Args:
        fault: How the error names the fault.
        field: The field.
        value: What was given.
        positive: Whether 0 is refused too.

    Raises:
        FaultDefinitionError: If it is no number from 0 to a billion.
    """
    if not _number(value) or not 0 <= value <= MAX_SECONDS or (positive and value == 0):
        least = "above 0" if positive else "from 0"
        problem = f"is a number of seconds {least}, and at most {MAX_SECONDS:.0e}; got {quote(value)}"
        raise FaultDefinitionError(fault, field, problem)


def check_count(fault: str, field: str, value: object, *, most: int) -> None:
    """Refuse what is no whole number from 1.

    Args:
        fault: How the error names the fault.
        field: The field.
        value: What was given.
        most: The largest number that is taken.

    Raises:
        FaultDefinitionError: If it is anything else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise FaultDefinitionError(fault, field, f"is a whole number from 1 to {most:,}; got {quote(value)}")


def check_probability(fault: str, value: object) -> None:
    """Refuse what is no probability.

    Args:
        fault: How the error names the fault, or the rule for it.
        value: What was given.

    Raises:
        FaultDefinitionError: If it is no number from 0 to 1.
    """
    if not _number(value) or not 0 <= value <= 1:
        raise FaultDefinitionError(fault, "probability", f"is a number from 0 to 1; got {quote(value)}")


def _number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


@define_error()
class SuiteFileError(HooklineError, ValueError):
    """A suite's file cannot be used.

    Attributes:
        path: The file.
        problem: What is wrong, and how to fix it.
        line: The line that it is about, from 1; `None` where it is about the file as a whole.
    """

    path: str
    problem: str
    line: int | None = None

    def __str__(self) -> str:
        where = self.path if self.line is None else f"{self.path}, line {self.line}"
        return f"{where}: {self.problem}{'' if self.problem.endswith('?') else '.'}"


@define_error()
class ToolNameError(HookUsageError):
    """A check, an expectation or a mock is about a tool that the agent does not have, so that it would never match.

    Attributes:
        task: The task with its suite.
        what: What names the tool.
        pattern: The name.
        problem: What is wrong with it, and which tool may be meant.
    """

    task: str
    what: str
    pattern: str
    problem: str

    def __str__(self) -> str:
        return f"Task {self.task!r}, {self.what}: {self.problem}{'' if self.problem.endswith('?') else '.'}"


@define_error("{path} is no saved run: {reason}. `hookline eval SUITE --save FILE` writes one.")
class RunFileError(HooklineError, ValueError):
    """A saved run cannot be read.

    Attributes:
        path: The file.
        reason: Why not.
    """

    path: str
    reason: str


@define_error(
    "Mode {mode!r} needs a folder of cassettes: {problem}. Name one with `--cassettes DIR`, or `cassettes=` in "
    "Python; `--mode record` writes it."
)
class CassetteFolderError(HooklineError, ValueError):
    """A run records or replays, and does not know where its cassettes are.

    Attributes:
        mode: The mode of the run.
        problem: What it lacks.
    """

    mode: str
    problem: str


@define_error()
class UnknownAttackChoiceError(HooklineError, LookupError):
    """There is no such policy or wording of an attack.

    Attributes:
        choice: What was to be chosen: `"policy"` or `"wording"`.
        given: What was asked for.
        known: What there is.
    """

    choice: str
    given: str
    known: Sequence[str]

    def __str__(self) -> str:
        return f"{self.given!r} is no {self.choice} of an attack; there are: {', '.join(map(repr, self.known))}."
