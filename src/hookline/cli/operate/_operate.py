"""What the commands that look after a store have in common: options, the open store, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from hookline.cli._commands import told_in_one_line
from hookline.cli._exit_codes import interrupted_code
from hookline.cli.errors import NotAStoreError, StoreMissingError
from hookline.cli.operate._times import moment

if TYPE_CHECKING:
    from hookline.store import Page, SqlStore

__all__ = [
    "DEFAULT_STORE",
    "AsJson",
    "Files",
    "Limit",
    "ListsUnlessTold",
    "Modules",
    "Scripts",
    "Since",
    "StoreUrl",
    "Tenant",
    "Until",
    "actor",
    "check_point",
    "check_store",
    "collected",
    "ending",
    "find_modules",
    "known",
    "operate",
    "time_of",
]

T = TypeVar("T")

DEFAULT_STORE = "sqlite:///hookline.db"
SQLITE = b"SQLite format 3\0"
"""How the file of a database begins; an empty one is a database too."""
LONGEST_PAGE = 1000
"""What a store gives at a time at most."""
RETRY_SECONDS = 3.0
"""How long a database that cannot be reached is tried: a person waits."""

StoreUrl = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="HOOKLINE_STORE",
        help="sqlite:///FILE or postgresql://...; one with a password is better given by the environment.",
    ),
]
Tenant = Annotated[str | None, typer.Option(metavar="ID", help="Only what is this tenant's.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, an object a line, and nothing else, on stdout.")]
Limit = Annotated[int, typer.Option(min=1, metavar="N", help="How many at most.")]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="Not before: 30s, 10m, 2h or 7d ago, 2026-01-31T12:00, or seconds.")
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Only before that time.")]
Files = Annotated[
    list[Path] | None,
    typer.Option(metavar="PATH", exists=True, help="A file of hook definitions, or a folder of them; may be repeated."),
]
Scripts = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", exists=True, file_okay=False, envvar="HOOKLINE_SCRIPTS", help="The folder of script hooks."
    ),
]
Modules = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE",
        envvar="HOOKLINE_MODULES",
        help="A module whose functions may be handlers, of the current folder too; may be repeated.",
    ),
]


class ListsUnlessTold(TyperGroup):
    """A group of commands that is `list` where none of them is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `list` in front of options that are its own."""
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


def operate(url: str, work: Callable[[SqlStore], Awaitable[T]], *, creates: bool = False) -> T:
    """Open a store and do something with it. What goes wrong is told in one line; Ctrl-C ends it without a word.

    Args:
        url: Where the store is.
        work: What to do.
        creates: Whether a store that is not there is made.

    Returns:
        What came of it.

    Raises:
        typer.Exit: With 2 if it makes no sense or there is no store, with 1 if it was refused or failed.
    """
    with ending(), _silent():
        check_store(url, creates=creates)
        return asyncio.run(_opened(url, work))


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Tell what goes wrong in one line, and end at Ctrl-C without a word."""
    with told_in_one_line():
        try:
            yield
        except KeyboardInterrupt:
            raise typer.Exit(interrupted_code()) from None


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Leave it to the command to say what is the matter; whoever has set up logging still gets it all."""
    handler = logging.NullHandler()
    logging.getLogger("hookline").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("hookline").removeHandler(handler)


def check_store(url: str, *, creates: bool) -> None:
    """Refuse a path at which there is no store: looking into a file that is not there would make it.

    Args:
        url: Where the store is.
        creates: Whether a store that is not there is made.

    Raises:
        StoreMissingError: If there is none, or it is in a memory that nobody shares.
        NotAStoreError: If there is something else.
    """
    from hookline.store import parse_address

    address = parse_address(url)
    if address.dialect != "sqlite" and not address.in_memory:
        return
    file = None if address.in_memory else Path(address.url.database or "")
    if file is None or not os.path.exists(file):
        if not creates:
            raise StoreMissingError(address.name)
        return
    if not file.is_file():
        raise NotAStoreError(address.name)
    with contextlib.suppress(OSError), file.open("rb") as opened:  # the database says better why it cannot be read
        if opened.read(len(SQLITE)) not in (b"", SQLITE):
            raise NotAStoreError(address.name)


async def _opened(url: str, work: Callable[[SqlStore], Awaitable[T]]) -> T:
    from hookline.store import SqlStore

    async with SqlStore(url, retry_seconds=RETRY_SECONDS) as store:
        return await work(store)


async def collected(page: Callable[[str | None, int], Awaitable[Page[T]]], limit: int) -> tuple[Sequence[T], bool]:
    """The first entries of a long list, and whether there are more.

    Args:
        page: Gives a part of the list, for a cursor and a length.
        limit: How many at most.
    """
    found: list[T] = []
    cursor: str | None = None
    while True:
        part = await page(cursor, min(limit - len(found), LONGEST_PAGE))
        found += part.items
        cursor = part.cursor
        if cursor is None or len(found) >= limit:
            return found, cursor is not None


def time_of(option: str, text: str | None) -> float | None:
    """The time that an option gives.

    Raises:
        typer.BadParameter: If it gives none.
    """
    try:
        return None if text is None else moment(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from None


def known(option: str, word: str | None, words: Sequence[str]) -> str | None:
    """A word that an option gives, if it is one of those that there are.

    Raises:
        typer.BadParameter: If it is another one.
    """
    if word is not None and word not in words:
        raise typer.BadParameter(f"{word!r} is none of {', '.join(words)}.", param_hint=f"'{option}'")
    return word


def check_point(point: str | None, *, logged: bool = False) -> None:
    """Refuse a point that there is not.

    Args:
        point: The value of `--point`.
        logged: Whether it is one of the log, which does not say where beside a call a hook stood.

    Raises:
        typer.BadParameter: If it is none.
    """
    if point is None:
        return
    with ending():
        from hookline.registry import POINTS
    if point not in ((each.partition(".")[0] for each in POINTS) if logged else POINTS):
        known_one = "ToolCall" if logged else "ToolCall.guard"
        raise typer.BadParameter(f"{point!r} is no point, such as {known_one} or onComplete.", param_hint="'--point'")


def find_modules(modules: Sequence[str] | None) -> None:
    """Have the modules found that somebody has named, in the current folder too."""
    folder = str(Path.cwd())
    if modules and folder not in sys.path:
        sys.path.insert(0, folder)


def actor() -> str:
    """Return who uses the command, for the audit and for decisions: the account that runs it.

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
