"""`serve` in a process of its own: one command, one key, and a clean end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select

from hookline.errors import HookUsageError
from hookline.server import Server, create_app
from hookline.store import SqlStore
from hookline.store._tables import workers
from tests.programs import Program, run_program
from tests.server.site import PLAIN, Site, operation
from tests.server.test_hooks import DENY
from tests.server.test_page_guards import visitor
from tests.signals import default_signals

pytestmark = pytest.mark.anyio

PROGRAM = """
import sys
from hookline.server import Server, serve
serve(lambda: Server(sys.argv[1], port=0, page=False))
"""
SERVING = "tests.server.serving"
SECRET = b"a key that only the tests have, 32 bytes"


class Served:
    """A server in a process of its own.

    Args:
        program: The process.
        errors: What it has written to its standard error.
    """

    def __init__(self, program: Program, errors: Path) -> None:
        self.program, self.errors = program, errors
        self.key = self.address = ""

    async def listening(self) -> None:
        while not self.address:
            line = await self.program.read_line()
            assert line, "it has ended before it listened: " + self.errors.read_text()
            if "hk_" in line:
                self.key = line.rpartition(" ")[2]
            if "listens on" in line:
                self.address = line.rpartition(" ")[2]

    async def end(self, number: signal.Signals) -> tuple[int, str]:
        """Send it a signal; gives its exit code, and what else it has said."""
        os.kill(self.program.pid, number)
        async with asyncio.timeout(100):
            return await self.program.wait(), await self.program.read_line() + self.errors.read_text()


@asynccontextmanager
async def served(url: str) -> AsyncIterator[Served]:
    errors = Path(f"{url.removeprefix('sqlite:///')}.errors")
    async with run_program(SERVING, url, errors) as program:
        found = Served(program, errors)
        await found.listening()
        yield found


async def test_a_command_of_its_own_serves_and_says_no_more_than_its_key_and_its_address(
    new_database_url: Callable[[str], str],
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", PROGRAM, new_database_url("sqlite")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        preexec_fn=default_signals,
        env={**os.environ, "PYTHONDEVMODE": ""},
    )
    assert process.stdout is not None
    async with asyncio.timeout(100):
        lines = [(await process.stdout.readline()).decode()]
        while "listens on" not in lines[-1]:
            assert lines[-1]
            lines.append((await process.stdout.readline()).decode())
        process.terminate()
        rest, code = await process.stdout.read(), await process.wait()

    assert (code, rest) == (0, b"")
    assert "hk_" in "".join(lines)


def client_of(server: Served, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.address, headers={"authorization": f"Bearer {key}"}, verify=PLAIN)


async def test_one_command_serves_and_shows_the_first_key_once(new_database_url: Callable[[str], str]) -> None:
    url = new_database_url("sqlite")
    async with served(url) as server:
        key = server.key
        async with client_of(server, key) as client:
            made = await client.post("/v1/hooks", json=DENY)
        terminated = await server.end(signal.SIGTERM)
    async with served(url) as again:
        async with client_of(again, key) as client:
            listed = await client.get("/v1/hooks")
        interrupted = await again.end(signal.SIGINT)

    assert (made.status_code, terminated, interrupted) == (201, (0, ""), (0, ""))
    assert again.key == ""
    assert [each["id"] for each in listed.json()["items"]] == [made.json()["id"]]


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
async def test_a_signal_ends_it_cleanly_from_its_first_word_on(
    new_database_url: Callable[[str], str], tmp_path: Path, number: str
) -> None:
    errors = tmp_path / "errors"
    async with run_program(SERVING, new_database_url("sqlite"), errors, number) as program:
        said = ""
        while line := await program.read_line():
            said += line
        code = await program.wait()

    assert (code, errors.read_text()) == (0, "")
    assert ["hk_" in said, "listens on" in said] == [True, True]


async def test_an_end_gives_the_lease_up_also_while_somebody_listens(new_database_url: Callable[[str], str]) -> None:
    url = new_database_url("sqlite")
    async with SqlStore(url) as store:
        id = await operation(store)  # noqa: A001
        address = f"/v1/operations/{id}/stream"
        async with (
            served(url) as server,
            client_of(server, server.key) as client,
            client.stream("GET", address) as answer,
        ):
            lines = answer.aiter_lines()
            await anext(lines)
            code, said = await server.end(signal.SIGTERM)
            assert [line async for line in lines]
        async with store.reading() as connection:
            alive = (await connection.execute(select(workers.c.worker_id))).scalars().all()

    assert (code, said) == (0, "")
    assert alive == [store.worker_id]


async def test_a_killed_server_loses_nothing_that_it_has_confirmed(new_database_url: Callable[[str], str]) -> None:
    url = new_database_url("sqlite")
    async with served(url) as server, client_of(server, server.key) as client:
        key, confirmed = server.key, []

        async def make(number: int) -> None:
            answer = await client.post("/v1/hooks", json={**DENY, "name": f"hook {number}"})
            assert answer.status_code == 201
            confirmed.append(answer.json()["id"])

        async def make_many() -> None:
            for number in range(10_000):
                await make(number)

        making = asyncio.create_task(make_many())
        async with asyncio.timeout(100):
            while len(confirmed) < 20:
                await asyncio.sleep(0.005)
        await server.end(signal.SIGKILL)
        with pytest.raises(httpx.HTTPError):
            await making
    async with served(url) as again, client_of(again, key) as client:
        kept = {each["id"] for each in (await client.get("/v1/hooks?limit=1000")).json()["items"]}

    assert set(confirmed) <= kept
    assert len(kept) <= len(confirmed) + 1


async def test_a_port_that_is_taken_is_told(new_database_url: Callable[[str], str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = f"^Cannot listen on 127.0.0.1:{port}: Address already in use. Choose another host or port;"
        with pytest.raises(HookUsageError, match=told):
            async with Server(new_database_url("sqlite"), port=port, page=False):
                pass


async def test_what_was_opened_is_closed_when_a_part_cannot_be(new_database_url: Callable[[str], str]) -> None:
    server = Server(f"{new_database_url('sqlite')}/no/such/folder", port=0, page=False)

    with pytest.raises(OSError, match="cannot be used"):
        async with server:
            pass

    assert server.address == ""


def is_signed_in(site: Site, cookies: dict[str, str]) -> bool:
    answer = httpx.get(f"{site.address}/page/operations", cookies=cookies, timeout=20, verify=PLAIN)
    assert answer.status_code in (200, 303)
    return answer.status_code == 200


def test_processes_with_one_session_key_know_the_same_people(
    new_database_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_database_url("sqlite")
    with Site(url, page=True, session_key=SECRET) as first:
        with visitor(first) as client:
            cookies = dict(client.cookies)
        monkeypatch.setenv("HOOKLINE_SESSION_KEY", SECRET.decode())
        with Site(url, page=True) as second, Site(url, page=True, session_key=SECRET[::-1]) as third:
            found = [is_signed_in(each, cookies) for each in (first, second, third)]

    assert found == [True, True, False]


@pytest.mark.parametrize("bad", [b"", b"short", "x" * 40], ids=["empty", "short", "text"])
@pytest.mark.parametrize("page", [True, False], ids=["page", "no-page"])
def test_a_session_key_that_is_too_short_is_refused_at_once(
    new_database_url: Callable[[str], str], bad: bytes, page: bool
) -> None:
    with pytest.raises(HookUsageError, match=r"^`session_key` must have 32 random bytes or more"):
        Server(new_database_url("sqlite"), page=page, session_key=bad)
    with pytest.raises(HookUsageError, match=r"^`session_key` must have 32 random bytes or more"):
        create_app(SqlStore(new_database_url("sqlite")), page=page, session_key=bad)


def test_a_session_key_of_the_environment_that_is_too_short_is_told_by_its_name_alone(
    new_database_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKLINE_SESSION_KEY", "geheim")

    with pytest.raises(HookUsageError, match=r"^HOOKLINE_SESSION_KEY must have 32 random bytes") as caught:
        Server(new_database_url("sqlite"))

    assert "geheim" not in str(caught.value)
