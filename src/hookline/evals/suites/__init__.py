"""Suites of tasks: AgentDojo's, and your own in one YAML or Python file.

Each name is imported from its home when it is first used: the errors of `hookline.evals` have some of theirs here.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookline.evals.suites import checks
    from hookline.evals.suites._errors import CassetteFolderError, RunFileError, SuiteFileError, ToolNameError
    from hookline.evals.suites._protocol import RunsTasks, Suite
    from hookline.evals.suites.checks import Check, FinishedTask
    from hookline.evals.suites.expected import Expected
    from hookline.evals.suites.files import find_suites, load_suite_file
    from hookline.evals.suites.user import Task, UserSuite, asks, says

__all__ = [
    "CassetteFolderError",
    "Check",
    "Expected",
    "FinishedTask",
    "RunFileError",
    "RunsTasks",
    "Suite",
    "SuiteFileError",
    "Task",
    "ToolNameError",
    "UserSuite",
    "asks",
    "checks",
    "find_suites",
    "load_suite_file",
    "says",
]

_HOMES = {
    "_errors": ("CassetteFolderError", "RunFileError", "SuiteFileError", "ToolNameError"),
    "_protocol": ("RunsTasks", "Suite"),
    "checks": ("Check", "FinishedTask"),
    "expected": ("Expected",),
    "files": ("find_suites", "load_suite_file"),
    "user": ("Task", "UserSuite", "asks", "says"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "checks":
        return importlib.import_module(f"{__name__}.checks")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
