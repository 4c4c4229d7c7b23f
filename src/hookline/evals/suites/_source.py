"""`SuiteSource`: the folder of a suite's file, the objects that it imports, and its defaults for judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hookline._yaml import BadLine
from hookline.errors import AgentDefinitionError, HooklineError, MissingExtraError
from hookline.evals.suites._imports import ImportProblem, import_object
from hookline.runtime import model_by_name

__all__ = ["SuiteSource"]


class SuiteSource:
    """The folder and the defaults of a suite's file, for all of its parts.

    Args:
        folder: The folder of the file, in which import paths begin, and the names of other files.

    Attributes:
        judge: Arguments of judges that do not have them themselves.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.judge: dict[str, Any] = {}
        self._imported: dict[str, Any] = {}

    def load(self, line: int, key: str, path: Any) -> Any:
        """Return the object at an import path, such as `package.module:name`.

        Args:
            line: The line of the path.
            key: The field that has it, for errors; empty for none.
            path: The import path.

        Raises:
            BadLine: If there is no such object.
        """
        try:
            return self._import(path)
        except ImportProblem as error:
            raise BadLine(line, f"`{key}`: {error}" if key else str(error)) from error.__cause__

    def model(self, line: int, key: str, name: Any) -> Any:
        """Return a model, or a function that makes one.

        Args:
            line: The line of the name.
            key: The field that has it, for errors.
            name: An import path, or the name of a model such as `openai:gpt-5`. A module beside the suite's file wins.

        Raises:
            BadLine: If there is neither such an object nor such a model.
        """
        found = self._find_model(line, key, name)
        if not hasattr(found, "respond") and not callable(found):
            raise BadLine(line, f"`{key}`: {name!r} is neither a model nor a function that makes one")
        return found

    def _find_model(self, line: int, key: str, name: Any) -> Any:
        if not isinstance(name, str) or name in self._imported or self._is_local(name):
            return self.load(line, key, name)
        try:
            return model_by_name(name, f"`{key}`")
        except (AgentDefinitionError, MissingExtraError):
            pass  # it is no name of a model here, and may be an import path
        except HooklineError as error:
            raise BadLine(line, f"`{key}`: {str(error).rstrip('.')}") from error
        try:
            return self._import(name)
        except ImportProblem as error:
            hint = "; the name of a model, such as openai:gpt-5, needs the extra `models`"
            raise BadLine(line, f"`{key}`: {error}{hint}") from error.__cause__

    def _import(self, path: Any) -> Any:
        found = self._imported.get(path) if isinstance(path, str) else None
        if found is None:
            found = import_object(path, self.folder)
            self._imported[path] = found
        return found

    def _is_local(self, name: str) -> bool:
        module = name.partition(":")[0].partition(".")[0]
        return (self.folder / f"{module}.py").exists() or (self.folder / module / "__init__.py").exists()
