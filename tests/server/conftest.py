"""The API on loopback, on each database in turn: a real server in a thread of its own, and real clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from hookline.store import SqlStore
from tests.databases import *  # noqa: F403
from tests.server.site import Site


@pytest.fixture
def site(database_url: str) -> Iterator[Site]:
    """A server on an empty database."""
    with Site(database_url) as site:
        yield site


@pytest.fixture
def sqlite_site(new_database_url: Callable[[str], str]) -> Iterator[Site]:
    """The same, on SQLite alone: for what has nothing to do with the database."""
    with Site(new_database_url("sqlite")) as site:
        yield site


@pytest.fixture
async def store(site: Site) -> AsyncIterator[SqlStore]:
    """The database of the server, opened once more, as another process would."""
    async with SqlStore(site.url) as store:
        yield store
