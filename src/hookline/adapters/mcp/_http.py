"""Connect to an MCP server over streamable HTTP, with the client library's own transport."""

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

from hookline.adapters.mcp._process import LONGEST_MESSAGE, Incoming, Outgoing, ServerDiagnostics
from hookline.adapters.mcp._settings import Settings

__all__ = ["http_streams"]

_Queued = tuple[contextvars.Context, SessionMessage]


@asynccontextmanager
async def http_streams(settings: Settings, diagnostics: ServerDiagnostics) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """Open the message streams to and from an endpoint."""

    async def look(response: httpx2.Response) -> None:
        if response.request.method == "POST":
            diagnostics.status = response.status_code if response.status_code >= 400 else None

    client = httpx2.AsyncClient(
        headers=dict(settings.headers),
        # An answer may take as long as a call does; the caller has a timeout of its own.
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
        group.start_soon(_write, queued, write, diagnostics)
        try:
            yield Incoming(cast("Any", read), diagnostics.secrets), Outgoing(put, queue.close)
        finally:
            queue.close()
            group.cancel_scope.cancel()


async def _write(queued: MemoryObjectReceiveStream[_Queued], write: Any, diagnostics: ServerDiagnostics) -> None:
    """Send queued messages, each in the context of its sender, whose span the HTTP request belongs to."""
    try:
        async with queued, write:
            async for context, message in queued:
                async with anyio.create_task_group() as one:
                    context.run(one.start_soon, write.send, message)
    except* (anyio.BrokenResourceError, anyio.ClosedResourceError):
        diagnostics.lost.set()
