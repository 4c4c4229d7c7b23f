"""What is refused when a fault is made or read from a file.

```
HooklineError
├── FaultDefinitionError (ValueError)   a fault that cannot strike as it was given
└── FaultFileError (ValueError)         a file of faults cannot be read; says which line
```
"""

from __future__ import annotations

from typing import TypeGuard

from hookline._checks import shown
from hookline.errors import HooklineError

__all__ = ["FaultDefinitionError", "FaultFileError", "check_count", "check_probability", "check_seconds"]

MAX_SECONDS = 1e9
"""About thirty years: far beyond any run, and sums of it stay exact enough to compare."""


class FaultDefinitionError(HooklineError, ValueError):
    """A fault cannot strike as it was given.

    Attributes:
        fault: Which kind of fault, or which rule for one.
        field: What was given wrongly.
        problem: What is wrong, and what is expected.
    """

    def __init__(self, fault: str, field: str, problem: str) -> None:
        super().__init__(fault, field, problem)
        self.fault, self.field, self.problem = fault, field, problem

    def __str__(self) -> str:
        return f"{self.fault}: `{self.field}` {self.problem}."


class FaultFileError(HooklineError, ValueError):
    """A file of faults cannot be read; nothing of it is used.

    Attributes:
        path: The file.
        problem: What is wrong, and what is expected.
        line: Where, from 1; `None` if no line is to blame.
    """

    def __init__(self, path: str, problem: str, line: int | None = None) -> None:
        super().__init__(path, problem, line)
        self.path, self.problem, self.line = path, problem, line

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
        problem = f"is a number of seconds {least}, and at most {MAX_SECONDS:.0e}; got {shown(value)}"
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
        raise FaultDefinitionError(fault, field, f"is a whole number from 1 to {most:,}; got {shown(value)}")


def check_probability(fault: str, value: object) -> None:
    """Refuse what is no probability.

    Args:
        fault: How the error names the fault, or the rule for it.
        value: What was given.

    Raises:
        FaultDefinitionError: If it is no number from 0 to 1.
    """
    if not _number(value) or not 0 <= value <= 1:
        raise FaultDefinitionError(fault, "probability", f"is a number from 0 to 1; got {shown(value)}")


def _number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
