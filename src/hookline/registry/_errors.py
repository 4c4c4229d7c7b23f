"""What goes wrong with stored hooks.

```
HooklineError
├── DefinitionError (ValueError)            a definition that cannot work
│   └── DefinitionFileError                 and the file and the line where it stands
├── DefinitionNotFoundError (LookupError)   nobody knows its id, or it is another tenant's
├── DefinitionConflictError                 somebody changed it meanwhile, or its name is taken
├── QuotaError                              the tenant has as many as it may have
└── ScriptError                             a script that gave no valid answer
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
    "QuotaError",
    "ScriptCode",
    "ScriptError",
]

ScriptCode = Literal["gone", "not_started", "exit_code", "timeout", "too_much_output", "invalid_answer"]


@define_error("The definition cannot be used ({code}): {problem}, at {path}")
class DefinitionError(HooklineError, ValueError):
    """A definition cannot work as it was given; nothing was changed.

    Attributes:
        code: What is wrong, to switch on: `"invalid"` (a field has no proper value), `"handler_not_allowed"`,
            `"handler_broken"` (it is allowed, and cannot be loaded), `"config_refused"`, `"point_not_served"` (such a
            hook cannot stand there), `"webhook_refused"`, `"script_refused"`, `"read_only"`, `"unreadable"` (a file
            cannot be opened).
        path: Where, as a JSON path (`$.config.tools`).
        problem: What is wrong, and how to fix it.
    """

    code: str
    path: str
    problem: str


@define_error()
class DefinitionFileError(DefinitionError):
    """A file of definitions cannot be used; what it said before still holds.

    Attributes:
        file: The file.
        line: The line, from 1; `None` where nobody can tell.
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
        id: What was asked for.
    """

    id: str


@define_error("Hook definition {id!r}: {problem}")
class DefinitionConflictError(HooklineError):
    """A definition does not go with what is stored; nothing was changed.

    Attributes:
        id: The definition.
        problem: What stands in the way, and how to go on.
        revision: The stored revision, where that is not the expected one.
    """

    id: str
    problem: str
    revision: int | None = None


@define_error("Tenant {tenant_id!r} may have {quota} hook definitions, and that many there are; delete one first.")
class QuotaError(HooklineError):
    """A tenant may not have more definitions; nothing was changed.

    Attributes:
        tenant_id: The tenant.
        quota: How many it may have.
    """

    tenant_id: str
    quota: int


@define_error("The script of hook {hook_id!r} gave no valid answer ({code}): {problem}")
class ScriptError(HooklineError):
    """A script gave no valid answer.

    Attributes:
        hook_id: The hook.
        code: What went wrong, to switch on.
        problem: What happened.
    """

    hook_id: str
    code: ScriptCode
    problem: str
