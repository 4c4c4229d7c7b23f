"""What the commands that look after a store refuse.

```
HooklineError
├── StoreMissingError                   there is no such file
├── NotAStoreError                      there is something else than a store
├── NotWaitingError (OperationError)    the operation does not wait for a person
├── NothingDoneError                    deliveries that cannot be tried again
├── UnknownKeyError (LookupError)       there is no such key
├── UnknownSecretError (LookupError)    there is no such signing secret
└── InputFileError (ValueError)         a file that holds no definitions
```
"""

from __future__ import annotations

from hookline.errors import HooklineError, OperationError

__all__ = [
    "InputFileError",
    "NotAStoreError",
    "NotWaitingError",
    "NothingDoneError",
    "StoreMissingError",
    "UnknownKeyError",
    "UnknownSecretError",
]


class StoreMissingError(HooklineError):
    """There is no store to look into.

    Attributes:
        store: Where it was looked for, without a password.
    """

    def __init__(self, store: str) -> None:
        super().__init__(store)
        self.store = store

    def __str__(self) -> str:
        return (
            f"There is no store {self.store}; name the one that your agents use by --store or HOOKLINE_STORE. "
            "`hookline serve` makes a new one."
        )


class NotAStoreError(HooklineError):
    """What a store was named is something else.

    Attributes:
        store: Where it was looked for.
    """

    def __init__(self, store: str) -> None:
        super().__init__(store)
        self.store = store

    def __str__(self) -> str:
        return (
            f"{self.store} is no store: there is something else than an SQLite database. "
            "Name the one that your agents use by --store or HOOKLINE_STORE."
        )


class NotWaitingError(OperationError):
    """A person wants to decide, and the operation does not wait for that.

    Attributes:
        status: What it does instead, or why it ended.
    """

    def __init__(self, operation_id: str, status: str) -> None:
        super().__init__(operation_id)
        self.args = (operation_id, status)
        self.status = status

    def __str__(self) -> str:
        return f"Operation {self.operation_id!r} does not wait for a person; its status is {self.status!r}."


class NothingDoneError(HooklineError):
    """Some deliveries are not tried again.

    Attributes:
        reasons: Why not, each with its id.
    """

    def __init__(self, reasons: list[str]) -> None:
        super().__init__(reasons)
        self.reasons = reasons

    def __str__(self) -> str:
        return f"Not tried again: {'; '.join(self.reasons)}."


class UnknownKeyError(HooklineError, LookupError):
    """There is no such API key, or it is another tenant's.

    Attributes:
        id: What was asked for.
    """

    def __init__(self, id: str) -> None:  # noqa: A002
        super().__init__(id)
        self.id = id

    def __str__(self) -> str:
        return f"There is no API key {self.id!r}; `hookline keys list` shows the ids."


class UnknownSecretError(HooklineError, LookupError):
    """There is no such signing secret, or it is another tenant's.

    Attributes:
        id: What was asked for.
    """

    def __init__(self, id: str) -> None:  # noqa: A002
        super().__init__(id)
        self.id = id

    def __str__(self) -> str:
        return f"There is no signing secret {self.id!r}; `hookline endpoints list` shows the ids."


class InputFileError(HooklineError, ValueError):
    """A file, or what came on stdin, is not what a command reads.

    Attributes:
        file: Which.
        problem: What is wrong with it.
    """

    def __init__(self, file: str, problem: str) -> None:
        super().__init__(file, problem)
        self.file, self.problem = file, problem

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}"
