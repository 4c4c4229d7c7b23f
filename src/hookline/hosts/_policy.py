"""The hooks of an installation, and the store in which its operations are kept."""

from __future__ import annotations

import asyncio
import getpass
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from hookline.dispatcher import HookDispatcher
from hookline.errors import HooklineError, HookUsageError, message_of
from hookline.events import PendingTool
from hookline.hooks import AnyHook, Hook, Hooks, Interceptor, hook_batch
from hookline.hosts._decisions import DecisionWatch
from hookline.hosts._installation import Installation
from hookline.phases import PhaseHook
from hookline.runtime import Approve, InMemoryStore, OperationStore, Reject

if TYPE_CHECKING:
    from hookline.registry import Registry
    from hookline.store import SqlStore

__all__ = ["InstalledPolicy", "load_hooks"]

T = TypeVar("T")

MOST_READERS = 4


class InstalledPolicy:
    """The hooks of an installation and what they need, while its `async with` is open.

    Args:
        installation: The installation.

    Attributes:
        installation_key: The key of the installation.
        sql: The store, if the installation names one.
        store: Where operations are kept: that store, or memory.
        dispatcher: The dispatcher of all sessions.
        user_id: The account for whom the coding agent works.
        tenant_id: The tenant of the operations.
        ask_seconds: Seconds to wait for a person's decision.
        watched: The files that the hooks were read from.
        asked_here: The operations of the questions that this process has put.
        reading: Held while the store is read for a question: many at once wait here, rather than for a connection.

    Raises:
        HookUsageError: If hooks cannot be imported.
        MissingExtraError: If a store or a registry needs what is not installed.
    """

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._stack = AsyncExitStack()
        self._registry: Registry | None = None
        self.installation_key = installation.key
        self._unfinished: set[asyncio.Task[Any]] = set()
        self.asked_here: set[str] = set()
        self.reading = asyncio.Semaphore(MOST_READERS)
        self.sql: SqlStore | None = None
        self._decisions: DecisionWatch | None = None
        self.store: OperationStore = InMemoryStore()
        self.dispatcher = HookDispatcher()
        self.user_id = _account()
        self.tenant_id, self.ask_seconds = installation.tenant_id, installation.ask_seconds
        before = set(sys.modules)
        self._own = load_hooks(installation.hooks, Path(installation.folder))
        self.watched = _files_of(set(sys.modules) - before, Path(installation.folder))

    async def __aenter__(self) -> Self:
        """Open the store, the registry and the log, if the installation names them."""
        async with AsyncExitStack() as stack:
            given = self._installation
            if given.store:
                from hookline.registry import ExecutionLog
                from hookline.store import SqlStore

                self.store = self.sql = await stack.enter_async_context(SqlStore(given.store, retry_seconds=3.0))
                self._decisions = DecisionWatch(self.sql, given.host, given.tenant_id, self.reading)
                await stack.enter_async_context(ExecutionLog(self.sql))
            if given.store or given.files:
                from hookline.registry import Registry

                sys.path.insert(0, given.folder)  # where modules of handlers may be
                self._registry = Registry(
                    self.sql,
                    files=[Path(each) for each in given.files],
                    modules=given.modules,
                    scripts=Path(given.scripts) if given.scripts else None,
                )
                await stack.enter_async_context(self._registry)
            if given.otlp_endpoint:
                self._own = [*self._own, _open_telemetry(given.otlp_endpoint, stack)]
            await stack.enter_async_context(self.dispatcher)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close what was opened, after everything that was to be finished."""
        await self.settle()
        await self._stack.aclose()

    async def settle(self) -> None:
        """Wait for everything that was started and must come to its end."""
        while self._unfinished:
            await asyncio.gather(*self._unfinished, return_exceptions=True)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start something that must come to its end before the store is closed, whoever waits for it."""
        task = asyncio.create_task(work)
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        return task

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something to its end, also if the caller is cancelled: a client may go away at any moment."""
        return await asyncio.shield(self.start(work))

    def hooks(self) -> list[AnyHook]:
        """Return the hooks that hold at this moment."""
        stored = self._registry.hooks(self.tenant_id) if self._registry is not None else []
        return [*self._own, *stored]

    @property
    def own_hooks(self) -> list[AnyHook]:
        """The hooks that were imported, without those of the registry."""
        return self._own

    async def decision(
        self,
        operation_id: str,
        tool_call_id: str,
        seconds: float,
        stops: Callable[[], bool],
        *,
        looks_first: bool = True,
    ) -> Approve | Reject | None:
        """Wait for the decision about a call of an operation that waits.

        Args:
            operation_id: The operation.
            tool_call_id: The call.
            seconds: How long at most.
            stops: Says when to wait no longer.
            looks_first: Whether there may be a decision already.

        Returns:
            The decision; `None` if there is none. An operation that was ended in another way refuses its call.
        """
        if self._decisions is None:
            return None
        if looks_first:
            found = await self._decisions.read(operation_id, tool_call_id)
            if found is not None:
                return found
        return await self._decisions.wait(operation_id, seconds, stops)

    def explain(self, operation_id: str, asked: PendingTool) -> str:
        """Return how a call can be approved, for the model and for the person who reads with it."""
        if self.sql is None:
            return "Nobody can be asked here: install the hook with --store to let a person approve calls."
        return (
            "A person must approve this call first, on hookline's page or with `hookline approvals approve "
            f"{operation_id} {asked.tool_call_id} --store {self.sql.name}`. After that, make the same call again."
        )


def load_hooks(paths: Sequence[str], folder: Path) -> list[AnyHook]:
    """Return the hooks that import paths name: bundles, lists of bundles, or functions that make them.

    Args:
        paths: Paths such as `package.module:name` or `folder/file.py:name`; the name is `hooks` unless given.
        folder: Where modules and files are looked for.

    Raises:
        HookUsageError: If one cannot be imported, or names something else.
    """
    found: list[AnyHook] = []
    for path in paths:
        value = _import(path, folder)
        if not isinstance(value, Hooks | Hook | Interceptor | PhaseHook) and callable(value):
            if inspect.iscoroutinefunction(value):
                raise HookUsageError(f"The hooks {path!r} are an async function; make them in a plain function.")
            try:
                value = value()
            except Exception as error:
                problem = f"{type(error).__name__}: {message_of(error)}"
                raise HookUsageError(f"The hooks {path!r} could not be made: {problem}.") from error
        try:
            found += hook_batch(value if isinstance(value, list | tuple) else [value])
        except HooklineError as error:
            raise HookUsageError(f"{path!r} names no hooks: {error}") from error
    return found


def _import(path: str, folder: Path) -> Any:
    place, colon, name = path.rpartition(":")
    if not colon or "/" in name or name.endswith(".py"):
        place, name = path, "hooks"
    try:
        if place.endswith(".py"):
            file = folder / place
            if str(file.parent) not in sys.path:
                sys.path.insert(0, str(file.parent))
            if not file.is_file():
                raise HookUsageError(f"The hooks {path!r} cannot be found: there is no file {file}.")
            module = ModuleType(file.stem)
            module.__file__ = str(file)
            sys.modules[file.stem] = module
            # Not from a compiled file: of two edits of equal size in one second, Python would take the first.
            exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)
        else:
            if str(folder) not in sys.path:
                sys.path.insert(0, str(folder))
            module = importlib.import_module(place)
        return getattr(module, name)
    except HooklineError:
        raise
    except AttributeError:
        raise HookUsageError(f"The hooks {path!r} cannot be found: {place} has no {name!r}.") from None
    except Exception as error:
        problem = f"{type(error).__name__}: {message_of(error)}"
        raise HookUsageError(f"The hooks {path!r} cannot be imported: {problem}.") from error


def _files_of(modules: set[str], folder: Path) -> list[Path]:
    """Return the files of modules that are the user's own: a change of one calls for another resident process."""
    found = []
    for name in modules:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and "site-packages" not in file and not name.startswith("hookline") and not _is_standard(file):
            found.append(Path(file))
    return found


def _is_standard(file: str) -> bool:
    return file.startswith(os.path.dirname(os.__file__))


def _account() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name
        return str(os.getuid())


def _open_telemetry(endpoint: str, stack: AsyncExitStack) -> Hooks:
    """Return the bundle that sends spans to an endpoint."""
    from hookline.errors import MissingExtraError

    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise MissingExtraError("otel", "Tracing") from error

    from hookline.otel import TracingHooks

    url = endpoint if "/v1/" in endpoint else f"{endpoint.rstrip('/')}/v1/traces"
    provider = TracerProvider(resource=Resource.create({"service.name": "hookline"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    stack.push_async_callback(asyncio.to_thread, provider.shutdown)
    hooks = TracingHooks(provider)
    stack.callback(hooks.close)
    return hooks
