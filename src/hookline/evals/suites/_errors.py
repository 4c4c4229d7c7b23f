"""What suites, their files and saved runs are refused for.

```
HooklineError
├── HookUsageError
│   └── ToolNameError                   a check or an expectation is about a tool that there is not
├── SuiteFileError (ValueError)         a suite's file cannot be used; says which line
├── RunFileError (ValueError)           a saved run cannot be read
└── CassetteFolderError (ValueError)    a run needs cassettes, and does not know where
```
"""

from __future__ import annotations

from hookline.errors import HooklineError, HookUsageError

__all__ = ["CassetteFolderError", "RunFileError", "SuiteFileError", "ToolNameError"]


class SuiteFileError(HooklineError, ValueError):
    """A suite's file cannot be used.

    Attributes:
        path: The file.
        problem: What is wrong, and how to fix it.
        line: The line that it is about, from 1; `None` where it is about the file as a whole.
    """

    def __init__(self, path: str, problem: str, line: int | None = None) -> None:
        super().__init__(path, problem, line)
        self.path, self.problem, self.line = path, problem, line

    def __str__(self) -> str:
        where = self.path if self.line is None else f"{self.path}, line {self.line}"
        return f"{where}: {self.problem}{'' if self.problem.endswith('?') else '.'}"


class ToolNameError(HookUsageError):
    """A check, an expectation or a mock is about a tool that the agent does not have, so that it would never match.

    Attributes:
        task: The task with its suite.
        what: What names the tool.
        pattern: The name.
        problem: What is wrong with it, and which tool may be meant.
    """

    def __init__(self, task: str, what: str, pattern: str, problem: str) -> None:
        super().__init__(task, what, pattern, problem)
        self.task, self.what, self.pattern, self.problem = task, what, pattern, problem

    def __str__(self) -> str:
        return f"Task {self.task!r}, {self.what}: {self.problem}{'' if self.problem.endswith('?') else '.'}"


class RunFileError(HooklineError, ValueError):
    """A saved run cannot be read.

    Attributes:
        path: The file.
        reason: Why not.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path} is no saved run: {self.reason}. `hookline eval SUITE --save FILE` writes one."


class CassetteFolderError(HooklineError, ValueError):
    """A run records or replays, and does not know where its cassettes are.

    Attributes:
        mode: The mode of the run.
        problem: What it lacks.
    """

    def __init__(self, mode: str, problem: str) -> None:
        super().__init__(mode, problem)
        self.mode, self.problem = mode, problem

    def __str__(self) -> str:
        return (
            f"Mode {self.mode!r} needs a folder of cassettes: {self.problem}. Name one with `--cassettes DIR`, or "
            "`cassettes=` in Python; `--mode record` writes it."
        )
