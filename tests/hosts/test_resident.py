"""The life of a resident process: it ends by itself when nobody can reach it, or nobody has asked it for long."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hookline.hosts import ResidentStatus, ask_status, stop_resident
from tests.hosts.in_process import LocalHost, until

pytestmark = pytest.mark.anyio

OFTEN = {"look_seconds": 0.02}


@pytest.fixture
def sockets() -> Iterator[str]:
    """A private folder whose path is short, as that of a socket must be."""
    found = tempfile.mkdtemp(prefix="hl-")
    yield found
    shutil.rmtree(found)


async def status_of(host: LocalHost) -> ResidentStatus | None:
    return await asyncio.to_thread(ask_status, host.installation, 20)


async def serve(host: LocalHost) -> asyncio.Task[None]:
    """Let a resident process listen, and return when it does."""
    serving = asyncio.create_task(host.resident.serve())
    await until(lambda: status_of(host))
    return serving


def socket_of(host: LocalHost) -> Path:
    return Path(host.installation.sockets, f"{host.installation.key}.sock")


async def test_a_process_whose_socket_is_gone_ends_at_its_next_look(folder: Path, sockets: str) -> None:
    async with LocalHost(folder, "codex", sockets=sockets, periods=OFTEN) as host:
        serving = await serve(host)
        await host.ask(*host.shell("echo hi"))

        socket_of(host).unlink()

        await asyncio.wait_for(serving, 20)
        assert [each.status for each in await host.operations()] == ["interrupted"]


def test_it_looks_at_least_once_a_minute() -> None:
    assert LocalHost(Path("/nowhere"), "codex", stored=False).resident._look_seconds <= 60


async def test_a_process_whose_socket_was_taken_by_another_ends_and_leaves_it_alone(folder: Path, sockets: str) -> None:
    async with (
        LocalHost(folder, "codex", sockets=sockets, periods=OFTEN) as old,
        LocalHost(folder, "codex", sockets=sockets) as new,
    ):
        serving = await serve(old)
        taking = await serve(new)

        await asyncio.wait_for(serving, 20)

        assert socket_of(new).exists()
        assert await status_of(new) is not None
        await asyncio.to_thread(stop_resident, new.installation, 20)
        await asyncio.wait_for(taking, 20)


async def test_a_process_that_is_asked_to_stop_ends_and_takes_its_socket_along(folder: Path, sockets: str) -> None:
    async with LocalHost(folder, "codex", sockets=sockets) as host:
        serving = await serve(host)

        assert await asyncio.to_thread(stop_resident, host.installation, 20)

        await asyncio.wait_for(serving, 20)
        assert not socket_of(host).exists()


async def test_a_process_that_nobody_asks_ends_and_its_sessions_count_as_left(folder: Path, sockets: str) -> None:
    async with LocalHost(folder, "codex", sockets=sockets, periods={**OFTEN, "idle_seconds": 0.05}) as host:
        await host.ask(*host.shell("ask first"))
        asked = await host.waiting()
        await asyncio.wait_for(host.resident.serve(), 20)

        statuses = {each.operation_id: each.status for each in await host.operations()}
    assert statuses.pop(asked.operation_id) == "done"
    assert set(statuses.values()) == {"interrupted"}


async def test_a_session_in_which_a_call_waits_for_a_person_is_not_left(folder: Path, sockets: str) -> None:
    async with LocalHost(
        folder, "codex", sockets=sockets, ask_seconds=15.0, periods={**OFTEN, "idle_seconds": 0.05}
    ) as host:
        waits = asyncio.create_task(host.ask(*host.shell("ask first")))
        await host.waiting()
        await host.resident._close_left_sessions()

        assert await host.waiting()
        waits.cancel()
