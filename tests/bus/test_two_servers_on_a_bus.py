"""Two servers on one database and one bus: the live view of one shows at once what happens at the other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from hookline.bus import NatsBus
from hookline.server import Server
from tests.nats_servers import NatsServer
from tests.server.site import operation

pytestmark = pytest.mark.anyio


async def test_the_live_view_of_a_server_shows_what_changes_at_another_over_the_bus(
    tmp_path: Path, nats_server: NatsServer, nats_prefix: str
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    # Neither looks by itself within the time of the test, so that what it sees has come over the bus.
    one_bus, other_bus = (NatsBus(nats_server.url, prefix=nats_prefix, net=(3600.0, 3600.0)) for _ in range(2))
    async with (
        Server(url, port=0, rate_limit=None, bus=one_bus) as one,
        Server(url, port=0, rate_limit=None, bus=other_bus) as other,
    ):
        assert one.first_key is not None
        headers = {"authorization": f"Bearer {one.first_key.key}"}
        seen: asyncio.Queue[str] = asyncio.Queue()

        async def watch() -> None:
            async with (
                httpx.AsyncClient(base_url=one.address, headers=headers, timeout=60) as client,
                client.stream("GET", "/v1/stream") as answer,
            ):
                seen.put_nowait(f"status {answer.status_code}")
                async for line in answer.aiter_lines():
                    seen.put_nowait(line)

        async def wait_for(text: str) -> None:
            while text not in await seen.get():
                pass

        watching = asyncio.create_task(watch())
        try:
            await asyncio.wait_for(wait_for("status 200"), 60)
            # What is changed before the stream knows the present state is not shown.
            following = asyncio.create_task(wait_for("data:"))
            async with asyncio.timeout(60):
                while not following.done():
                    await operation(other.store)
                    await asyncio.wait([following], timeout=0.2)
            for _ in range(3):
                changed = await operation(other.store)
                await asyncio.wait_for(wait_for(changed), 60)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
