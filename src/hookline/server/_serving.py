"""`Server`: run the API with its store, registry, log and outbox in one process; `serve` runs it until stopped."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import uvicorn

from hookline.bus import Bus
from hookline.delivery import MASTER_KEY, MasterKeyError, MasterKeys, Outbox, networks_from_environment
from hookline.errors import HookUsageError
from hookline.hooks import AnyHook
from hookline.registry import AlertSettings, ExecutionLog, Registry
from hookline.relay import Relay
from hookline.runtime import Agent
from hookline.server._app import MEBIBYTE, build_app
from hookline.server._client_addresses import check_proxies
from hookline.server._connections import Connections, fit_connections, raise_file_limit
from hookline.server._keys import NewApiKey
from hookline.server._limits import (
    BODY_SECONDS,
    HEADER_SECONDS,
    MAX_CONNECTIONS,
    MAX_HEADERS,
    ServerLimits,
)
from hookline.server._parts import ServerParts
from hookline.server._rates import RateLimit, RateLimits
from hookline.store import SqlStore, parse_address

__all__ = ["Server", "serve"]

logger = logging.getLogger("hookline")

KEY_FILE = "hookline.key"
GRACE_SECONDS = 5
"""Seconds that requests under way may still take when the server stops."""
KEEP_ALIVE_SECONDS = 30
STOPPING = (signal.SIGINT, signal.SIGTERM)


class Server:
    """Runs the API on one address, with its own store, registry, log and outbox, while its `async with` is open.

    Keys that sign webhooks, and the private networks that they may reach, come from the environment, as for
    `hookline.delivery.default_delivery`.

    Args:
        url: The database: `sqlite:///path`, or `postgresql://user:password@host/database`.
        host: The address to listen at.
        port: The port; 0 for any free port.
        files: Files of hook definitions, or folders of them.
        modules: Modules whose functions definitions may name.
        scripts: Folder of the scripts that definitions may name.
        script_env: Environment variables that scripts see, besides `PATH` and `LANG`.
        webhook_env: Environment variables that headers of stored webhooks may name.
        quota: Number of definitions that each tenant may store.
        agents: Agents whose operations this process resumes when a person has decided, retries, and ends when their
            interruption was asked for.
        hooks: Hooks for all requests.
        observers: Whether the log records executions of observers too.
        retention_hours: Hours for which the log is kept.
        allow_origins: Origins whose pages may use the API.
        rate_limit: Requests that each key may send; `None` for any number.
        tenant_rate_limit: Requests that all keys of a tenant may send together; five times `rate_limit` by default,
            `None` for any number.
        max_body: Largest body of a request, in bytes.
        max_headers: Largest address and headers of a request together, in bytes.
        header_timeout: Seconds within which the headers have to arrive, and for which a new connection may be silent.
        body_timeout: Seconds for which a body may stall, or the reading of an answer.
        max_connections: Number of open connections.
        trusted_proxies: Addresses or networks of the proxies in front, whose `X-Forwarded-For` and
            `X-Forwarded-Proto` are trusted; none by default.
        page: Whether to serve the web page too.
        session_key: Signs the sessions of the page: 32 random bytes or more, the same in all processes behind one
            address; by default, the environment variable `HOOKLINE_SESSION_KEY`. Without a key, people sign in again
            after a restart.
        allow_missing_hooks: Whether to resume operations without interceptors that they were started with, with a
            warning in the log; otherwise they wait for a worker that has them.
        master_key: Encrypts the signing secrets of endpoints: the keys, or a file that holds them, which is created if
            it is missing; by default, `HOOKLINE_MASTER_KEY`, or the file hookline.key beside an SQLite database.
        alerts: When a changed rate of denials of a shadow hook raises an alert, and where alerts are sent.
        trace_url: The address of a trace in your tracing system, with `{trace_id}` in it; the page links to it.
        environment: The name of the environment of this process, such as `"production"`, which definitions may name;
            that of the variable `HOOKLINE_ENVIRONMENT` by default.
        bus: Carries wake-ups between the processes of the store, questions to remote hooks, and events to remote
            observers, such as a `NatsBus`.
            The server opens and closes it. All processes of the store need the same one.

    Attributes:
        address: The URL at which it listens.
        first_key: The API key of the first administrator, if it was just created; it cannot be shown again.
        store: The store.
        registry: The registry.
        log: The log.
        outbox: The outbox.

    Raises:
        HookUsageError: If an argument is invalid.
    """

    def __init__(
        self,
        url: str = "sqlite:///hookline.db",
        *,
        host: str = "127.0.0.1",
        port: int = 8430,
        files: Sequence[Path] = (),
        modules: Sequence[str] = (),
        scripts: Path | None = None,
        script_env: Sequence[str] = (),
        webhook_env: Sequence[str] = (),
        quota: int = 50,
        agents: Sequence[Agent] = (),
        hooks: Sequence[AnyHook] = (),
        observers: bool = False,
        retention_hours: float = 24.0,
        allow_origins: Sequence[str] = (),
        rate_limit: RateLimit | None = RateLimit(),  # noqa: B008
        tenant_rate_limit: RateLimit | Literal["auto"] | None = "auto",
        max_body: int = MEBIBYTE,
        max_headers: int = MAX_HEADERS,
        header_timeout: float = HEADER_SECONDS,
        body_timeout: float = BODY_SECONDS,
        max_connections: int = MAX_CONNECTIONS,
        trusted_proxies: Sequence[str] = (),
        page: bool = True,
        session_key: bytes | None = None,
        allow_missing_hooks: bool = False,
        master_key: MasterKeys | Path | None = None,
        trace_url: str | None = None,
        alerts: AlertSettings = AlertSettings(),  # noqa: B008
        environment: str | None = None,
        bus: Bus | None = None,
    ) -> None:
        limits = ServerLimits(
            max_body=max_body,
            max_headers=max_headers,
            header_timeout=header_timeout,
            body_timeout=body_timeout,
            max_connections=max_connections,
        )
        self._proxies = check_proxies(trusted_proxies)
        self.address = ""
        self.first_key: NewApiKey | None = None
        self._opened_bus: object = bus
        self._bus = bus
        self.store = SqlStore(url, wakeups=bus)
        self.registry = Registry(
            self.store,
            files=files,
            modules=modules,
            scripts=scripts,
            script_env=script_env,
            webhook_env=webhook_env,
            quota=quota,
            endpoint_secrets=True,
            alerts=alerts,
            environment=environment,
        )
        self.log = ExecutionLog(self.store, observers=observers, retention_hours=retention_hours)
        self.outbox = Outbox(self.store, allow_private=networks_from_environment())
        self._host, self._port = host, port
        self._url, self._master_key = url, master_key
        self._parts = ServerParts(
            self.store,
            registry=self.registry,
            log=self.log,
            outbox=self.outbox,
            hooks=hooks,
            agents=agents,
            trace_url=trace_url,
        )
        self._app = build_app(
            self._parts,
            agents=agents,
            allow_origins=allow_origins,
            rates=RateLimits(rate_limit, tenant_rate_limit),
            limits=limits,
            page=page,
            session_key=session_key,
            allow_missing_hooks=allow_missing_hooks,
        )
        self._connections = Connections(limits, self._parts.metrics.note_refusal)
        self._lifespan = bool(agents)
        self._stack = contextlib.AsyncExitStack()
        self._uvicorn: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Open the store, registry, log and outbox, and listen.

        Raises:
            HookUsageError: If the address is not available.
            StoreUnavailableError: If the database cannot be reached.
            BusUnavailableError: If the bus cannot be reached.
            MasterKeyError: If the master key is missing, or is not that of the database.
            DefinitionFileError: If a file of definitions is broken.
        """
        async with contextlib.AsyncExitStack() as stack:
            listener = stack.enter_context(contextlib.closing(_open_listener(self._host, self._port)))
            if isinstance(self._opened_bus, contextlib.AbstractAsyncContextManager):
                await stack.enter_async_context(self._opened_bus)
            await stack.enter_async_context(self.store)
            await self._open_secrets()
            for part in (self.registry, self.log, self.outbox):
                await stack.enter_async_context(part)
            if self._bus is not None:
                await stack.enter_async_context(Relay(self.store, self._bus))
            self._connections.limits = fit_connections(self._connections.limits)
            stack.push_async_callback(self._parts.refusals.aclose)
            stack.push_async_callback(self._parts.backtests.aclose)
            stack.push_async_callback(self._stop)
            if not self._proxies and not _is_loopback(listener):
                logger.warning(
                    "hookline listens on %s without TLS, so keys and conversations can be read on the network. Put a "
                    "proxy with TLS in front and name it as a trusted proxy, or listen on 127.0.0.1.",
                    self._host,
                )
            await self._start(listener)
            # Last: the key can be shown only once, so nothing after it may keep the server from starting.
            self.first_key = await self._parts.keys.create_first()
            self._stack = stack.pop_all()
        host, port = listener.getsockname()[:2]
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Finish the requests under way, and close everything."""
        await self._stack.aclose()

    async def ended(self) -> None:
        """Wait until the server no longer listens."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _open_secrets(self) -> None:
        """Find or create the master key, and check that it is the database's.

        Raises:
            MasterKeyError: If there is no master key, or it is not the database's.
        """
        secrets = self.outbox.secrets
        assert secrets is not None
        if isinstance(self._master_key, MasterKeys):
            secrets.master = self._master_key
        elif self._master_key is not None or secrets.master is None:
            place = default_key_file(self._url) if self._master_key is None else Path(self._master_key)
            if place is None:
                secrets.master = MasterKeys.generate()  # the database in memory ends with this process, too
            elif place.exists() or await secrets.is_fresh():
                secrets.master = MasterKeys.in_file(place)
            else:
                raise MasterKeyError(
                    f"the database has secrets, but the file of their master key, {place}, does not exist; restore it, "
                    f"or set {MASTER_KEY}"
                )
        await secrets.open()

    async def _start(self, listener: socket.socket) -> None:
        config = uvicorn.Config(
            self._app,
            lifespan="on" if self._lifespan else "off",
            http=self._connections.protocol(),  # type: ignore[arg-type]
            ws="none",
            # Always set: by default, uvicorn trusts 127.0.0.1 and the addresses in an environment variable.
            proxy_headers=bool(self._proxies),
            forwarded_allow_ips=self._proxies,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        self._uvicorn = _SignalFreeServer(config)
        self._task = asyncio.create_task(self._uvicorn.serve(sockets=[listener]))
        while not self._uvicorn.started:
            if self._task.done():
                await self._task
                raise HookUsageError("The server stopped before it started to listen. See the log for the reason.")
            await asyncio.sleep(0.01)

    async def _stop(self) -> None:
        self._parts.closing.set()
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


def default_key_file(url: str) -> Path | None:
    """Return the default file of a database's master key: beside an SQLite file; `None` for a database in memory.

    Raises:
        MasterKeyError: For PostgreSQL, where several servers on several machines need the same key.
    """
    address = parse_address(url)
    if address.dialect == "postgresql":
        raise MasterKeyError(
            "a server on PostgreSQL needs a master key, the same for all servers of the database; create one with "
            f"`openssl rand -base64 32` and set {MASTER_KEY}, or name a file with `--master-key-file`"
        )
    return None if address.in_memory else Path(address.url.database or "").with_name(KEY_FILE)


class _SignalFreeServer(uvicorn.Server):
    """A uvicorn server that does not handle signals: uvicorn would end the process before the store is closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def tell(line: str) -> None:
    """Print a line and flush it, even if the output is no terminal."""
    print(line, flush=True)


def serve(server: Callable[[], Server], *, say: Callable[[str], None] = tell) -> None:
    """Run a server until it is stopped by Ctrl-C or SIGTERM.

    Args:
        server: Creates the server; called inside of the event loop.
        say: Called with the line that names the address, and with the first administrator's key if it was created.

    Raises:
        HookUsageError: If the address is not available.
        StoreUnavailableError: If the database cannot be reached.
        DefinitionFileError: If a file of definitions is broken.
    """
    factory: Callable[[], asyncio.AbstractEventLoop] | None
    try:
        from uvloop import new_event_loop as factory
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_serve(server, say))


async def _serve(make: Callable[[], Server], say: Callable[[str], None]) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    made = make()
    raise_file_limit(made._connections.limits)  # here only, since it changes a limit of the whole process
    async with made as server:
        # Before anything is printed: whoever reads that the server listens may stop it at once.
        with contextlib.suppress(NotImplementedError):  # without signal handlers (Windows), Ctrl-C cancels this
            for number in STOPPING:
                loop.add_signal_handler(number, stop.set)
        if server.first_key is not None:
            say(f"API key of the first administrator, shown only once: {server.first_key.key}")
        say(f"hookline listens on {server.address}")
        # Nothing that was imported is garbage. To look through it took 12 of 280 µs of a request (`bench_server`).
        gc.freeze()
        waiting = [asyncio.create_task(stop.wait()), asyncio.create_task(server.ended())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


def _is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def _open_listener(host: str, port: int) -> socket.socket:
    try:
        listener = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
    except (OSError, OverflowError) as error:
        why = str(getattr(error, "strerror", None) or error).partition(" (while attempting")[0]
        raise HookUsageError(
            f"Cannot listen on {host}:{port}: {why}. Choose another host or port; port 0 uses any free port."
        ) from error
    # asyncio sets it only where the protocol is named, which `create_server` leaves at 0. Without it, a response in two
    # parts waits for the client's delayed acknowledgement: 40 ms on a connection that is kept open.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
