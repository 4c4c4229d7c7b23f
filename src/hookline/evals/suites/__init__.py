"""Suites of tasks: those of AgentDojo, and your own in one YAML or Python file.

Each name is imported from its home when it is first used: the errors of `hookline.evals` have some of theirs here.
"""

import importlib
from typing import TYPE_CHECKING

from hookline.evals.suites._imports import ImportProblem as ImportProblem
from hookline.evals.suites._imports import import_object as import_object

if TYPE_CHECKING:
    from hookline.evals.errors import CassetteFolderError, RunFileError, SuiteFileError, ToolNameError
    from hookline.evals.running import RunsTasks, Suite
    from hookline.evals.suites import checks
    from hookline.evals.suites._expected import Expected
    from hookline.evals.suites._files import find_suites, load_suite_file
    from hookline.evals.suites._user import Task, UserSuite, asks, says
    from hookline.evals.suites.checks import Check, FinishedTask

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
    "hookline.evals.errors": ("CassetteFolderError", "RunFileError", "SuiteFileError", "ToolNameError"),
    "hookline.evals.running": ("RunsTasks", "Suite"),
    "_expected": ("Expected",),
    "_files": ("find_suites", "load_suite_file"),
    "_user": ("Task", "UserSuite", "asks", "says"),
    "checks": ("Check", "FinishedTask", "checks"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "checks":
        return importlib.import_module(f"{__name__}.checks")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(home if home.startswith("hookline.") else f"{__name__}.{home}")
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
