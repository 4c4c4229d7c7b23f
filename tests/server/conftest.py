"""The API on loopback, on each database in turn: a real server in a thread of its own, and real clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from jinja2 import FileSystemBytecodeCache

from hookline.server.page._templates import page_environment
from hookline.store import SqlStore
from tests.databases import *  # noqa: F403
from tests.databases import DIALECTS, new_postgresql
from tests.server.site import Site


@pytest.fixture(scope="session", autouse=True)
def compiled_templates(tmp_path_factory: pytest.TempPathFactory) -> None:
    """All processes of a run share the compiled templates of the page, as to compile them takes half a second.

    No other run has them: compiled templates also depend on the environment, which Jinja does not notice.
    """
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if own.name.startswith("popen-") else own) / "templates"
    folder.mkdir(exist_ok=True)
    page_environment().bytecode_cache = FileSystemBytecodeCache(str(folder))


@pytest.fixture
def site(request: pytest.FixtureRequest, dialect: str, new_database_url: Callable[[str], str]) -> Iterator[Site]:
    """A server on an empty database; on one of the whole module for tests that are marked with `on_lasting_site`."""
    if getattr(request, "param", None) == "lasting":
        yield request.getfixturevalue("lasting_site" if dialect == "sqlite" else "lasting_postgresql_site")
        return
    with Site(new_database_url(dialect)) as site:
        yield site


@pytest.fixture
def sqlite_site(new_database_url: Callable[[str], str]) -> Iterator[Site]:
    """The same, on SQLite alone: for what has nothing to do with the database."""
    with Site(new_database_url("sqlite")) as site:
        yield site


@pytest.fixture(scope="module")
def lasting_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The same for a whole module: for tests that mind nothing of what others have left there."""
    with Site(f"sqlite:///{tmp_path_factory.mktemp('lasting') / 'store.db'}") as site:
        yield site


@pytest.fixture(scope="module")
def lasting_postgresql_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """The same, on PostgreSQL."""
    with Site(new_postgresql(request)) as site:
        yield site


@pytest.fixture(scope="module", params=DIALECTS)
def each_lasting_site(request: pytest.FixtureRequest) -> Site:
    """The same, on each database in turn."""
    found: Site = request.getfixturevalue("lasting_site" if request.param == "sqlite" else "lasting_postgresql_site")
    return found


@pytest.fixture
async def store(site: Site) -> AsyncIterator[SqlStore]:
    """The database of the server, opened once more, as another process would."""
    async with SqlStore(site.url) as store:
        yield store
