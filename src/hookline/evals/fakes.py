"""Objects whose methods stand for tools, one for each operation."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, cast

from hookline.errors import HookUsageError

__all__ = ["Fake", "misfit"]

T = TypeVar("T")


class Fake(Generic[T]):
    """An object whose methods stand for tools, with a state of its own in each operation.

    Args:
        source: A class or function that makes one, or one whose copy each operation gets.
    """

    def __init__(self, source: Callable[[], T] | T) -> None:
        if isinstance(source, type) or _is_function(source):
            problem = misfit(cast("Callable[..., object]", source), {})
            if problem is not None:
                raise HookUsageError(
                    f"{source!r:.100} cannot make a fake without arguments: {problem}. Give a function that can."
                )
        self._source = source
        self._made: dict[str, T] = {}

    def __repr__(self) -> str:
        return f"Fake({self._source!r}, operations={len(self._made)})"

    def of(self, operation_id: str) -> T:
        """The object of one operation; made if it is the first to ask."""
        made = self._made.get(operation_id)
        if made is None:
            made = self._made[operation_id] = self._make()
        return made

    @property
    def only(self) -> T:
        """The object of the single operation that used it.

        Raises:
            HookUsageError: If none has, or several have.
        """
        if len(self._made) != 1:
            raise HookUsageError(f"{len(self._made)} operations used {self!r}; `of(operation_id)` gives the one's.")
        return next(iter(self._made.values()))

    def forget(self) -> None:
        """Drop every operation's object."""
        self._made.clear()

    def methods(self) -> list[str]:
        """Names of the public methods."""
        probe = self._source if isinstance(self._source, type) else self._make()
        names = [name for name in dir(probe) if not name.startswith("_") and _is_method(probe, name)]
        if not names:
            raise HookUsageError(f"{self._source!r:.100} has no public method that could stand for a tool.")
        return names

    def _make(self) -> T:
        source: Any = self._source
        made: T = source() if isinstance(source, type) or _is_function(source) else copy.deepcopy(source)
        return made


def misfit(function: Callable[..., object], args: Mapping[str, Any]) -> str | None:
    """Why a function cannot be called with these arguments; `None` where it can, or does not tell.

    Args:
        function: The function.
        args: The arguments, by name.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions in C do not tell
        return None
    try:
        signature.bind(**args)
    except TypeError as error:
        return str(error)
    return None


def _is_function(source: object) -> bool:
    return inspect.isroutine(source) or isinstance(source, functools.partial)


def _is_method(owner: object, name: str) -> bool:
    static = inspect.getattr_static(owner, name)
    if isinstance(static, property | functools.cached_property | type):
        return False  # reading a property may do or raise anything, and a class is no method
    return callable(getattr(owner, name))
