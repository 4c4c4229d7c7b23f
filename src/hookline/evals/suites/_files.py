"""Find suites by name or file: `agentdojo:banking`, `agentdojo:all`, `suite.yaml`, `suite.py`."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from hookline.errors import HooklineError, message_of
from hookline.evals.errors import SuiteFileError, UnknownSuiteError
from hookline.evals.running import RunsTasks
from hookline.evals.suites import agentdojo
from hookline.evals.suites._yaml_file import read_yaml_suite

__all__ = ["find_suites", "load_suite_file"]

FAMILY = "agentdojo"

SUFFIXES = (".yaml", ".yml", ".py")


def find_suites(target: str) -> list[RunsTasks]:
    """Find the suites that a target names.

    Args:
        target: `agentdojo:SUITE`, `agentdojo:all` for its four, or the file of a suite of your own.

    Raises:
        UnknownSuiteError: If there is no such suite. The message lists the suites.
        SuiteFileError: If the file cannot be used.
        MissingExtraError: If a needed extra is not installed.
    """
    if target.endswith(SUFFIXES):
        return [load_suite_file(target)]
    family, _, name = target.partition(":")
    if family == FAMILY and name == "all":
        return [agentdojo.load_suite(each) for each in agentdojo.SUITES]
    if family == FAMILY and name in agentdojo.SUITES:
        return [agentdojo.load_suite(name)]
    raise UnknownSuiteError(
        target, [*(f"{FAMILY}:{each}" for each in (*agentdojo.SUITES, "all")), "FILE.yaml", "FILE.py"]
    )


def load_suite_file(path: str | Path) -> RunsTasks:
    """Load a suite of your own from its file.

    Args:
        path: A YAML file, or a Python file that has the suite as `suite`. Modules of its folder can be imported.

    Raises:
        SuiteFileError: If the file cannot be used; it says in which line.
        MissingExtraError: If the file is YAML and PyYAML is not installed.
    """
    file = Path(path)
    if not os.path.isfile(file):  # also false for a name that no file can have
        raise SuiteFileError(str(path), "there is no such file")
    if file.suffix != ".py":
        return read_yaml_suite(file)
    suite = getattr(_load_module(file), "suite", None)
    if suite is None:
        raise SuiteFileError(str(path), "it defines no `suite`; end it with `suite = UserSuite(...)`")
    missing = [name for name in ("name", "select", "run_task") if not hasattr(suite, name)]
    if missing or isinstance(suite, type):
        raise SuiteFileError(str(path), f"its `suite` is {suite!r:.100}, which is not a suite; give a UserSuite")
    found: RunsTasks = suite
    return found


def _load_module(file: Path) -> Any:
    folder = str(file.absolute().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(f"hookline_suite_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise SuiteFileError(str(file), "Python cannot load it")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # annotations and pickles look the module up here
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # `sys.exit(0)` in the file must not look like a run that passed
        del sys.modules[spec.name]
        said = message_of(error).rstrip(".") if isinstance(error, HooklineError) else f"{type(error).__name__}: {error}"
        raise SuiteFileError(str(file), f"running it fails: {said}", _line_in(file, error)) from error
    return module


def _line_in(file: Path, error: BaseException) -> int | None:
    """Return the line of the file in which an error was raised, if it was raised there."""
    if isinstance(error, SyntaxError):
        return error.lineno
    own = str(file)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    return lines[-1] if lines else None
