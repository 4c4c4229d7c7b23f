"""Errors of stored hooks: definitions, files of definitions, quotas and scripts.

```
HooklineError
├── DefinitionError (ValueError)            a definition is invalid or cannot be changed
│   └── DefinitionFileError                 ... in a file, with the line
├── DefinitionNotFoundError (LookupError)   the definition does not exist, or belongs to another tenant
├── DefinitionConflictError                 it was changed in the meantime, or its id or name is taken
├── QuotaError                              the tenant's quota of definitions is used up
├── FenceError (TimeoutError)               a fenced change is in force, but not confirmed by every process
└── ScriptError                             a script failed or wrote an invalid answer
```
"""

from __future__ import annotations

from typing import Literal

from hookline.errors import HooklineError, define_error

__all__ = [
    "DefinitionConflictError",
    "DefinitionError",
    "DefinitionFileError",
    "DefinitionNotFoundError",
    "FenceError",
    "QuotaError",
    "ScriptCode",
    "ScriptError",
]

ScriptCode = Literal["gone", "not_started", "exit_code", "timeout", "too_much_output", "invalid_answer"]


@define_error("The definition cannot be used ({code}): {problem}, at {path}")
class DefinitionError(HooklineError, ValueError):
    """A definition is invalid or cannot be changed; nothing was changed.

    Attributes:
        code: The kind of problem: `"invalid"` (a field has an invalid value), `"handler_not_allowed"`,
            `"handler_broken"` (the handler cannot be loaded), `"config_refused"`, `"point_not_served"` (the hook does
            not fit the point), `"webhook_refused"`, `"script_refused"`, `"remote_refused"`, `"read_only"`,
            `"unreadable"` (a file cannot be opened), `"not_judged"` (stored calls cannot be judged with it).
        path: The field, as a JSON path (`$.config.tools`).
        problem: What is wrong, and how to fix it.
    """

    code: str
    path: str
    problem: str


@define_error()
class DefinitionFileError(DefinitionError):
    """A file of definitions is broken; its last valid content stays in force.

    Attributes:
        file: The file.
        line: The line, from 1; `None` if it is not known.
    """

    file: str
    line: int | None = None

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}, line {self.line}"
        where = "" if self.path == "$" else f", at {self.path}"
        return f"{place}: {self.problem}{where}"


@define_error("There is no hook definition {id!r}.")
class DefinitionNotFoundError(HooklineError, LookupError):
    """There is no such definition, or not for this tenant.

    Attributes:
        id: The id that was asked for.
    """

    id: str


@define_error("Hook definition {id!r}: {problem}")
class DefinitionConflictError(HooklineError):
    """A definition conflicts with a stored one; nothing was changed.

    Attributes:
        id: The id of the definition.
        problem: What conflicts, and how to fix it.
        revision: The stored revision, if it is not the expected one.
    """

    id: str
    problem: str
    revision: int | None = None


@define_error("Tenant {tenant_id!r} has reached its quota of {quota} hook definitions; delete one first.")
class QuotaError(HooklineError):
    """The quota of a tenant is used up; nothing was changed.

    Attributes:
        tenant_id: The tenant.
        quota: The number of definitions that it may store.
    """

    tenant_id: str
    quota: int


@define_error()
class FenceError(HooklineError, TimeoutError):
    """A fenced change is stored and in force, but some processes may still judge calls by the old revision.

    Attributes:
        revision: The revision of the change.
        timeout: Seconds for which the confirmation of all processes was waited for.
        members: The processes that have not confirmed it: host, process id and a random part, joined by `-`.
        problem: Why it is not known which processes have confirmed it, if the database could not be reached; else `""`.
    """

    revision: int
    timeout: float
    members: tuple[str, ...]
    problem: str = ""

    def __str__(self) -> str:
        began = f"The change is stored as revision {self.revision} and stays in force, but after {self.timeout:g} s "
        if self.problem:
            return f"{began}it is not known whether all processes have confirmed it: {self.problem}"
        return (
            f"{began}these processes have not confirmed that they judge by it: {', '.join(self.members)}. A hook may "
            "be taking long there, or a call may be inside of an `around` hook that has changed. Stop these "
            "processes, or repeat the change with a fence."
        )


@define_error("The script of hook {hook_id!r} failed ({code}): {problem}")
class ScriptError(HooklineError):
    """A script failed, or gave no valid answer.

    Attributes:
        hook_id: The id of the hook.
        code: The kind of failure.
        problem: What happened.
    """

    hook_id: str
    code: ScriptCode
    problem: str
