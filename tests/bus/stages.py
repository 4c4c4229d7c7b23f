"""Stages of the contract: the buses of several processes, which can be killed."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, Self

from hookline.bus import Bus, MemoryBus, NatsBus
from tests.nats_servers import NatsServer


class MemoryStage:
    """The buses of one process.

    Args:
        kind: The class of the buses.
    """

    def __init__(self, kind: type[MemoryBus] = MemoryBus, patience: float = 30.0) -> None:
        self._kind, self.patience = kind, patience
        self._first: MemoryBus | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def join(self) -> Bus:
        if self._first is None:
            self._first = self._kind()
            return self._first
        return self._first.peer()

    async def kill(self, bus: Bus) -> None:
        assert isinstance(bus, MemoryBus)
        bus.kill()


class NatsStage:
    """The buses of a server; those that are killed lose their connection for ever.

    Args:
        server: The server.
        prefix: That of the test.
    """

    patience = 60.0

    def __init__(self, server: NatsServer, prefix: str) -> None:
        self._server, self._prefix = server, prefix
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def join(self) -> NatsBus:
        bus = NatsBus(self._server.url, prefix=self._prefix, partitions=3, ack_seconds=1.0)
        return await self._stack.enter_async_context(bus)

    async def kill(self, bus: Bus) -> None:
        client: Any = bus._client  # type: ignore[attr-defined]
        client.options["allow_reconnect"] = False
        client._transport._io_writer.transport.abort()
