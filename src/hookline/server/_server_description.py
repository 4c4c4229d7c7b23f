"""Describe a server: its version and settings, its database, processes and files."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import version
from typing import Literal, TypeAlias

import msgspec

from hookline.bus import NatsBus
from hookline.server._callers import Caller
from hookline.server._parts import ServerParts
from hookline.server._settings import ServerSettings
from hookline.store import StoreProcess, read_revision_and_processes
from hookline.wakeups import FileWakeups, PollingWakeups, PostgresWakeups

__all__ = ["ServerDescription", "SystemDescription", "describe_server"]

WakeupKind: TypeAlias = Literal["postgresql", "nats", "file", "polling", "other"]


class SystemDescription(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The database, processes and files of a server, which only administrators of the system see.

    Attributes:
        store: The address of the database, without its password.
        schema_revision: The version of its tables.
        processes: The processes that have the database open.
        wakeups: How processes tell each other of changes.
        wakeups_work: Whether that works now; otherwise changes are seen a little later.
        has_master_key: Whether the server can use the signing secrets of endpoints.
        has_registry: Whether the server has a registry of hook definitions.
        files: Files and folders of hook definitions.
        problems: Why the definitions may be out of date.
        quota: Number of definitions that each tenant may store.
        log_retention_seconds: Seconds for which hook executions are kept; `None` if this server does not log them.
        open_streams: Number of open streams of this process.
    """

    store: str
    schema_revision: str
    processes: list[StoreProcess]
    wakeups: WakeupKind
    wakeups_work: bool
    has_master_key: bool
    has_registry: bool
    files: list[str]
    problems: list[str]
    quota: int
    log_retention_seconds: float | None
    open_streams: int


class ServerDescription(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The description of a server process.

    Attributes:
        version: The version of hookline.
        python: The version of Python.
        process: The id of the process as a worker.
        settings: What was configured.
        system: The database, processes and files; `None` for keys that do not see all tenants.
    """

    version: str
    python: str
    process: str
    settings: ServerSettings
    system: SystemDescription | None


async def describe_server(parts: ServerParts, caller: Caller) -> ServerDescription:
    """Describe the server process that answers.

    Args:
        parts: The parts of the server.
        caller: Who asks. Only a system key with the scope hooks:admin learns about the database and the files.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
    """
    return ServerDescription(
        version=_read_version(),
        python=platform.python_version(),
        process=parts.store.worker_id,
        settings=parts.settings,
        system=await _describe_system(parts) if caller.sees_all else None,
    )


@cache
def _read_version() -> str:
    """Return the version of hookline. To read its metadata takes as long as the rest of the description."""
    return version("hookline")


async def _describe_system(parts: ServerParts) -> SystemDescription:
    revision, processes = await read_revision_and_processes(parts.store)
    secrets = None if parts.outbox is None else parts.outbox.secrets
    registry, log = parts.known_registry, parts.known_log
    kind, works = _describe_wakeups(parts.store.wakeups)
    return SystemDescription(
        store=parts.store.name,
        schema_revision=revision,
        processes=processes,
        wakeups=kind,
        wakeups_work=works,
        has_master_key=secrets is not None and secrets.master is not None,
        has_registry=registry is not None,
        files=[] if registry is None else [str(path) for path in registry.files],
        problems=[] if registry is None else list(registry.problems),
        quota=0 if registry is None else registry.quota,
        log_retention_seconds=None if log is None else log.retention_seconds,
        open_streams=parts.streams.count,
    )


def _describe_wakeups(wakeups: object) -> tuple[WakeupKind, bool]:
    """Return how processes tell each other of changes, and whether it works now."""
    if isinstance(wakeups, PostgresWakeups):
        return "postgresql", wakeups.is_listening
    if isinstance(wakeups, NatsBus):
        return "nats", wakeups.is_connected
    if isinstance(wakeups, FileWakeups):
        return "file", True
    return "polling" if isinstance(wakeups, PollingWakeups) else "other", True
