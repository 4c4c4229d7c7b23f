"""An MCP server at an address: its streams over HTTP, by the client library's own transport."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from hookline.adapters.mcp._process import LONGEST_MESSAGE, Incoming, Outgoing, Witness
from hookline.adapters.mcp._settings import Settings

__all__ = ["http_streams"]

_Queued = tuple[contextvars.Context, SessionMessage]


@asynccontextmanager
async def http_streams(settings: Settings, witness: Witness) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """The streams to and from an endpoint, for as long as this is open."""

    async def look(response: httpx2.Response) -> None:
        if response.request.method == "POST":
            witness.status = response.status_code if response.status_code >= 400 else None

    client = httpx2.AsyncClient(
        headers=dict(settings.headers),
        # An answer may take as long as a call; whoever waits for it gives up by himself.
        timeout=httpx2.Timeout(settings.start_timeout, read=max(settings.timeout, settings.start_timeout)),
        event_hooks={"response": [look]},
    )
    queue, queued = anyio.create_memory_object_stream[_Queued](float("inf"))

    def put(item: SessionMessage) -> None:
        queue.send_nowait((contextvars.copy_context(), item))

    async with (
        client,
        streamable_http_client(settings.url, http_client=client, max_sse_event_size=LONGEST_MESSAGE) as (read, write),
        anyio.create_task_group() as group,
    ):
        group.start_soon(_write, queued, write, witness)
        try:
            yield Incoming(cast("Any", read), witness.secrets), Outgoing(put, queue.close)
        finally:
            queue.close()
            group.cancel_scope.cancel()


async def _write(queued: MemoryObjectReceiveStream[_Queued], write: Any, witness: Witness) -> None:
    """Hand messages on, each with the context of its sender: the HTTP request belongs to the sender's span."""
    try:
        async with queued, write:
            async for context, message in queued:
                async with anyio.create_task_group() as one:
                    context.run(one.start_soon, write.send, message)
    except* (anyio.BrokenResourceError, anyio.ClosedResourceError):
        witness.lost.set()
