"""`hookline doctor`: check the installation and the store, and say what to fix."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import platform
import re
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from hookline.cli._exit_codes import FAILED
from hookline.cli._terminal import make_copyable, make_one_line, print_json_lines
from hookline.cli.errors import StoreMissingError
from hookline.cli.operate._endpoints import MasterKeyFile
from hookline.cli.operate._store import (
    DEFAULT_STORE,
    RETRY_SECONDS,
    AsJson,
    StoreUrl,
    check_store,
    read_pages,
    report_errors_only,
    silence_logger,
)
from hookline.errors import HooklineError, MissingExtraError, install_command

if TYPE_CHECKING:
    from hookline.server import ApiKey
    from hookline.store import SqlStore, StoreInspection

__all__ = ["doctor"]

EXPIRES_SOON = 7 * 86400.0
"""Seconds before its end from which a key is said to expire soon."""
CLOCK_SECONDS = 2.0
"""Seconds by which two clocks may differ: leases and retries are a matter of seconds."""
MARKS = {"ok": ("✓", "green"), "note": ("·", "dim"), "fix": ("✗", "bold red")}

State = Literal["ok", "note", "fix"]


class Check(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of one check.

    Attributes:
        subject: What was checked.
        state: `"ok"`, `"note"` for what may be as it is, `"fix"` for what should be changed.
        found: The state that was found, as a sentence or a list.
        fix: How to change it.
    """

    subject: str
    state: State
    found: str
    fix: str = ""


def doctor(store: StoreUrl = DEFAULT_STORE, master_key_file: MasterKeyFile = None, as_json: AsJson = False) -> None:
    """Check the installation and the store, and say what to fix.

    Nothing is created or migrated. Exits with 1 if there is something to fix.
    """
    with report_errors_only(), silence_logger():
        checks = [check_installation(), *check_extras(), *asyncio.run(_check_store(store, master_key_file))]
    if as_json:
        print_json_lines(checks)
    else:
        _print_checks(checks)
    if any(check.state == "fix" for check in checks):
        raise typer.Exit(FAILED)


def check_installation() -> Check:
    """Name the versions of hookline and Python, and where hookline was installed from."""
    installed = importlib.metadata.distribution("hookline")
    origin = json.loads(installed.read_text("direct_url.json") or "{}").get("url", "a package index")
    found = f"{installed.version}, installed from {origin}, on Python {platform.python_version()}"
    return Check(subject="hookline", state="ok", found=found)


def check_extras() -> Iterator[Check]:
    """Say which extras are installed, and how to install the others."""
    installed = importlib.metadata.distribution("hookline")
    present: list[str] = []
    missing: list[str] = []
    for extra in sorted(installed.metadata.get_all("Provides-Extra") or ()):
        (missing if any(not is_installed(name) for name in find_requirements(extra)) else present).append(extra)
    yield Check(subject="extras", state="ok", found=", ".join(present) or "none")
    if missing:
        fix = f"If you need one: {install_command(missing[0])}"
        yield Check(subject="extras", state="note", found=f"not installed: {', '.join(missing)}", fix=fix)


def find_requirements(extra: str) -> Iterator[str]:
    """Find the names of the packages that an extra installs on this platform."""
    for line in importlib.metadata.requires("hookline") or ():
        name, _, marker = line.partition(";")
        named = re.search(r"""extra\s*==\s*["']([^"']+)["']""", marker)
        if named and named[1] == extra and not (sys.platform == "win32" and "sys_platform" in marker):
            match = re.match(r"[\w.-]+", name)
            assert match is not None
            yield match[0]


def is_installed(package: str) -> bool:
    """Return whether a package is installed."""
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


async def _check_store(url: str, master_key_file: Path | None) -> list[Check]:
    """Check the store, as far as it can be used."""
    try:
        from hookline.store import inspect_store, parse_address
    except MissingExtraError:
        state: State = "note" if url == DEFAULT_STORE else "fix"
        fix = install_command("server")
        return [Check(subject="store", state=state, found="it needs the extra server", fix=fix)]
    name = parse_address(url).name
    try:
        check_store(url, creates=False)
        found = await inspect_store(url, retry_seconds=RETRY_SECONDS)
        if found.schema == "missing":
            raise StoreMissingError(name)
    except StoreMissingError:
        if url == DEFAULT_STORE:
            text = f"there is none at {name}, the default"
            fix = "If your agents use a store, name it by --store or HOOKLINE_STORE."
            return [Check(subject="store", state="note", found=text, fix=fix)]
        fix = "Name the store of your agents by --store or HOOKLINE_STORE; `hookline serve` creates a new one."
        return [Check(subject="store", state="fix", found=f"there is no store {name}", fix=fix)]
    except HooklineError as error:
        return [_store_failure(error)]
    return [check async for check in _check_found_store(url, name, found, master_key_file)]


