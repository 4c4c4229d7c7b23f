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

from hookline.errors import HooklineError, ToolCallError
from hookline.evals._cassette_errors import (
    CassetteConflictError,
    CassetteError,
    CassetteFileError,
    CassetteVersionError,
    CassetteWriteError,
)
from hookline.evals._fault_errors import FaultDefinitionError, FaultFileError
from hookline.evals._mock_errors import AnswerError
from hookline.evals._recorder_errors import (
    EventWaitError,
    NotOneOperationError,
    UnrecordedOperationError,
    UnseenEventError,
)
from hookline.evals.suites._attack_errors import UnknownAttackChoiceError
from hookline.evals.suites._errors import CassetteFolderError, RunFileError, SuiteFileError, ToolNameError

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


class UnknownSuiteError(HooklineError, LookupError):
    """There is no suite of that name.

    Attributes:
        name: What was asked for.
        known: The suites that there are.
    """

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(name, known)
        self.name, self.known = name, known

    def __str__(self) -> str:
        return f"There is no suite {self.name!r}. Suites: {', '.join(self.known)}."


class UnknownTaskError(HooklineError, LookupError):
    """A suite has no task of that name.

    Attributes:
        suite: The suite.
        name: What was asked for.
        known: The tasks that the suite has.
    """

    def __init__(self, suite: str, name: str, known: list[str]) -> None:
        super().__init__(suite, name, known)
        self.suite, self.name, self.known = suite, name, known

    def __str__(self) -> str:
        return f"Suite {self.suite!r} has no task {self.name!r}. Tasks: {', '.join(self.known)}."


class ForbiddenToolError(ToolCallError):
    """A tool would really have run although the run was to be answered by a recording alone.

    Attributes:
        tool: The tool, as `identifier/name`.
    """

    def __init__(self, tool: str) -> None:
        super().__init__(tool)
        self.tool = tool

    def __str__(self) -> str:
        return f"The real tool {self.tool!r} is forbidden in this run: no hook had answered the call."


class ReportError(HooklineError, OSError):
    """A report cannot be written where it was asked for.

    Attributes:
        path: Where.
        reason: Why not.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"The report cannot be written to {self.path}: {self.reason}. "
            "Name a file in a folder that exists and that you may write to."
        )


class EventFileError(HooklineError, ValueError):
    """A file of events cannot be read or written.

    Attributes:
        path: The file.
        what: What cannot be done with it: `"read"` or `"written"`.
        reason: Why not.
        line: The line that it is about, from 1; `None` where it is about the file as a whole.
    """

    def __init__(self, path: str, what: str, reason: str, line: int | None = None) -> None:
        super().__init__(path, what, reason, line)
        self.path, self.what, self.reason, self.line = path, what, reason, line

    def __str__(self) -> str:
        if self.line is None:
            return f"{self.path} cannot be {self.what}: {self.reason}."
        hint = " A recorded run has one event per line, as `write_events` writes it." if self.what == "read" else ""
        return f"Line {self.line} of {self.path} cannot be {self.what}: {self.reason}.{hint}"
