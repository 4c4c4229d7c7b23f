"""The errors that evaluations raise.

```
HooklineError
├── AnswerError                         a rule of mocks has no answer to a call
├── CassetteError
│   ├── CassetteFileError (ValueError)  the file cannot be used as a cassette
│   │   └── CassetteVersionError        it has another version of the format
│   ├── CassetteConflictError           another process has written the file since it was read
│   └── CassetteWriteError (OSError)    the file cannot be written
├── FaultDefinitionError (ValueError)   a fault is defined with an invalid value
├── FaultFileError (ValueError)         a file of faults cannot be used
├── UnrecordedOperationError (KeyError)
│                                       the operation was not recorded
├── NotOneOperationError (LookupError)  several operations were recorded, or none
├── UnseenEventError (LookupError)      the operation has no such event
├── EventWaitError (TimeoutError)       the awaited event did not happen in time
├── UnknownSuiteError (LookupError)     no suite has that name
├── UnknownTaskError (LookupError)      the suite has no such task
├── UnknownTagError (LookupError)       no task has that tag
├── HookUsageError
│   └── ToolNameError                   a check names a tool that the agent does not have
├── SuiteFileError (ValueError)         the file of a suite cannot be used
├── DataFileError (ValueError)          a file of cases or of labels cannot be used
├── SimulatedUserError                  a simulated user has no next message
├── RunFileError (ValueError)           a saved run cannot be read
├── RunResumeError (ValueError)         a saved run cannot be continued by this one
├── RunWriteError (OSError)             a result cannot be written to the file of the run
├── WorkerError                         a worker process cannot load the suites
├── CassetteFolderError (ValueError)    a folder of cassettes cannot be used, or has none for a task
├── UnknownAttackChoiceError            no policy or wording of attacks has that name
├── ReportError (OSError)               the report cannot be written
├── EventFileError (ValueError)         a file of events cannot be read or written
└── ToolCallError
    ├── ForbiddenToolError              a real tool was about to run in a replay
    └── ToolExitError                   a tool called sys.exit() in an evaluation
```
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
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
    "DataFileError",
    "EventFileError",
    "EventWaitError",
    "FaultDefinitionError",
    "FaultFileError",
    "ForbiddenToolError",
    "NotOneOperationError",
    "ReportError",
    "RunFileError",
    "RunResumeError",
    "RunWriteError",
    "SimulatedUserError",
    "StaleRecordingWarning",
    "SuiteFileError",
    "ToolExitError",
    "ToolNameError",
    "UnknownAttackChoiceError",
    "UnknownSuiteError",
    "UnknownTagError",
    "UnknownTaskError",
    "UnrecordedOperationError",
    "UnseenEventError",
    "WorkerError",
]


@define_error()
class UnknownSuiteError(HooklineError, LookupError):
    """No suite has the requested name.

    Attributes:
        name: The requested name.
        known: The names of all suites.
    """

    name: str
    known: list[str]

    def __str__(self) -> str:
        return f"There is no suite {self.name!r}. Suites: {', '.join(self.known)}."


@define_error()
class UnknownTaskError(HooklineError, LookupError):
    """A suite has no task of the requested name.

    Attributes:
        suite: The suite.
        name: The requested name.
        known: The names of the suite's tasks.
    """

    suite: str
    name: str
    known: list[str]

    def __str__(self) -> str:
        shown = ", ".join(self.known[:LISTED_TASKS])
        more = len(self.known) - LISTED_TASKS
        near = get_close_matches(self.name, self.known, n=1) if more > 0 else []
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return (
            f"Suite {self.suite!r} has no task {self.name!r}.{hint} Tasks: {shown}"
            f"{f' and {more:,} more' if more > 0 else ''}."
        )


LISTED_TASKS = 100
"""How many tasks an error lists."""


@define_error()
class UnknownTagError(HooklineError, LookupError):
    """No task has the requested tag.

    Attributes:
        name: The requested tag.
        known: The tags of all tasks.
    """

    name: str
    known: list[str]

    def __str__(self) -> str:
        if not self.known:
            return f"No task has the tag {self.name!r}, or any other tag."
        return f"No task has the tag {self.name!r}. Tags: {', '.join(self.known)}."


@define_error("The real tool {tool!r} is forbidden in this run: no hook had answered the call.")
class ForbiddenToolError(ToolCallError):
    """A real tool was about to run in a run that must be answered without real tools.

    Attributes:
        tool: The tool, as `toolset/name`.
    """

    tool: str


@define_error("{tool!r} called sys.exit({code!r}), which would end the run. Let the tool raise another error.")
class ToolExitError(ToolCallError):
    """A tool called `sys.exit()` in an evaluation. The call fails, and the other tasks go on.

    Attributes:
        tool: The tool, as `toolset/name`.
        code: The exit code.
    """

    tool: str
    code: object


@define_error(
    "The report cannot be written to {path}: {reason}. Name a file in a folder that exists and that you may write to."
)
class ReportError(HooklineError, OSError):
    """A report cannot be written to the requested file.

    Attributes:
        path: The file.
        reason: The reason why not.
    """

    path: str
    reason: str


@define_error()
class EventFileError(HooklineError, ValueError):
    """A file of events cannot be read or written.

    Attributes:
        path: The file.
        what: The failed action: `"read"` or `"written"`.
        reason: The reason why not.
        line: The line of the problem, from 1; `None` if it concerns the whole file.
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
    """A rule matches a call but has no answer to it.

    The model reads the reason as a failed result, and the real tool does not run.

    Attributes:
        reason: The reason why there is none.
    """

    reason: str