async def _check_found_store(
    url: str, name: str, found: StoreInspection, master_key_file: Path | None
) -> AsyncIterator[Check]:
    from hookline.store import SqlStore

    reached = f"{name} can be reached; its tables are of version {found.revision}"
    if found.schema != "current":
        fix = (
            "A newer version of hookline has migrated it: update hookline here."
            if found.schema == "newer"
            else "Back it up: the next command or process that opens it migrates it."
        )
        yield Check(subject="store", state="fix", found=reached, fix=fix)
        return
    yield _check_clock(found.clock_ahead_seconds)
    yield _check_leases(found)
    try:
        # To open it renews a lease, which shows that it can be written.
        async with SqlStore(url, retry_seconds=RETRY_SECONDS) as store:
            yield Check(subject="store", state="ok", found=f"{reached}, and it can be written")
            yield await _check_keys(store)
            yield await _check_master_key(store, url, master_key_file)
    except HooklineError as error:
        yield _store_failure(error)


def _check_clock(ahead: float) -> Check:
    which = "ahead of" if ahead > 0 else "behind"
    if abs(ahead) <= CLOCK_SECONDS:
        return Check(subject="clock", state="ok", found="this machine and the database agree")
    found = f"the clock of the database is {abs(ahead):,.0f} s {which} this machine's"
    return Check(subject="clock", state="fix", found=found, fix="Synchronize both with a time server (NTP).")


def _check_leases(found: StoreInspection) -> Check:
    processes = f"{found.processes:,} {'process has' if found.processes == 1 else 'processes have'} the store open"
    if not found.orphans:
        return Check(subject="leases", state="ok", found=processes)
    orphans = (
        f"{found.orphans:,} {'operation is' if found.orphans == 1 else 'operations are'} running without a process"
    )
    fix = "Start a Worker, or `hookline serve --agent`, that has the agent: it finishes them."
    return Check(subject="leases", state="fix", found=f"{processes}; {orphans}", fix=fix)


async def _check_keys(store: SqlStore) -> Check:
    from hookline.server import KeyStore

    now = await store.now()
    keys: Sequence[ApiKey] = (await read_pages(partial(KeyStore(store).page, None), sys.maxsize))[0]
    active = [key for key in keys if key.revoked_at is None and (key.expires_at is None or key.expires_at > now)]
    ending = [key for key in active if key.expires_at is not None and key.expires_at < now + EXPIRES_SOON]
    if not keys:
        return Check(
            subject="keys", state="note", found="there are none", fix="`hookline serve` creates the first one."
        )
    if not active:
        fix = 'Create one: hookline keys create "admin" --scope hooks:admin'
        return Check(subject="keys", state="fix", found="all keys are expired or revoked", fix=fix)
    if ending:
        names = ", ".join(f"{make_one_line(key.name)} ({key.id})" for key in ending)
        fix = "Create new ones: hookline keys create --help"
        return Check(subject="keys", state="fix", found=f"expire within 7 days: {names}", fix=fix)
    return Check(subject="keys", state="ok", found=f"{len(active):,} active")


async def _check_master_key(store: SqlStore, url: str, file: Path | None) -> Check:
    """Check that the master key is there, and that it is the database's."""
    from hookline.delivery import EndpointSecrets, KeyRing, MasterKeyError, MasterKeys
    from hookline.server import default_key_file

    try:
        master = None if file is not None else MasterKeys.from_environment()
        if await EndpointSecrets(store, None, environment=KeyRing()).is_fresh():
            beside = default_key_file(url) if master is None and url.startswith("sqlite") else None
            return _check_unused_key(file or beside)
        if master is None:
            place = file or default_key_file(url)
            assert place is not None  # a store in memory was refused
            master = MasterKeys.from_file(place)
        await EndpointSecrets(store, master, environment=KeyRing()).open()
    except MasterKeyError as error:
        fix = "Put the file back, or set HOOKLINE_MASTER_KEY, as for the server that uses this store."
        return Check(subject="master key", state="fix", found=str(error).rstrip("."), fix=fix)
    return Check(subject="master key", state="ok", found="it is the one of the store")


def _check_unused_key(file: Path | None) -> Check:
    """Check a master key with which nothing has been signed: none is needed yet, but a broken one stops the server."""
    from hookline.delivery import MasterKeyError, MasterKeys

    if file is not None and file.exists():
        try:
            MasterKeys.from_file(file)
        except MasterKeyError as error:
            fix = "Nothing has been signed with it: delete the file, and `hookline serve` creates a new key."
            return Check(subject="master key", state="fix", found=str(error).partition(";")[0], fix=fix)
    return Check(subject="master key", state="ok", found="none is needed yet: nothing has been signed")


def _store_failure(error: HooklineError) -> Check:
    found, _, fix = str(error).partition(". ")
    fix = fix or "Start the database, or name another store by --store or HOOKLINE_STORE."
    return Check(subject="store", state="fix", found=found.rstrip("."), fix=fix)


def _print_checks(checks: list[Check]) -> None:
    console = Console(highlight=False)
    for check in checks:
        mark, style = MARKS[check.state]
        line = Text.assemble((mark, style), f" {check.subject}: {make_copyable(check.found)}")
        console.print(line, soft_wrap=True)
        if check.fix:
            console.print(Text(f"  {make_copyable(check.fix)}", style="dim"), soft_wrap=True)
    count = sum(check.state == "fix" for check in checks)
    things = "1 thing" if count == 1 else f"{count} things"
    console.print(f"\n{things} to fix." if count else "\nAll is well.")
