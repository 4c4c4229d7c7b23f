"""The origin of a run: when it began, which versions and models it had, and the command that made it."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import msgspec

__all__ = ["Provenance"]


class Provenance(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """When, with what and by which command a run was made.

    Attributes:
        started_at: The start of the run in UTC, as ISO 8601 with seconds; `None` if it is unknown.
        versions: The versions of hookline, of Python and of the suites, by name.
        models: Names of the models, as far as the suites know them.
        made_by: The command line or the function call that made the run; `None` if it is unknown.
        saved_at: The time at which the run was saved, if it was loaded from a file.
    """

    started_at: str | None = None
    versions: dict[str, str] = {}
    models: list[str] = []
    made_by: str | None = None
    saved_at: str | None = None

    @classmethod
    def of(cls, suites: Iterable[object], made_by: str) -> Provenance:
        """Describe a run that starts now.

        Args:
            suites: Its suites. One may have `versions`, a mapping, and `models`, a list of names.
            made_by: The command line or the function call that makes the run.
        """
        versions = {"hookline": importlib.metadata.version("hookline"), "Python": platform.python_version()}
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
        )