class NeverMatchingRuleWarning(UserWarning):
    """A rule was added that no call can ever match."""


class StaleRecordingWarning(UserWarning):
    """A test has replayed recordings of a tool whose schema has changed since."""


def check_name(name: object) -> str:
    """Return the name of a rule or of a fault if it is text.

    Raises:
        HookUsageError: If it is not text.
    """
    if not isinstance(name, str):
        raise HookUsageError(f"The name of a rule or of a fault is text; got {name!r:.100}.")
    return name


class CassetteError(HooklineError):
    """A cassette, or a tape, cannot be read or saved. Its file is left unchanged.

    Attributes:
        path: The file.
    """

    path: str


@define_error()
class CassetteFileError(CassetteError, ValueError):
    """A file cannot be used as a cassette or as a tape.

    Attributes:
        path: The file.
        problem: The problem, and how to fix it.
        line: The line of the problem, from 1; `None` if it concerns the whole file.
        what: `"cassette"` or `"tape"`.
    """

    path: str
    problem: str
    line: int | None = None
    what: str = "cassette"

    def __str__(self) -> str:
        return f"The {self.what} {_place(self.path, self.line)} cannot be used: {self.problem}. Nothing was written."


class CassetteVersionError(CassetteFileError):
    """A cassette or a tape has a format version that this version of hookline does not read.

    Attributes:
        path: The file.
        problem: The problem, and how to fix it.
        line: The line of the version.
        version: The version of the file.
        known: The version that this hookline reads and writes.
        what: `"cassette"` or `"tape"`.
    """

    def __init__(self, path: str, line: int, version: int, known: int, what: str = "cassette") -> None:
        todo = "upgrade hookline" if version > known else "this format is no longer read"
        problem = f"its format version is {version}, and this hookline reads {known}: {todo}, or record the file again"
        super().__init__(path, f"{problem} with mode='rewrite'", line, what)
        self.args = (path, line, version, known, what)
        self.version, self.known = version, known


@define_error(
    "The {what} {name!r} was not saved: {path} has changed since it was read, so another test or process has "
    "written it. Give each case its own file, or run this one again."
)
class CassetteConflictError(CassetteError):
    """Another process wrote the file of a cassette or a tape after it was read, so saving would lose recordings.

    Attributes:
        path: The file.
        name: Name of the cassette that was not saved; what it recorded is still in memory.
        what: `"cassette"` or `"tape"`.
    """

    path: str
    name: str
    what: str = "cassette"


@define_error("The {what} {path} cannot be written: {reason}. Name a file that you may write to.")
class CassetteWriteError(CassetteError, OSError):
    """The file of a cassette or a tape cannot be written.

    Attributes:
        path: The file.
        reason: The reason why not.
        what: `"cassette"` or `"tape"`.
    """

    path: str
    reason: str
    what: str = "cassette"


