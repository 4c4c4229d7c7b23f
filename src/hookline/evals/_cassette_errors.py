"""What cassettes raise.

```
HooklineError
└── CassetteError                       something is wrong with a cassette; names its file
    ├── CassetteFileError (ValueError)  the file cannot be used as it is; says in which line, and what to fix
    │   └── CassetteVersionError        the file has another format version
    ├── CassetteConflictError           somebody else has written the file in the meantime
    └── CassetteWriteError (OSError)    the file cannot be written there
```
"""

from __future__ import annotations

from hookline.errors import HooklineError

__all__ = [
    "CassetteConflictError",
    "CassetteError",
    "CassetteFileError",
    "CassetteVersionError",
    "CassetteWriteError",
]


class CassetteError(HooklineError):
    """Something is wrong with a cassette. The file that it is about is left as it is.

    Attributes:
        path: The file.
    """

    path: str


class CassetteFileError(CassetteError, ValueError):
    """A file cannot be used as a cassette.

    Attributes:
        path: The file.
        problem: What is wrong with it, and how to fix it.
        line: The line that it is about, from 1; `None` where it is about the file as a whole.
    """

    def __init__(self, path: str, problem: str, line: int | None = None) -> None:
        super().__init__(path, problem, line)
        self.path, self.problem, self.line = path, problem, line

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


class CassetteConflictError(CassetteError):
    """Somebody else has written a cassette's file since it was read, so that saving would lose recordings.

    Attributes:
        path: The file.
        name: Name of the cassette that was not saved; what it recorded is still in memory.
    """

    def __init__(self, path: str, name: str) -> None:
        super().__init__(path, name)
        self.path, self.name = path, name

    def __str__(self) -> str:
        return (
            f"The cassette {self.name!r} was not saved: {self.path} has changed since it was read, so another test or "
            "process has written it. Name one file a case; if it was a passing collision, run this one again."
        )


class CassetteWriteError(CassetteError, OSError):
    """A cassette's file cannot be written where it is to be.

    Attributes:
        path: The file.
        reason: Why not.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"The cassette {self.path} cannot be written: {self.reason}. Name a file that you may write to."
