"""A server of the tests, and what they put into its database."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterable
from itertools import count
from types import TracebackType
from typing import Any, Self

import httpx
import pytest
from sqlalchemy import insert, update

from hookline import HookType
from hookline.calls import ToolCall, ToolResult
from hookline.delivery import MasterKeys
from hookline.events import PendingTool
from hookline.hooks import Interceptor
from hookline.interceptors import Chain
from hookline.runtime import OperationState
from hookline.server import SCOPES, KeyStore, Scope, Server
from hookline.store import SqlStore
from hookline.store._deliveries import build_delivery_rows, insert_deliveries
from hookline.store._tables import deliveries, endpoints
from hookline.webhooks import Envelope, HookData, Webhook
from tests.server.litestar_models import share_models, share_routes
from tests.store.records import entries

share_models()
share_routes()

SECONDS = 20.0
PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients that never meet an encrypted connection: to read all certificates takes longer than most tests."""
MASTER = MasterKeys(["bWFzdGVyIGtleSBvZiB0aGUgc2VydmVycyBvZiB0ZXM="])
numbers = count(1)
on_lasting_site = pytest.mark.parametrize("site", ["lasting"], indirect=True)
"""For a test that minds nothing of what others have left there: to open a server takes longer than most tests."""


class Site:
    """A server on a database, in a thread of its own.

    Attributes:
        url: The database.
        address: Where it listens.
        admin: The key of the first administrator; `""` if there was one.
        server: The server, which belongs to its thread.
    """

    def __init__(self, url: str, **settings: Any) -> None:
        self.url = url
        self._settings = {"port": 0, "rate_limit": None, "page": False, "master_key": MASTER} | settings
        self._thread = threading.Thread(target=self._run)
        self._open = threading.Event()
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._open.wait(SECONDS)
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.loop.call_soon_threadsafe(self.stop)
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:
            self._error = error
            self._open.set()

    async def _live(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with Server(self.url, **self._settings) as self.server:
            self.address = self.server.address
            self.admin = self.server.first_key.key or "" if self.server.first_key is not None else ""
            self._open.set()
            await self._stop.wait()

    def stop(self) -> None:
        """End the server; to be called in its thread."""
        self._stop.set()

    def client(self, key: str | None = None, **more: Any) -> httpx.AsyncClient:
        """Somebody with a key; with that of the administrator unless given."""
        token = self.admin if key is None else key
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.AsyncClient(
            base_url=self.address,
            headers=headers | more.pop("headers", {}),
            timeout=SECONDS,
            verify=PLAIN,
            trust_env=False,  # to look for proxies takes twenty times as long as the rest
            **more,
        )


async def key(store: SqlStore, tenant_id: str = "acme", scopes: Iterable[Scope] = SCOPES, **more: Any) -> str:
    """A new key of a tenant."""
    made = await KeyStore(store).create(name="a test", tenant_id=tenant_id, scopes=scopes, **more)
    assert made.key is not None
    return made.key


def new_id(what: str) -> str:
    return f"{what}-{next(numbers)}"


async def operation(store: SqlStore, tenant_id: str = "acme", **fields: Any) -> str:
    """An operation that waits for a person to decide about `call`, with three events."""
    operation_id = fields.pop("operation_id", None) or new_id("op")
    waiting = PendingTool(toolset="bank", tool_name="pay", tool_call_id="call", args={"amount": 3}, prompt="Pay?")
    known = {"agent_id": "agent", "status": "waiting_for_human", "waiting_since_unix_nano": 10**18}
    given: dict[str, Any] = known | {"pending": [waiting]} | fields
    state = OperationState(operation_id=operation_id, tenant_id=tenant_id, version=1, events=3, **given)
    await store.commit(state, expected_version=None, entries=entries(operation_id, 1, 3))
    return operation_id


async def delivery(store: SqlStore, tenant_id: str = "acme", status: str = "dead", url: str = "") -> str:
    """A delivery of a status; one that is given up unless said otherwise."""
    id, operation_id = new_id("msg"), new_id("op")  # noqa: A001
    webhook = Webhook(url=url or f"https://example.org/{id}")
    hook = HookData(id="told", type=HookType.ON_COMPLETE, webhook=webhook, tenant_id=tenant_id)
    envelope = Envelope(id=id, hook=hook, operation_id=operation_id, tenant_id=tenant_id, payload=b'{"a":1}')
    async with store.writing() as connection:
        await insert_deliveries(connection, build_delivery_rows([envelope]), now=store.now_sql())
        changed = {"status": status, "settled_at": store.now_sql(), "attempts": 1, "last_error": "http_error: 500"}
        if status == "pending":
            # Nobody is to try it while the test looks.
            changed = {"next_attempt_at": store.now_sql() + 3600}
        await connection.execute(update(deliveries).where(deliveries.c.id == id).values(**changed))
    return id


async def endpoint(store: SqlStore, tenant_id: str = "acme") -> str:
    """An endpoint that is disabled, to which a hook of the tenant delivers."""
    url = f"https://example.org/{new_id('in')}"
    await delivery(store, tenant_id, url=url)
    async with store.writing() as connection:
        row = {"tenant_id": tenant_id, "url": url, "failures": 5, "reason": "gone: 410"}
        await connection.execute(insert(endpoints).values(**row, disabled_at=store.now_sql()))
    return url


async def execution(site: Site, tenant_id: str = "acme", *, hook_id: str = "look", revision: int = 0) -> str:
    """A row of the log, which hears of what runs in this process; gives its operation."""
    operation_id = new_id("op")
    hook = Interceptor(id=hook_id, call=ToolCall, kind="guard", handler=lambda call: None, revision=revision)

    async def tool(call: ToolCall) -> ToolResult:
        return ToolResult(content="done")

    call = ToolCall(toolset="bank", tool_name="pay", operation_id=operation_id, tenant_id=tenant_id)
    await Chain([hook]).run(call, tool)
    written = asyncio.run_coroutine_threadsafe(site.server.log.flush(), site.loop)
    assert await asyncio.wrap_future(written)
    return operation_id
