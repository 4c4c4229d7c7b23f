"""The origin of a run: when it began, its versions, models, seeds and commit, and the command that made it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache, lru_cache
from time import monotonic

import msgspec

__all__ = ["Provenance", "hookline_version"]

GIT_SECONDS = 5.0
"""Seconds that git has to name the commit."""
REMEMBERED_SECONDS = 5.0
"""Seconds for which the commit is not asked for again: programs make many short runs one after the other."""


@cache
def hookline_version() -> str:
    """Return the version of hookline that is installed. To look for it takes 1 ms, and each run says it twice."""
    return importlib.metadata.version("hookline")


class Provenance(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """When, with what and by which command a run was made.

    Attributes:
        started_at: The start of the run in UTC, as ISO 8601 with seconds; `None` if it is unknown.
        versions: The versions of hookline, of Python and of the suites, by name.
        models: Names of the models, as far as the suites know them.
        made_by: The command line or the function call that made the run; `None` if it is unknown.
        saved_at: The time at which the run was saved, if it was loaded from a file.
        seeds: The seeds of the run, by what they are for: `"faults"`, `"shuffle"`.
        commit: The commit of git in the working directory, with `-dirty` if files differ from it; `None` if there is no
            repository, or no git.
    """

    started_at: str | None = None
    versions: dict[str, str] = {}
    models: list[str] = []
    made_by: str | None = None
    saved_at: str | None = None
    seeds: dict[str, int] = {}
    commit: str | None = None

    @classmethod
    def of(cls, suites: Iterable[object], made_by: str, *, seeds: Mapping[str, int] | None = None) -> Provenance:
        """Describe a run that starts now.

        Args:
            suites: Its suites. One may have `versions`, a mapping, and `models`, a list of names.
            made_by: The command line or the function call that makes the run.
            seeds: The seeds of the run, by what they are for.
        """
        versions = {"hookline": hookline_version(), "Python": platform.python_version()}
        models: list[str] = []
        for suite in suites:
            named, used = getattr(suite, "versions", None), getattr(suite, "models", None)
            # A suite of somebody's own may use these names for something else.
            if isinstance(named, Mapping):
                versions |= {str(name): str(version) for name, version in named.items()}
            if isinstance(used, list | tuple):
                models += [name for name in used if isinstance(name, str)]
        return cls(
            started_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            versions=versions,
            models=list(dict.fromkeys(models)),
            made_by=made_by,
            seeds=dict(seeds or {}),
            commit=find_commit(),
        )

    @property
    def facts(self) -> dict[str, str]:
        """The known facts about the run as texts, by name, for reports in any form."""
        found = {
            "started": self.started_at or "",
            "command": self.made_by or "",
            "models": ", ".join(self.models),
            "seeds": ", ".join(f"{name} {seed}" for name, seed in self.seeds.items()),
            "versions": ", ".join(f"{name} {version}" for name, version in self.versions.items()),
            "commit": self.commit or "",
        }
        return {name: text for name, text in found.items() if text}


def find_commit() -> str | None:
    """Return the commit of git in the working directory, with `-dirty` if files differ from it."""
    try:
        return _ask_git(os.getcwd(), int(monotonic() / REMEMBERED_SECONDS))
    except OSError:  # the working directory is gone
        return None


@lru_cache(maxsize=8)
def _ask_git(folder: str, moment: int) -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=GIT_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
