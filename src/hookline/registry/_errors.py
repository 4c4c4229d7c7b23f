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
    """A definition cannot work as it was given; nothing was changed.

    Attributes:
        code: What is wrong, to switch on: `"invalid"` (a field has no proper value), `"handler_not_allowed"`,
            `"handler_broken"` (it is allowed, and cannot be loaded), `"config_refused"`, `"point_not_served"` (such a
            hook cannot stand there), `"webhook_refused"`, `"script_refused"`, `"read_only"`, `"unreadable"` (a file
            cannot be opened).
        path: Where, as a JSON path (`$.config.tools`).
        problem: What is wrong, and how to fix it.
    """

    def __init__(self, code: str, path: str, problem: str) -> None:
        super().__init__(code, path, problem)
        self.code, self.path, self.problem = code, path, problem

    def __str__(self) -> str:
        return f"The definition cannot be used ({self.code}): {self.problem}, at {self.path}"


class DefinitionFileError(DefinitionError):
    """A file of definitions cannot be used; what it said before still holds.

    Attributes:
        file: The file.
        line: The line, from 1; `None` where nobody can tell.
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
        id: What was asked for.
    """

    def __init__(self, id: str) -> None:  # noqa: A002
        super().__init__(id)
        self.id = id

    def __str__(self) -> str:
        return f"There is no hook definition {self.id!r}."


class DefinitionConflictError(HooklineError):
    """A definition does not go with what is stored; nothing was changed.

    Attributes:
        id: The definition.
        problem: What stands in the way, and how to go on.
        revision: The stored revision, where that is not the expected one.
    """

    def __init__(self, id: str, problem: str, revision: int | None = None) -> None:  # noqa: A002
        super().__init__(id, problem, revision)
        self.id, self.problem, self.revision = id, problem, revision

    def __str__(self) -> str:
        return f"Hook definition {self.id!r}: {self.problem}"


class QuotaError(HooklineError):
    """A tenant may not have more definitions; nothing was changed.

    Attributes:
        tenant_id: The tenant.
        quota: How many it may have.
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
    """A script gave no valid answer.

    Attributes:
        hook_id: The hook.
        code: What went wrong, to switch on.
        problem: What happened.
    """

    def __init__(self, hook_id: str, code: ScriptCode, problem: str) -> None:
        super().__init__(hook_id, code, problem)
        self.hook_id, self.code, self.problem = hook_id, code, problem

    def __str__(self) -> str:
        return f"The script of hook {self.hook_id!r} gave no valid answer ({self.code}): {self.problem}"