@define_error()
class UnrecordedOperationError(HooklineError, KeyError):
    """A recorder has no events of the requested operation.

    Attributes:
        operation_id: The requested operation.
        known: The recorded operations.
    """

    operation_id: str
    known: list[str]

    def __str__(self) -> str:
        return f"No operation {self.operation_id!r} was recorded. {_list_operations(self.known)}"


@define_error()
class NotOneOperationError(HooklineError, LookupError):
    """`EventRecorder.only` was read, but none or several operations were recorded.

    Attributes:
        known: The operations that were recorded, sub-agents' left out.
    """

    known: list[str]

    def __str__(self) -> str:
        if not self.known:
            return f"No operation was recorded. {_list_operations(self.known)}"
        known = _list_operations(self.known)
        return f"{len(self.known)} operations were recorded, not one. {known} Ask for one with `of(id)`."


@define_error()
class UnseenEventError(HooklineError, LookupError):
    """An operation has no event of the requested kind.

    Attributes:
        wanted: A description of the requested event.
        seen: The events of the operation, a line each.
    """

    wanted: str
    seen: list[str]

    def __str__(self) -> str:
        return f"There is no {self.wanted}.{_list_events(self.seen)}"


@define_error()
class EventWaitError(HooklineError, TimeoutError):
    """The awaited event did not happen in time.

    Attributes:
        wanted: A description of the awaited event.
        timeout: The timeout in seconds.
        count: The number of events that were awaited.
        met: The number of them that happened.
        seen: The events that did happen, a line each.
    """

    wanted: str
    timeout: float
    count: int
    met: int
    seen: list[str]

    def __str__(self) -> str:
        wanted = f"no {self.wanted}" if self.count == 1 else f"only {self.met} of {self.count} {self.wanted}"
        return f"There was {wanted} within {self.timeout:g} s.{_list_events(self.seen)}"


def _list_operations(known: list[str]) -> str:
    if not known:
        return "Give `recorder.hooks` to the run, as hooks=[recorder.hooks]."
    names = ", ".join(map(repr, known[:20]))
    return f"There are: {names}{', …' if len(known) > 20 else ''}."


def _list_events(seen: list[str]) -> str:
    if not seen:
        return " No event was seen at all: give `recorder.hooks` to the run, as hooks=[recorder.hooks]."
    return "\nSeen:\n" + "\n".join(f"  {line}" for line in seen)


def _place(path: str, line: int | None) -> str:
    return path if line is None else f"{path}, line {line}"


def _end_sentence(text: str) -> str:
    return text if text.endswith("?") else f"{text}."


MAX_SECONDS = 1e9
"""About thirty years: far beyond any run, and sums of it stay exact enough to compare."""


@define_error("{fault}: `{field}` {problem}.")
class FaultDefinitionError(HooklineError, ValueError):
    """A fault was defined with a value that makes no sense.

    Attributes:
        fault: The kind of fault.
        field: The field with the invalid value.
        problem: The problem, and the expected value.
    """

    fault: str
    field: str
    problem: str


@define_error()
class FaultFileError(HooklineError, ValueError):
    """A file of faults cannot be used. None of its faults are loaded.

    Attributes:
        path: The file.
        problem: The problem, and the expected value.
        line: The line of the problem, from 1; `None` if it concerns the whole file.
    """

    path: str
    problem: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{_place(self.path, self.line)}: {self.problem}."


def check_seconds(fault: str, field: str, value: object, *, positive: bool = False) -> None:
    """Raise an error unless a value is a valid number of seconds.

    Args:
        fault: How the error names the fault.
        field: The field.
        value: The value to check.
        positive: Whether 0 is refused too.

    Raises:
        FaultDefinitionError: If it is not a number from 0 to a billion.
    """
    if not _number(value) or not 0 <= value <= MAX_SECONDS or (positive and value == 0):
        least = "above 0" if positive else "from 0"
        problem = f"is a number of seconds {least}, and at most {MAX_SECONDS:.0e}; got {quote(value)}"
        raise FaultDefinitionError(fault, field, problem)


