"""Open the store that a command is for, and the options that all commands with a store share."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from hookline.cli._terminal import report_errors
from hookline.cli.errors import NotAStoreError, StoreMissingError, UnknownOperationError
from hookline.cli.operate._bus import bus_from_environment
from hookline.errors import OperationNotFoundError

if TYPE_CHECKING:
    from hookline.store import Page, SqlStore

__all__ = [
    "DEFAULT_STORE",
    "IN_MEMORY",
    "RETRY_SECONDS",
    "AsJson",
    "Fence",
    "Files",
    "Limit",
    "Modules",
    "Scripts",
    "Since",
    "StoreUrl",
    "Tenant",
    "Until",
    "actor",
    "check_point",
    "check_store",
    "check_word",
    "find_modules",
    "operate",
    "plan_on",
    "read_pages",
    "report_errors_only",
    "run_quietly",
    "silence_logger",
]

T = TypeVar("T")

DEFAULT_STORE = "sqlite:///hookline.db"
IN_MEMORY = "sqlite:///:memory:"
SQLITE = b"SQLite format 3\0"
"""How the file of a database begins; an empty one is a database too."""
LONGEST_PAGE = 1000
"""Entries that a store reads at a time, at most."""
RETRY_SECONDS = 3.0
"""How long to try a database that cannot be reached: a person waits."""

StoreUrl = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="HOOKLINE_STORE",
        help="The store: sqlite:///FILE or postgresql://HOST/DATABASE.",
    ),
]
Tenant = Annotated[str | None, typer.Option(metavar="ID", help="Only what belongs to this tenant.")]
Fence = Annotated[
    bool,
    typer.Option(
        "--fence",
        help="Also in running operations; wait until no process judges by the old revision. Needs processes with a "
        "lease.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, one object per line.")]
Limit = Annotated[int, typer.Option(min=1, metavar="N", help="Show this many at most.")]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="From this time on: 30s, 10m, 2h or 7d (ago), or 2026-01-31T12:00.")
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Before this time, written the same way.")]
Files = Annotated[
    list[Path] | None,
    typer.Option(metavar="PATH", exists=True, help="A file or folder of hook definitions; repeatable."),
]
Scripts = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        exists=True,
        file_okay=False,
        envvar="HOOKLINE_SCRIPTS",
        help="The folder that holds script hooks.",
    ),
]
Modules = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE",
        envvar="HOOKLINE_MODULES",
        help="A module whose functions definitions may name as handlers; repeatable.",
    ),
]


def operate(url: str, work: Callable[[SqlStore], Awaitable[T]], *, creates: bool = False) -> T:
    """Open a store, do something with it, and report errors in one line; Ctrl-C ends it without a word.

    Args:
        url: The address of the store.
        work: What to do with the open store.
        creates: Whether a store that is not there is made.

    Returns:
        The result of the work.

    Raises:
        typer.Exit: With 2 for wrong use or a store that is not there, with 1 if the work was refused or failed.
    """
    with report_errors_only(), silence_logger():
        if not check_store(url, creates=creates):
            asyncio.run(_work_on(IN_MEMORY, work))  # what is refused is refused here, and leaves no file behind
        return asyncio.run(_work_on(url, work, creates=creates))


def plan_on(url: str, work: Callable[[SqlStore], Awaitable[T]]) -> T:
    """Do something with a store that changes nothing, as `operate` does; one that is not there counts as empty.

    Args:
        url: The address of the store.
        work: What to do with the open store.
    """
    with report_errors_only(), silence_logger():
        return asyncio.run(_work_on(url if check_store(url, creates=True) else IN_MEMORY, work))


def run_quietly(work: Coroutine[Any, Any, T]) -> T:
    """Do something that needs no store, without log records on stderr."""
    with silence_logger():
        return asyncio.run(work)


def report_errors_only() -> AbstractContextManager[None]:
    """Report errors in one line, and end at Ctrl-C without a word."""
    return report_errors(interrupt="")


@contextlib.contextmanager
def silence_logger() -> Iterator[None]:
    """Keep log records from stderr, as the command reports errors itself; handlers that are set up still get them."""
    handler = logging.NullHandler()
    logging.getLogger("hookline").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("hookline").removeHandler(handler)


def check_store(url: str, *, creates: bool) -> bool:
    """Refuse a path without a store: to look into a file that is not there would make it.

    Args:
        url: The address of the store.
        creates: Whether a store that is not there is made.

    Returns:
        Whether the file of the store exists; for a store on a server, always true.

    Raises:
        StoreMissingError: If there is none, or it is in a memory that nobody shares.
        NotAStoreError: If the path leads to something else.
    """
    from hookline.store import parse_address

    address = parse_address(url)
    if address.dialect != "sqlite" and not address.in_memory:
        return True
    file = None if address.in_memory else Path(address.url.database or "")
    if file is None or not os.path.exists(file):
        if not creates:
            raise StoreMissingError(address.name)
        return False
    if not file.is_file():
        raise NotAStoreError(address.name)
    with contextlib.suppress(OSError), file.open("rb") as opened:  # the database says better why it cannot be read
        if opened.read(len(SQLITE)) not in (b"", SQLITE):
            raise NotAStoreError(address.name)
    return True


async def _work_on(url: str, work: Callable[[SqlStore], Awaitable[T]], *, creates: bool = True) -> T:
    from hookline.bus import BusUnavailableError
    from hookline.store import SqlStore, holds_store, parse_address

    if not creates and not await holds_store(url, retry_seconds=RETRY_SECONDS):
        raise StoreMissingError(parse_address(url).name)
    async with contextlib.AsyncExitStack() as stack:
        if (bus := bus_from_environment()) is not None:
            try:
                await stack.enter_async_context(bus)
            except BusUnavailableError as error:  # what is in the database counts; others see it a little later
                typer.echo(f"{error} Other processes notice what this command changes some seconds later.", err=True)
                bus = None
        store = await stack.enter_async_context(SqlStore(url, retry_seconds=RETRY_SECONDS, wakeups=bus))
        try:
            return await work(store)
        except OperationNotFoundError as error:
            raise UnknownOperationError(error.operation_id, store.name) from None


async def read_pages(page: Callable[..., Awaitable[Page[T]]], limit: int) -> tuple[Sequence[T], bool]:
    """Return the first entries of a long list, and whether there are more.

    Args:
        page: Reads a part of the list, called with `cursor` and `limit`.
        limit: How many entries at most.
    """
    found: list[T] = []
    cursor: str | None = None
    while True:
        part = await page(cursor=cursor, limit=min(limit - len(found), LONGEST_PAGE))
        found += part.items
        cursor = part.cursor
        if cursor is None or len(found) >= limit:
            return found, cursor is not None


def check_word(option: str, word: str | None, words: Sequence[str]) -> str | None:
    """Return the word that an option gives, if it is one of a list.

    Raises:
        typer.BadParameter: If it is another one.
    """
    if word is not None and word not in words:
        raise typer.BadParameter(f"{word!r} is not one of {', '.join(words)}.", param_hint=f"'{option}'")
    return word


def check_point(point: str | None, *, logged: bool = False) -> None:
    """Refuse a point that does not exist.

    Args:
        point: The value of `--point`.
        logged: Whether it is a point of the log, which has calls without the kind of hook: `ToolCall`.

    Raises:
        typer.BadParameter: If there is no such point.
    """
    if point is None:
        return
    with report_errors_only():
        from hookline.registry import POINTS
    if point not in ((each.partition(".")[0] for each in POINTS) if logged else POINTS):
        known_one = "ToolCall" if logged else "ToolCall.guard"
        raise typer.BadParameter(
            f"{point!r} is not a point, such as {known_one} or onComplete.", param_hint="'--point'"
        )


def find_modules(modules: Sequence[str] | None) -> None:
    """Let modules that were named on the command line be imported from the current folder too."""
    folder = str(Path.cwd())
    if modules and folder not in sys.path:
        sys.path.insert(0, folder)


def actor() -> str:
    """Return the account that runs the command, for the audit and for decisions.

    `LOGNAME` and `USER` do not count where the system itself knows the account: anybody may set them.
    """
    try:
        import pwd
    except ImportError:  # Windows
        with contextlib.suppress(KeyError, OSError):
            return f"cli:{getpass.getuser()}"
        return "cli"
    account = os.getuid()
    try:
        return f"cli:{pwd.getpwuid(account).pw_name}"
    except KeyError:  # an account without a name, as containers have them
        return f"cli:{account}"
