"""The address of a store: what it may be, and that its password is never told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hookline.errors import HooklineError, HookUsageError, StoreUnavailableError
from hookline.store import SqlStore
from hookline.store._database import parse_address
from tests.tables import for_each

from .records import state

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("given", "driver", "name"),
    [
        ("sqlite:///a/b.db", "sqlite+aiosqlite:///a/b.db", "sqlite:///a/b.db"),
        ("sqlite:////a/b.db", "sqlite+aiosqlite:////a/b.db", "sqlite:////a/b.db"),
        ("sqlite+aiosqlite:///b.db", "sqlite+aiosqlite:///b.db", "sqlite:///b.db"),
        ("postgresql://u@h/d", "postgresql+asyncpg://u@h/d", "postgresql://u@h/d"),
        ("postgres://u:p@h:1/d", "postgresql+asyncpg://u:p@h:1/d", "postgresql://u@h:1/d"),
        ("postgresql+asyncpg://u:p@h/d", "postgresql+asyncpg://u:p@h/d", "postgresql://u@h/d"),
        (
            "postgresql://u:p@/d?host=/run/pg",
            "postgresql+asyncpg://u:p@/d?host=%2Frun%2Fpg",
            "postgresql://u@/d?host=%2Frun%2Fpg",
        ),
    ],
)
def test_an_address_is_turned_into_that_of_the_async_driver(given: str, driver: str, name: str) -> None:
    address = parse_address(given)

    assert address.url.render_as_string(hide_password=False) == driver
    assert address.name == name


@pytest.mark.parametrize("given", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_memory_has_a_name_of_its_own_in_each_store(given: str) -> None:
    assert parse_address(given).name == "sqlite:///:memory:"
    assert parse_address(given).url != parse_address(given).url


def test_options_of_libpq_are_handed_to_the_driver() -> None:
    address = parse_address("postgresql://u:p@h/d?sslmode=require&application_name=hookline")

    assert address.arguments == {"ssl": "require", "server_settings": {"application_name": "hookline"}}
    assert not address.url.query


@pytest.mark.parametrize(
    "given",
    [
        "",
        "hush",
        "hush://u:hush@h/d",
        "mysql://u:hush@h/d",
        "postgresql://u:hush@h:port/d",
        "postgresql://u:hu@sh:hush/x@h/d",
        "postgresql://u@h/d?password=hush",
        "sqlite:///x.db?hush=1",
        "sqlite://hush/x.db",
        "sqlite:///hush\0.db",
        7,
        None,
    ],
)
def test_an_address_that_cannot_be_read_is_refused_without_being_shown(given: str) -> None:
    with pytest.raises(HookUsageError) as caught:
        SqlStore(given)

    assert "hush" not in str(caught.value).replace("'hush', which", "").replace("['hush']", "")
    assert caught.value.__cause__ is None


@for_each(
    "options",
    [
        {"lease_seconds": 0},
        {"lease_seconds": "30"},
        {"retry_seconds": float("inf")},
        {"retry_seconds": float("nan")},
        {"retry_seconds": True},
        {"max_pending": 0},
        {"max_pending": 1.5},
        {"pool_size": 0},
        {"durability": "none"},
        {"overflow": "drop"},
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(options: dict[str, object]) -> None:
    with pytest.raises(HookUsageError, match=f"`{next(iter(options))}`"):
        SqlStore("sqlite://", **options)  # type: ignore[arg-type]


async def test_a_server_that_is_not_there_is_named_without_its_password(caplog: pytest.LogCaptureFixture) -> None:
    store = SqlStore("postgresql://user:hush@127.0.0.1:1/there", retry_seconds=0.2)

    with pytest.raises(StoreUnavailableError) as caught:
        await store.__aenter__()

    told: BaseException | None = caught.value
    while told is not None:
        assert "hush" not in repr(told) + str(told)
        told = told.__cause__ or told.__context__
    assert "postgresql://user@127.0.0.1:1/there" in str(caught.value)
    assert "hush" not in repr(store) + caplog.text


async def test_a_folder_that_is_not_there_is_told_of(tmp_path: object) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/nowhere/store.db", retry_seconds=0.2)

    with pytest.raises(StoreUnavailableError, match="check that its folder exists"):
        await store.__aenter__()


async def test_a_file_that_a_store_makes_is_its_owner_s_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with SqlStore(f"sqlite:///{tmp_path}/new.db") as store:
            await store.save(state(), expected_version=None)

            modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"new.db": 0o600, "new.db-wal": 0o600, "new.db-shm": 0o600}


async def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "shared.db"
    file.touch()
    file.chmod(0o660)

    async with SqlStore(f"sqlite:///{file}"):
        assert file.stat().st_mode & 0o777 == 0o660


async def test_a_file_that_is_no_database_is_left_alone(tmp_path: object) -> None:
    with open(f"{tmp_path}/notes.txt", "w") as file:
        file.write("Not a database. " * 1000)
    store = SqlStore(f"sqlite:///{tmp_path}/notes.txt", retry_seconds=0.2)

    with pytest.raises(StoreUnavailableError, match="not an SQLite database"):
        await store.__aenter__()

    with open(f"{tmp_path}/notes.txt") as file:
        assert file.read() == "Not a database. " * 1000


async def test_a_store_is_used_while_it_is_open_and_no_longer(database_url: str) -> None:
    store = SqlStore(database_url)
    with pytest.raises(HookUsageError, match="async with"):
        await store.load("op")

    async with store:
        assert await store.load("op") is None
        await store.check()

    with pytest.raises(StoreUnavailableError, match="closed"):
        await store.load("op")
    with pytest.raises(HooklineError, match="already opened"):
        await store.__aenter__()
    await store.aclose()
