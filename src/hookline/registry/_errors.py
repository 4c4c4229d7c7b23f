"""Errors of stored hooks: definitions, files of definitions, quotas and scripts.

```
HooklineError
├── DefinitionError (ValueError)            a definition is invalid, or may not be changed
│   └── DefinitionFileError                 ... in a file, with the line
├── DefinitionNotFoundError (LookupError)   there is no such definition, or it is another tenant's
├── DefinitionConflictError                 it was changed meanwhile, or its id or name is taken
├── QuotaError                              the tenant's quota of definitions is used up
└── ScriptError                             a script failed, or gave no valid answer
```
"""

from __future__ import annotations

from typing import Literal

from hookline.errors import HooklineError

__all__ = [
    "DefinitionConflictError",
    "DefinitionError",
    "DefinitionFileError",
    "DefinitionNotFoundError",
    "QuotaError",
    "ScriptCode",
    "ScriptError",
]

ScriptCode = Literal["gone", "not_started", "exit_code", "timeout", "too_much_output", "invalid_answer"]


class DefinitionError(HooklineError, ValueError):
    """A definition is invalid or cannot be changed; nothing was changed.

    Attributes:
        code: The kind of problem: `"invalid"` (a field has an invalid value), `"handler_not_allowed"`,
            `"handler_broken"` (the handler cannot be loaded), `"config_refused"`, `"point_not_served"` (the hook does
            not fit the point), `"webhook_refused"`, `"script_refused"`, `"read_only"`, `"unreadable"` (a file cannot
            be opened).
        path: The field, as a JSON path (`$.config.tools`).
        problem: What is wrong, and how to fix it.
    """

    def __init__(self, code: str, path: str, problem: str) -> None:
        super().__init__(code, path, problem)
        self.code, self.path, self.problem = code, path, problem

    def __str__(self) -> str:
        return f"The definition cannot be used ({self.code}): {self.problem}, at {self.path}"


class DefinitionFileError(DefinitionError):
    """A file of definitions is broken; its last valid content stays in force.

    Attributes:
        file: The file.
        line: The line, from 1; `None` if it is not known.
    """

    def __init__(self, code: str, path: str, problem: str, file: str, line: int | None = None) -> None:
        super().__init__(code, path, problem)
        self.args = (code, path, problem, file, line)
        self.file, self.line = file, line

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}, line {self.line}"
        where = "" if self.path == "$" else f", at {self.path}"
        return f"{place}: {self.problem}{where}"


class DefinitionNotFoundError(HooklineError, LookupError):
    """There is no such definition, or not for this tenant.

    Attributes:
        id: The id that was asked for.
    """

    def __init__(self, id: str) -> None:  # noqa: A002
        super().__init__(id)
        self.id = id

    def __str__(self) -> str:
        return f"There is no hook definition {self.id!r}."


class DefinitionConflictError(HooklineError):
    """A definition conflicts with a stored one; nothing was changed.

    Attributes:
        id: The id of the definition.
        problem: What conflicts, and how to fix it.
        revision: The stored revision, if it is not the expected one.
    """

    def __init__(self, id: str, problem: str, revision: int | None = None) -> None:  # noqa: A002
        super().__init__(id, problem, revision)
        self.id, self.problem, self.revision = id, problem, revision

    def __str__(self) -> str:
        return f"Hook definition {self.id!r}: {self.problem}"


class QuotaError(HooklineError):
    """The quota of a tenant is used up; nothing was changed.

    Attributes:
        tenant_id: The tenant.
        quota: The number of definitions that it may store.
    """

    def __init__(self, tenant_id: str, quota: int) -> None:
        super().__init__(tenant_id, quota)
        self.tenant_id, self.quota = tenant_id, quota

    def __str__(self) -> str:
        return (
            f"Tenant {self.tenant_id!r} may have {self.quota} hook definitions, and that many there are; "
            "delete one first."
        )


class ScriptError(HooklineError):
    """A script failed, or gave no valid answer.

    Attributes:
        hook_id: The id of the hook.
        code: The kind of failure.
        problem: What happened.
    """

    def __init__(self, hook_id: str, code: ScriptCode, problem: str) -> None:
        super().__init__(hook_id, code, problem)
        self.hook_id, self.code, self.problem = hook_id, code, problem

    def __str__(self) -> str:
        return f"The script of hook {self.hook_id!r} gave no valid answer ({self.code}): {self.problem}"
