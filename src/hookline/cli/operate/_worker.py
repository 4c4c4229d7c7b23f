"""`hookline worker`: run the operations of agents that a store holds, until stopped."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hookline.cli.operate._bus import BusCredentials, BusNkeySeed, BusPrefix, BusUrls, BusWait, make_bus
from hookline.cli.operate._endpoints import MasterKeyFile
from hookline.cli.operate._running import AllowMissingHooks, Environment, Observers, ScriptEnv, WebhookEnv
from hookline.cli.operate._store import (
    DEFAULT_STORE,
    Files,
    Modules,
    Scripts,
    StoreUrl,
    check_store,
    find_modules,
    report_errors_only,
)

if TYPE_CHECKING:
    from hookline.bus import NatsBus
    from hookline.engines import DbosEngine
    from hookline.hooks import AnyHook
    from hookline.runtime import Agent
    from hookline.store import SqlStore

__all__ = ["run_worker"]

AgentTargets = Annotated[
    list[str], typer.Argument(metavar="AGENT", help="Agents, as package.module:name or file.py:name.")
]
HookTargets = Annotated[
    list[str] | None,
    typer.Option(
        "--hooks",
        metavar="HOOKS",
        help="Hooks of every run, as package.module:name or file.py:name; repeatable. Stored definitions come after "
        "them.",
    ),
]
AgentVersions = Annotated[
    list[str] | None,
    typer.Option(
        "--agent-version",
        metavar="TEXT",
        help="A version of the agents that this process can run; repeatable. All by default.",
    ),
]
Concurrency = Annotated[int, typer.Option(min=1, metavar="N", help="Number of operations that run at a time.")]
Drain = Annotated[
    float,
    typer.Option(
        min=0.0,
        metavar="SECONDS",
        help="After SIGTERM or Ctrl-C, seconds in which running operations may end. Then other workers continue them.",
    ),
]
Lease = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Take part in changes of hooks with --fence; deny calls if the store is away for so long.",
    ),
]
DbosUrl = Annotated[
    str | None,
    typer.Option(
        "--dbos",
        metavar="URL",
        envvar="HOOKLINE_DBOS",
        help="Run operations from the queues of DBOS. Its system database: postgresql://HOST/DATABASE or "
        "sqlite:///FILE.",
    ),
]
DbosQueues = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="With --dbos: a TOML file with a table of options for each queue.",
    ),
]
DbosName = Annotated[
    str | None, typer.Option(metavar="TEXT", help="With --dbos: the name of the application; hookline by default.")
]


def run_worker(
    agents: AgentTargets,
    store: StoreUrl = DEFAULT_STORE,
    hooks: HookTargets = None,
    agent_version: AgentVersions = None,
    concurrency: Concurrency = 8,
    drain: Drain = 30.0,
    lease: Lease = None,
    allow_missing_hooks: AllowMissingHooks = False,
    files: Files = None,
    modules: Modules = None,
    scripts: Scripts = None,
    script_env: ScriptEnv = None,
    webhook_env: WebhookEnv = None,
    environment: Environment = None,
    observers: Observers = False,
    bus: BusUrls = None,
    bus_credentials: BusCredentials = None,
    bus_nkey_seed: BusNkeySeed = None,
    bus_prefix: BusPrefix = "hookline",
    bus_wait: BusWait = 0.0,
    master_key_file: MasterKeyFile = None,
    dbos: DbosUrl = None,
    dbos_queues: DbosQueues = None,
    dbos_name: DbosName = None,
) -> None:
    """Run operations of agents until Ctrl-C.

    It runs new operations, and continues those whose process has ended or that a person has decided about. Hook
    definitions of the store apply to them, and executions of hooks are logged there.
    """
    with report_errors_only():
        from hookline.cli.chat import AgentArguments, load_hooks, make_agent

        for option, value in (("--dbos-queues", dbos_queues), ("--dbos-name", dbos_name)):
            if value is not None and not dbos:
                raise typer.BadParameter("It is for a worker on DBOS; give --dbos URL too.", param_hint=f"'{option}'")
        check_store(store, creates=True)
        find_modules(modules)
        settings = WorkerSettings(
            url=store,
            agents=[make_agent(AgentArguments(target=each)) for each in agents],
            hooks=load_hooks(hooks or ()),
            bus=make_bus(bus, credentials=bus_credentials, nkey_seed=bus_nkey_seed, prefix=bus_prefix, wait=bus_wait)
            if bus
            else None,
            dbos=dbos or "",
            dbos_options={
                "queues": read_queues(dbos_queues),
                **({} if dbos_name is None else {"application_name": dbos_name}),
            },
            master_key_file=master_key_file,
            observers=observers,
            drain=drain,
            registry={
                "files": files or (),
                "modules": modules or (),
                "scripts": scripts,
                "script_env": script_env or (),
                "webhook_env": webhook_env or (),
                "environment": environment,
                "lease_seconds": lease,
            },
            worker={
                "concurrency": concurrency,
                "allow_missing_hooks": allow_missing_hooks,
                "agent_versions": agent_version or None,
            },
        )
        asyncio.run(_work(settings, typer.echo))


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """What a process runs operations with.

    Attributes:
        url: The store.
        agents: The agents.
        hooks: Hooks of every run, before those of the registry.
        bus: The bus of the store, which is not open yet.
        dbos: The system database of DBOS; `""` to run operations without it.
        dbos_options: Arguments of the `DbosEngine`.
        master_key_file: The file of the master key; `None` for the default.
        observers: Whether the log records executions of observers too.
        drain: Seconds in which running operations may end.
        registry: Arguments of the `Registry`.
        worker: Arguments of the `Worker`.
    """

    url: str
    agents: Sequence[Agent]
    hooks: Sequence[AnyHook]
    bus: NatsBus | None
    dbos: str
    dbos_options: dict[str, Any]
    master_key_file: Path | None
    observers: bool
    drain: float
    registry: dict[str, Any]
    worker: dict[str, Any]


async def _work(settings: WorkerSettings, say: Callable[[str], None]) -> None:
    from hookline.delivery import Outbox, networks_from_environment
    from hookline.dispatcher import HookDispatcher
    from hookline.registry import ExecutionLog, Registry
    from hookline.relay import Relay
    from hookline.store import SqlStore, Worker

    store = SqlStore(settings.url, wakeups=settings.bus)
    engine = make_dbos_engine(store, settings)  # it may be refused, and the store is not created then
    async with contextlib.AsyncExitStack() as stack:
        if settings.bus is not None:
            await stack.enter_async_context(settings.bus)
        await stack.enter_async_context(store)
        if engine is not None:
            await stack.enter_async_context(engine)
        outbox = Outbox(store, allow_private=networks_from_environment(), master_key=find_master_key(settings))
        if outbox.secrets is not None and outbox.secrets.master is not None:
            await outbox.secrets.open()
        registry = await stack.enter_async_context(Registry(store, endpoint_secrets=True, **settings.registry))
        await stack.enter_async_context(ExecutionLog(store, observers=settings.observers))
        await stack.enter_async_context(outbox)
        if settings.bus is not None:
            await stack.enter_async_context(Relay(store, settings.bus))
        # Controls are asked through the outbox, since it has the secrets of their endpoints.
        dispatcher = await stack.enter_async_context(HookDispatcher(delivery=outbox))

        def hooks_of(tenant_id: str) -> Iterable[AnyHook]:
            return (*settings.hooks, *registry.hooks(tenant_id))

        worker = Worker(store, settings.agents, hooks=hooks_of, dispatcher=dispatcher, engine=engine, **settings.worker)
        names = ", ".join(each.id for each in settings.agents)
        queues = " from the queues of DBOS" if engine is not None else ""
        ready = f"hookline runs operations of {names} on {store.name}{queues}"
        await _run_until_stopped(worker, settings.drain, say, ready)


async def _run_until_stopped(worker: Any, drain: float, say: Callable[[str], None], ready: str) -> None:
    """Run a worker until a signal comes; another signal ends the drain too."""
    loop, stop, stop_now = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def note_signal() -> None:
        (stop_now if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # without signal handlers (Windows), Ctrl-C cancels this
            loop.add_signal_handler(number, note_signal)

    async def serve() -> None:
        async with worker:
            say(ready)
            await stop.wait()

    serving = asyncio.create_task(serve())
    waiting = asyncio.create_task(stop.wait())
    hurrying = asyncio.create_task(stop_now.wait())
    try:
        await asyncio.wait([serving, waiting], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([serving, hurrying], timeout=drain, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (serving, waiting, hurrying):
            task.cancel()
        await asyncio.gather(serving, waiting, hurrying, return_exceptions=True)
    if not serving.cancelled():
        serving.result()


def make_dbos_engine(store: SqlStore, settings: WorkerSettings) -> DbosEngine | None:
    """Return the engine of a worker on DBOS; `None` for the default engine.

    Raises:
        HookUsageError: If the address or an option of a queue is invalid.
        MissingExtraError: If the extra `dbos` is not installed.
    """
    if not settings.dbos:
        return None
    from hookline.engines import DbosEngine

    return DbosEngine(store, settings.dbos, **settings.dbos_options)


def read_queues(file: Path | None) -> dict[str, Any]:
    """Read the options of queues from a TOML file.

    Raises:
        HookUsageError: If the file cannot be read.
    """
    if file is None:
        return {}
    from hookline.errors import HookUsageError

    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HookUsageError(f"The queues of DBOS cannot be read from {file}: {error}") from error


def find_master_key(settings: WorkerSettings) -> Any:
    """Return the master key that a file holds; `None` if the environment has it, or nobody has.

    Raises:
        MasterKeyError: If the file is missing or holds something else.
    """
    from hookline.delivery import MasterKeys
    from hookline.store import parse_address

    if settings.master_key_file is not None:
        return MasterKeys.in_file(settings.master_key_file)
    address = parse_address(settings.url)
    if MasterKeys.from_environment() is not None or address.dialect != "sqlite" or address.in_memory:
        return None
    beside = Path(address.url.database or "").with_name("hookline.key")
    return MasterKeys.in_file(beside) if beside.exists() else None