def check_count(fault: str, field: str, value: object, *, most: int) -> None:
    """Raise an error unless a value is a whole number from 1 to a limit.

    Args:
        fault: How the error names the fault.
        field: The field.
        value: The value to check.
        most: The largest number that is taken.

    Raises:
        FaultDefinitionError: If it is anything else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise FaultDefinitionError(fault, field, f"is a whole number from 1 to {most:,}; got {quote(value)}")


def check_probability(fault: str, value: object) -> None:
    """Raise an error unless a value is a probability.

    Args:
        fault: How the error names the fault, or the rule for it.
        value: The value to check.

    Raises:
        FaultDefinitionError: If it is not a number from 0 to 1.
    """
    if not _number(value) or not 0 <= value <= 1:
        raise FaultDefinitionError(fault, "probability", f"is a number from 0 to 1; got {quote(value)}")


def _number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


@define_error()
class SuiteFileError(HooklineError, ValueError):
    """The file of a suite cannot be used.

    Attributes:
        path: The file.
        problem: The problem, and how to fix it.
        line: The line of the problem, from 1; `None` if it concerns the whole file.
    """

    path: str
    problem: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{_place(self.path, self.line)}: {_end_sentence(self.problem)}"


@define_error()
class DataFileError(HooklineError, ValueError):
    """A file of cases or of labels cannot be used.

    Attributes:
        path: The file.
        problem: The problem, and how to fix it.
        line: The line of the problem, from 1; `None` if it concerns the whole file.
    """

    path: str
    problem: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{_place(self.path, self.line)}: {_end_sentence(self.problem)}"


@define_error("The simulated user could not go on: {problem}. The agent is not to blame; run the task again.")
class SimulatedUserError(HooklineError):
    """A simulated user has no next message, because its model failed or wrote nothing.

    Attributes:
        problem: The problem.
    """

    problem: str


@define_error()
class ToolNameError(HookUsageError):
    """A check, an expectation or a mock names a tool that the agent does not have, so it could never match.

    Attributes:
        task: The task with its suite.
        what: The part of the task that names the tool.
        pattern: The name.
        problem: The problem, and the tool that may be meant.
    """

    task: str
    what: str
    pattern: str
    problem: str

    def __str__(self) -> str:
        return f"Task {self.task!r}, {self.what}: {_end_sentence(self.problem)}"


@define_error("{path} is not a saved run: {reason}. `hookline eval SUITE --save FILE` writes one.")
class RunFileError(HooklineError, ValueError):
    """A saved run cannot be read.

    Attributes:
        path: The file.
        reason: The reason why not.
    """

    path: str
    reason: str


@define_error(
    "{path} cannot be continued: {reason}. Give the suites and options of the run that it is, or save a new run to "
    "another file."
)
class RunResumeError(HooklineError, ValueError):
    """A saved run is not one that this run can continue.

    Attributes:
        path: The file.
        reason: The difference between the two.
    """

    path: str
    reason: str


@define_error()
class RunWriteError(HooklineError, OSError):
    """The result of a task cannot be written to the file of the run. The run ends; the file has all earlier results.

    Attributes:
        path: The file.
        reason: The reason why not.
        done: How many results the file has; `None` if that is not known.
    """

    path: str
    reason: str
    done: int | None = None

    def __str__(self) -> str:
        problem = f"The run cannot be saved to {self.path}: {self.reason}."
        if not self.done:
            return problem
        return f"{problem} The file has {self.done:,} results; once it can be written, continue it with --resume."


@define_error(
    "A worker process could not load the suites: {problem}. Name them in `targets` so that another process finds them, "
    "or leave `workers` out."
)
class WorkerError(HooklineError):
    """A worker process cannot load the suites of a run.

    Attributes:
        problem: What went wrong.
    """

    problem: str


@define_error(
    "Mode {mode!r} needs a folder of cassettes: {problem}. Name one with `--cassettes DIR`, or `cassettes=` in "
    "Python; `--mode record` writes it."
)
class CassetteFolderError(HooklineError, ValueError):
    """A run records or replays cassettes, but the folder of the cassettes is missing or not named.

    Attributes:
        mode: The mode of the run.
        problem: The problem.
    """

    mode: str
    problem: str


@define_error()
class UnknownAttackChoiceError(HooklineError, LookupError):
    """No attack policy or wording has the requested name.

    Attributes:
        choice: The kind of choice: `"policy"` or `"wording"`.
        given: The requested name.
        known: The valid names.
    """

    choice: str
    given: str
    known: Sequence[str]

    def __str__(self) -> str:
        known = ", ".join(map(repr, self.known))
        return f"There is no {self.choice} of attacks named {self.given!r}; there are: {known}."
