"""A provider for all tests of a module, and the ways in which a loop may be written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from hookline.loop import wrap
from tests.adapters.provider import Provider

from .dialects import DIALECTS, Dialect
from .stage import entered, settled


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider() as provider:
        yield provider


class Way:
    """A way to write a loop: with one of the protocols, and a sync or an async client."""

    def __init__(self, dialect: Dialect, provider: Provider, *, sync: bool) -> None:
        self.dialect, self.provider, self.sync = dialect, provider, sync

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Any]:
        """A client, which is closed at the end."""
        client = self.dialect.client(self.provider.url, sync=self.sync)
        try:
            yield client
        finally:
            with anyio.CancelScope(shield=True):
                await settled(client.close())

    @asynccontextmanager
    async def wrapped(self, hooks: Any = (), tools: Any = (), **options: Any) -> AsyncIterator[Any]:
        async with (
            self.opened() as client,
            entered(wrap(client, hooks=list(hooks), tools=tools, **options)) as run,
        ):
            yield run

    async def ask(self, run: Any, messages: list[Any] | None = None, **options: Any) -> Any:
        request = self.dialect.request("model", messages or [{"role": "user", "content": "go"}], [])
        return await settled(self.dialect.method(run.client)(**request, **options))

    async def loop(self, run: Any, messages: list[Any] | None = None) -> list[Any]:
        """The loop that people write; returns its messages."""
        messages = messages if messages is not None else [{"role": "user", "content": "go"}]
        for _ in range(10):
            response = await self.ask(run, messages)
            messages += self.dialect.entries(response)
            if not self.dialect.calls(response):
                return messages
            messages += await settled(run.call_tools(response))
        raise AssertionError("the loop does not end")


@pytest.fixture(params=[False, True], ids=["async", "sync"])
def sync(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture(params=DIALECTS, ids=lambda each: each.name)
def way(request: pytest.FixtureRequest, provider: Provider, sync: bool) -> Way:
    return Way(request.param, provider, sync=sync)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
