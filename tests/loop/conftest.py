"""A provider for all tests of a module, and the ways in which a loop may be written."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest

from hookline.loop import wrap
from tests.adapters.provider import Provider

from .dialects import DIALECTS, Dialect
from .stage import drive, entered, settled


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider() as provider:
        yield provider


class Way:
    """A way to write a loop: with one of the protocols, and a sync or an async client."""

    def __init__(self, dialect: Dialect, provider: Provider, *, sync: bool, shared: Any = None) -> None:
        self.dialect, self.provider, self.sync, self.shared = dialect, provider, sync, shared

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Any]:
        """The client that tests share, or one that is closed at the end."""
        if self.shared is not None:
            yield self.shared
            return
        client = self.dialect.client(self.provider.url, sync=self.sync)
        try:
            yield client
        finally:
            if self.sync:
                client.close()
            else:
                with anyio.CancelScope(shield=True):
                    await client.close()

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


@pytest.fixture(params=["async", "sync", "alone"])
def sync(request: pytest.FixtureRequest) -> bool:
    """Whether the client is sync; "alone" is a sync program, while "sync" is sync code inside of an async one."""
    return request.param != "async"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test of a sync program without an event loop, in which its coroutine would wait for something."""
    params = getattr(pyfuncitem, "callspec", None) and pyfuncitem.callspec.params
    if not params or params.get("sync") != "alone" or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    drive(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}))
    return True


@pytest.fixture(scope="module")
def sync_clients(provider: Provider) -> Iterator[dict[str, Any]]:
    """A sync client of each protocol, since to make one takes as long as a request."""
    with ExitStack() as stack:
        yield {each.name: stack.enter_context(each.client(provider.url, sync=True)) for each in DIALECTS}


@pytest.fixture(params=DIALECTS, ids=lambda each: each.name)
def way(request: pytest.FixtureRequest, provider: Provider, sync_clients: dict[str, Any], sync: bool) -> Way:
    return Way(request.param, provider, sync=sync, shared=sync_clients[request.param.name] if sync else None)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
