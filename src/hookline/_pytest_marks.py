"""What the markers of the pytest plugin say about a test, and where its cassette is."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

__all__ = ["Mocking", "Tape", "cassette_path", "marked", "shown_path"]

T = TypeVar("T")

SUFFIXES = (".yaml", ".yml")
NAME_BYTES = 180
"""Longest file name of a test; file systems allow 255 bytes, and a cassette's neighbours have longer names."""
FORBIDDEN = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]+')
"""What some file system does not allow in a name."""


# No dataclasses in here: pytest loads this module for everybody, and making one takes longer than all the rest of it.


class Tape:
    """What `@pytest.mark.tool_cassette` takes."""

    def __init__(
        self,
        name_or_path: str | Path | None = None,
        *,
        mode: str | None = None,
        matching: str | None = None,
        ignore: Sequence[str] | None = None,
        allow_refused: bool = False,
        hookline_unused_ok: bool = False,
    ) -> None:
        self.allow_refused = _checked("allow_refused", allow_refused)
        self.unused_ok = _checked("hookline_unused_ok", hookline_unused_ok)
        given: object = name_or_path
        if given is not None and (not isinstance(given, str | Path) or Path(given).name in ("", "..")):
            raise TypeError(f"name_or_path is a name or a path; got {given!r}")
        self.name_or_path = name_or_path
        said = {"mode": mode, "matching": matching, "ignore": ignore}
        self.options: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
        """What it says about the cassette, other than where it is."""


class Mocking:
    """What `@pytest.mark.tool_mocks` takes."""

    def __init__(
        self,
        *,
        strict: bool | None = None,
        seed: int | None = None,
        allow_refused: bool = False,
        hookline_unused_ok: bool = False,
    ) -> None:
        self.allow_refused = _checked("allow_refused", allow_refused)
        self.unused_ok = _checked("hookline_unused_ok", hookline_unused_ok)
        if not isinstance(strict, bool | None):
            raise TypeError(f"strict is True or False; got {strict!r}")
        if not isinstance(seed, int | None) or isinstance(seed, bool):
            raise TypeError(f"seed is a whole number; got {seed!r}")
        self.strict = strict
        self.seed = seed


def _checked(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False; got {value!r}")
    return value


def marked(item: pytest.Item, name: str, kind: type[T]) -> T:
    """What the nearest marker of that name says; a `TypeError` if it says what it cannot say."""
    marker = item.get_closest_marker(name)
    try:
        return kind() if marker is None else kind(*marker.args, **marker.kwargs)
    except TypeError as error:
        said = str(error).replace(f"{kind.__name__}.__init__()", "it")
        raise TypeError(f"@pytest.mark.{name} of {item.nodeid} cannot be understood: {said}.") from error


def cassette_path(item: pytest.Item, tape: Tape) -> Path:
    """Where the cassette of a test is: `cassettes/<module>/<test>.yaml` beside the test file, unless it says else."""
    given, beside = tape.name_or_path, item.path.parent
    if given is not None and (isinstance(given, Path) or "/" in given or given.endswith(SUFFIXES)):
        path = beside / given
        return _absolute(path if path.suffix in SUFFIXES else path.with_name(f"{path.name}.yaml"))
    folder = Path(item.config.getini("hookline_cassette_dir"))
    beside = folder / os.path.relpath(beside, item.config.rootpath) if folder.is_absolute() else beside / folder
    return _absolute(beside / item.path.stem / f"{_file_name(given or _test_name(item))}.yaml")


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))


def _test_name(item: pytest.Item) -> str:
    function, bracket, parameters = item.nodeid.partition("::")[2].partition("[")
    return f"{function.replace('::', '.')}{bracket}{parameters}"


def _file_name(name: str) -> str:
    """A name that every file system takes, another one for every test."""
    clean = FORBIDDEN.sub("-", name).encode()[:NAME_BYTES].decode(errors="ignore").rstrip(". ")
    if clean == name:
        return name
    return f"{clean}-{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"


def shown_path(path: Path, root: Path) -> str:
    """A path as a person should read it: from the root of the tests if it is in there."""
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()
