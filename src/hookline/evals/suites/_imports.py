"""Import objects by path (`package.module:name`), also from a folder that is not installed."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

from hookline.errors import message_of

__all__ = ["ImportProblem", "import_object", "import_target"]


class ImportProblem(Exception):
    """An object cannot be imported. The caller turns it into an error that names the place."""


def import_object(path: object, folder: Path) -> Any:
    """Import the object at an import path.

    Args:
        path: `package.module:name`, or `package.module:name.attribute`.
        folder: A folder whose modules can be imported, now and later.

    Raises:
        ImportProblem: If there is no such module or name, or importing it fails.
    """
    if not isinstance(path, str) or path.count(":") != 1 or not all(path.split(":")):
        raise ImportProblem(f"an import path is written package.module:name; got {path!r:.100}")
    module_name, _, name = path.partition(":")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    _check_origin(module_name.partition(".")[0], folder)
    importlib.invalidate_caches()
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if (error.name or "") and not module_name.startswith(error.name or ""):
            raise ImportProblem(f"importing {module_name!r} fails: {error}") from error
        raise ImportProblem(f"there is no module {module_name!r} in {folder} or among what is installed") from error
    except (Exception, SystemExit) as error:
        raise ImportProblem(f"importing {module_name!r} fails: {type(error).__name__}: {message_of(error)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ImportProblem(f"{module_name!r} has no {name!r}")
        found = getattr(found, part)
    return found


def import_target(target: str, default: str) -> Any:
    """Import the object at `package.module:name` or `folder/file.py:name`; the name may be left out.

    Args:
        target: The import path or the file. Modules are also looked for in the working directory.
        default: The name that is looked up if none is given.

    Raises:
        ImportProblem: If there is no such file, module or name, or importing it fails.
    """
    place, _, name = target.rpartition(":")
    if not place or not re.fullmatch(r"[\w.]+", name) or name.endswith(".py"):
        place, name = target, default
    folder, module = Path.cwd(), place
    if place.endswith(".py"):
        file = Path(place)
        if not file.is_file():
            raise ImportProblem(f"there is no file {place}")
        folder, module = file.absolute().parent, file.stem
    return import_object(f"{module}:{name}", folder)


def _check_origin(name: str, folder: Path) -> None:
    """Raise an error if another module of the same name is loaded already and would be used instead."""
    loaded = sys.modules.get(name)
    own = [file for file in (folder / f"{name}.py", folder / name / "__init__.py") if file.exists()]
    origin = getattr(loaded, "__file__", None)
    if loaded is not None and own and (origin is None or Path(origin).resolve() != own[0].resolve()):
        raise ImportProblem(f"{own[0]} is hidden by another module {name!r} that is loaded already; rename it")
