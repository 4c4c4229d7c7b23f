"""`DbosEngine`: let the queues of DBOS say which process runs an operation, and when."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from importlib import import_module
from time import monotonic, time
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

from hookline._checks import quote
from hookline.errors import HookUsageError, MissingExtraError, message_of
from hookline.runtime import Segment
from hookline.store import LIVE, WORK, SqlStore, WorkWatch

if TYPE_CHECKING:
    from dbos import DBOS

__all__ = ["DbosEngine", "QueueOptions"]

logger = logging.getLogger("hookline")
T = TypeVar("T")

WORKFLOW = "hookline.run_segment"
"""The name of the workflow that runs a segment."""
DEFAULT_QUEUE = "hookline"
UNFINISHED = ("PENDING", "ENQUEUED", "DELAYED")
FIRST_VERSION = 1
"""The version of an operation that was stored and not run yet."""

LOOK_SECONDS = 2.0
"""Seconds until an operation that waits in a queue is looked at again, since DBOS tells nobody of a claim."""
BEGIN_SECONDS = 5.0
"""Seconds for `begin`, in another process, to put a stored operation into the queue that the caller named."""
CLAIM_SECONDS = 2.0
"""Seconds from the claim of a workflow until its process owns the operation; doubled with each attempt, since a living
process may have claimed more than it can run at a time."""
RECHECK_SECONDS = 0.3
"""Seconds after which a running operation is looked at again: a process may have taken it after it was found."""
STRANDED_SECONDS = 5.0
"""Seconds until a workflow is taken from a version of the application that does not run it; doubled, too, so that two
versions that both run do not take it from each other for ever."""
LONGEST_GRACE = 60.0
SWEEP_SECONDS = 30.0
"""Seconds between two searches for workflows that a dead process left although their operation has ended."""
AGAIN_SECONDS = 1.0
"""Seconds until a call to DBOS is made again after its database could not be reached."""
DRAIN_SECONDS = 10**9
CHUNK = 100
"""Operations whose workflows are read at a time."""
ATTEMPTS = 16
"""Attempts at one version of an operation that are read at a time."""


class QueueOptions(TypedDict, total=False):
    """The limits of a queue of DBOS; the arguments of `DBOS.register_queue`.

    Attributes:
        worker_concurrency: Operations that run at a time in one process; by default the `concurrency` of the `Worker`.
        global_concurrency: Operations that run at a time in all processes.
        limiter: Operations that start in a period: `{"limit": 50, "period": 60}`, in seconds.
        polling_interval_sec: Seconds between two looks of a process into the queue; 1 by default.
    """

    worker_concurrency: int | None
    global_concurrency: int | None
    limiter: dict[str, float] | None
    polling_interval_sec: float


class DbosEngine:
    """An engine that has the queues of [DBOS](https://docs.dbos.dev) say when an operation runs, and in which process.

    DBOS schedules, and the store holds the operation: each workflow runs one segment, as a whole. Model calls and tool
    calls are not steps of DBOS, since DBOS replays steps, and hooks would hear them twice.

    Processes that serve the agent go on with the operations of a process that has died, once its lease in the store has
    ended, and of an application version that nobody runs any more. This needs no Conductor.

    A process has one `DbosEngine` at most that serves. Several workers may share it.

    Args:
        store: The store that holds the operations.
        dbos: The address of the system database of DBOS, as `"postgresql://..."` or `"sqlite:///..."`: the engine
            starts DBOS in processes with a `Worker`, and ends it with the last one. Or the `DBOS` instance of your
            application, which you launch before the engine is used, and destroy after its workers have ended.
        queues: The queues that `exec_agent(queue=...)` may name, and their limits. Workers register them. The queue
            `"hookline"` is the default. Queues that your application registers need not be here.
        application_name: The name of the application that DBOS shows, if the engine starts DBOS.

    Raises:
        HookUsageError: If an argument is invalid.
        MissingExtraError: If the extra `dbos` is not installed.
    """

    def __init__(
        self,
        store: SqlStore,
        dbos: str | DBOS,
        *,
        queues: Mapping[str, QueueOptions] | None = None,
        application_name: str = "hookline",
    ) -> None:
        try:
            self._module: Any = import_module("dbos")
        except ImportError as error:
            raise MissingExtraError("dbos", "DbosEngine") from error
        if not isinstance(store, SqlStore):
            raise HookUsageError(f"`store` must be a SqlStore; got {quote(store)}.")
        if not isinstance(application_name, str) or not application_name.strip():
            raise HookUsageError(f"`application_name` must be a name; got {quote(application_name)}.")
        self._url = _check_address(dbos) if isinstance(dbos, str) else None
        if self._url is None and not isinstance(dbos, self._module.DBOS):
            raise HookUsageError(
                "`dbos` must be the address of the system database of DBOS, or the DBOS instance of the process; "
                f"got {quote(dbos)}."
            )
        self.store = store
        self._queues = _check_queues({} if queues is None else queues)
        self._application_name = application_name
        self._client: Any = None
        """What the engine asks if it was given an address; it needs no running DBOS."""
        self._opening, self._changing = anyio.Lock(), anyio.Lock()
        self._servings: list[_Serving] = []
        self._has_run = False
        self._closed = False
        _register_workflow(self._module.DBOS)

    async def __aenter__(self) -> DbosEngine:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections of the engine to the database of DBOS; leave the workers first. May be called twice."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            with anyio.CancelScope(shield=True):
                await self._call(client.destroy)

    async def begin(self, operation_id: str, *, agent_id: str, agent_version: str = "", queue: str = "") -> None:
        """Put a new operation into a queue.

        Args:
            operation_id: The operation.
            agent_id: Its agent.
            agent_version: The version of the agent; `""` for any.
            queue: One of `queues`, or a queue that is registered in DBOS; `""` for `"hookline"`.

        Raises:
            HookUsageError: If the queue is not known, DBOS does not run, or its address is wrong. The operation is
                stored then, and workers run it from the default queue.
        """
        await self._open()
        name = queue or DEFAULT_QUEUE
        is_known = name == DEFAULT_QUEUE or name in self._queues
        if not is_known and await self._call(self._api.retrieve_queue, name) is None:
            raise HookUsageError(
                f"DBOS has no queue {quote(name)}. Name it in `queues` of the DbosEngine, or register it in DBOS. "
                f"The operation {operation_id} is stored; workers run it from the queue {DEFAULT_QUEUE!r}."
            )
        about = {"operation_id": operation_id, "agent_id": agent_id, "agent_version": agent_version, "queue": name}
        await self._enqueue(_make_id(operation_id, FIRST_VERSION, 0), about)

    async def wake(self, operation_id: str, *, not_before: float | None = None) -> None:
        """Have an operation run again; see `Engine`. With `not_before`, other processes may do it earlier."""
        if not_before is not None and (seconds := not_before - time()) > 0:
            for serving in self._servings:
                serving.watch.postpone(operation_id, seconds)
            return
        for serving in self._servings:
            serving.watch.look(operation_id)
        self.store.wakeups.wake(WORK)

    def serve(
        self,
        agents: Collection[str],
        segment: Segment,
        *,
        concurrency: int,
        agent_versions: Collection[str] | None = None,
    ) -> AbstractAsyncContextManager[None]:
        """Run operations from the queues of DBOS in this process; see `Engine`.

        Raises:
            HookUsageError: If DBOS does not run, its address is wrong, another `DbosEngine` serves in this process, or
                the engine was closed.
        """
        return self._serve(agents, segment, concurrency, agent_versions)

    @asynccontextmanager
    async def _serve(
        self, agents: Collection[str], segment: Segment, concurrency: int, agent_versions: Collection[str] | None
    ) -> AsyncIterator[None]:
        serving = _Serving(self, agents, segment, concurrency, agent_versions)
        await self._join(serving, concurrency)
        async with anyio.create_task_group() as group:
            try:
                await group.start(serving.run, group)
                yield
            except BaseException:
                serving.stop()
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await self._leave(serving)
                raise
            serving.stop()
            leaving = asyncio.ensure_future(self._leave(serving))
            try:
                await asyncio.shield(leaving)
            except asyncio.CancelledError:
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await asyncio.wait([leaving])
                raise

    async def _join(self, serving: _Serving, concurrency: int) -> None:
        """Have DBOS give workflows to a worker."""
        global _serving_engine
        async with self._changing:
            if _serving_engine not in (None, self):
                raise HookUsageError(
                    "Another DbosEngine serves in this process, and DBOS runs once in a process. Give the same engine "
                    "to all workers, or use one process for each."
                )
            await self._open()
            if self._url is not None and not self._servings:
                await self._call(self._launch)
            _serving_engine = self
            self._servings.append(serving)
            try:
                for name, options in {DEFAULT_QUEUE: QueueOptions(), **self._queues}.items():
                    given: dict[str, Any] = {"worker_concurrency": concurrency, **options}
                    await self._call(self._module.DBOS.register_queue, name, **given)
            except BaseException as error:
                with anyio.CancelScope(shield=True):
                    await self._release(serving)
                if isinstance(error, Exception):
                    raise HookUsageError(f"DBOS does not accept a queue: {message_of(error)}") from error
                raise

    async def _leave(self, serving: _Serving) -> None:
        async with self._changing:
            await self._release(serving)

    async def _release(self, serving: _Serving) -> None:
        global _serving_engine
        last = self._servings == [serving]
        if last and self._url is not None:
            # DBOS takes no more workflows from now on, and ends when the segments have ended.
            seconds = DRAIN_SECONDS if self._has_run else 0
            await self._call(self._module.DBOS.destroy, workflow_completion_timeout_sec=seconds)
        self._servings.remove(serving)
        if last:
            _serving_engine = None

    async def _open(self) -> None:
        """Connect to the database of DBOS, if the engine was given its address.

        Raises:
            HookUsageError: If the engine was closed, the address is wrong, or the given DBOS does not run.
        """
        if self._closed:
            raise HookUsageError("This DbosEngine was closed. Make a new one.")
        if self._url is None:
            try:
                await self._call(self._module.DBOS.retrieve_queue, DEFAULT_QUEUE)
            except Exception as error:
                raise HookUsageError(
                    f"The DBOS instance of this DbosEngine does not run: {message_of(error)}. Call DBOS.launch() "
                    "before you use the engine, and DBOS.destroy() after its workers have ended."
                ) from error
            return
        async with self._opening:
            if self._client is None:
                try:
                    self._client = await self._call(self._connect, self._url)
                except Exception as error:
                    raise HookUsageError(
                        f"DbosEngine cannot open the system database of DBOS at {_hide_password(self._url)}: "
                        f"{message_of(error)}. Start the database, or correct the address."
                    ) from error

    def _connect(self, url: str) -> Any:
        """Make the tables of DBOS, unless they are there, and return a client."""
        self._module.DBOS.migrate(url)
        return self._module.DBOSClient(
            system_database_url=url, application_name=self._application_name, retry_connection_errors=False
        )

    def _launch(self) -> None:
        """Start DBOS in this process.

        The version of the application is always the same: a segment goes on from what is stored, so that a process can
        run the operations of an older version of the code.

        Raises:
            HookUsageError: If there is a DBOS in this process already.
        """
        dbos, executor_id = self._module.DBOS, f"hookline-{secrets.token_hex(8)}"
        dbos(
            config={
                "name": self._application_name,
                "system_database_url": self._url,
                "application_version": f"{self._application_name}:segments",
                "executor_id": executor_id,
                "log_level": "WARNING",
            }
        )
        if dbos.executor_id != executor_id:
            raise HookUsageError(
                "This process has a DBOS instance already. Give it to the engine, as DbosEngine(store, dbos), instead "
                "of an address."
            )
        try:
            dbos.launch()
        except BaseException:
            dbos.destroy()
            raise

    @property
    def _api(self) -> Any:
        """What is asked about workflows and queues: the client, or the running DBOS."""
        return self._module.DBOS if self._client is None else self._client

    async def _call(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Call DBOS in a thread, as it blocks, and outside of any workflow of the caller.

        While the database cannot be reached, call again.
        """
        failing = False
        while True:
            try:
                return await anyio.to_thread.run_sync(
                    lambda: Context().run(function, *arguments, **options), abandon_on_cancel=True
                )
            except Exception as error:
                if self._client is None or not _is_unreachable(error):
                    raise
                if not failing:
                    logger.error("DbosEngine cannot reach the database of DBOS and will retry: %s", error)
                failing = True
            await anyio.sleep(AGAIN_SECONDS)

    async def _enqueue(self, workflow_id: str, about: Mapping[str, str]) -> None:
        """Put a workflow into its queue, unless one has this id."""
        api = self._api
        enqueue = api.enqueue_workflow_with_options if self._client is None else api.enqueue
        # Without a version of the application: processes of the latest one take it.
        options = {
            "workflow_name": WORKFLOW,
            "queue_name": about["queue"],
            "workflow_id": workflow_id,
            "attributes": dict(about),
        }
        await self._call(enqueue, options, about["operation_id"])

    async def _list(self, **which: Any) -> list[_Workflow]:
        """List workflows that run segments."""
        found = await self._call(self._api.list_workflows, name=WORKFLOW, load_input=False, load_output=False, **which)
        return [workflow for each in found if (workflow := _parse_workflow(each)) is not None]

    async def _cancel(self, workflow_ids: Sequence[str]) -> None:
        if workflow_ids:
            await self._call(self._api.cancel_workflows, list(workflow_ids))

    async def _run_here(self, operation_id: str) -> bool:
        """Run a segment, in whatever event loop of this process serves the operation; return whether one did."""
        self._has_run = True
        for serving in tuple(self._servings):
            if await asyncio.wrap_future(serving.submit(operation_id)):
                return True
        return False


_serving_engine: DbosEngine | None = None
"""The engine that serves in this process: DBOS is one for a process, too."""
_has_workflow = False


async def run_segment(operation_id: str) -> bool:
    """Run a segment of an operation; the workflow of DBOS.

    Returns:
        Whether this process ran it. If not, it does not serve the agent, or its version, or no worker is open. A
        process that does puts the operation into the queue again.
    """
    return _serving_engine is not None and await _serving_engine._run_here(operation_id)


def _register_workflow(dbos: Any) -> None:
    """Tell DBOS the workflow, once in a process."""
    global _has_workflow
    if not _has_workflow:
        dbos.workflow(name=WORKFLOW, max_recovery_attempts=None)(run_segment)
        _has_workflow = True


class _Workflow(msgspec.Struct, frozen=True):
    """A workflow of DBOS that runs a segment, from a version of the operation on."""

    id: str
    operation_id: str
    version: int
    attempt: int
    status: str
    app_version: str | None
    about: dict[str, str]

    def is_reachable(self, app_version: str) -> bool:
        """Return whether it waits in a queue from which an application of this version takes it."""
        return self.status in ("ENQUEUED", "DELAYED") and self.app_version in (None, app_version)


class _Serving:
    """Runs operations in this process: finds those that can go on, puts them into queues, and runs what DBOS claims."""

    def __init__(
        self,
        engine: DbosEngine,
        agents: Collection[str],
        segment: Segment,
        concurrency: int,
        agent_versions: Collection[str] | None,
    ) -> None:
        self._engine, self._store = engine, engine.store
        self._agents = frozenset(agents)
        self._versions = None if agent_versions is None else {"", *agent_versions}
        self._segment = segment
        self._limiter = anyio.CapacityLimiter(concurrency)
        self._loop = asyncio.get_running_loop()
        self._submitted: asyncio.Queue[tuple[str, Future[bool]]] = asyncio.Queue()
        self._background = anyio.CancelScope()
        self._stopping = False
        self._running: dict[str, anyio.Event] = {}
        self._started: set[str] = set()
        """Operations that began to run here while others are put into queues."""
        self._found: list[str] = []
        self._has_found = anyio.Event()
        self._seen: dict[str, tuple[str, float]] = {}
        """How an operation was seen, and since when (by `monotonic`), until it is put into a queue."""
        self.watch = WorkWatch(self._store, agents, self._note_found, agent_versions=agent_versions)

    async def run(self, segments: anyio.abc.TaskGroup, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Find operations, and run those that DBOS claims, until stopped.

        Args:
            segments: Where segments run.
            task_status: Told once it is known when to look.
        """
        with self._background:
            async with anyio.create_task_group() as group:
                await group.start(self.watch.run)
                group.start_soon(self._run_submitted, segments)
                group.start_soon(self._schedule_found)
                group.start_soon(self._sweep)
                task_status.started()

    def stop(self) -> None:
        """Begin no more segments."""
        self._stopping = True
        self._background.cancel()
        self.watch.stop()
        while not self._submitted.empty():
            self._submitted.get_nowait()[1].set_result(False)

    def submit(self, operation_id: str) -> Future[bool]:
        """Run a segment; call it from any thread.

        Returns:
            Whether it ran, once it has ended.
        """
        done: Future[bool] = Future()
        try:
            self._loop.call_soon_threadsafe(self._take, operation_id, done)
        except RuntimeError:
            done.set_result(False)  # the loop was closed
        return done

    def _take(self, operation_id: str, done: Future[bool]) -> None:
        if self._stopping:
            done.set_result(False)
        else:
            self._submitted.put_nowait((operation_id, done))

    async def _run_submitted(self, segments: anyio.abc.TaskGroup) -> None:
        """Run what was submitted, until cancelled.

        In the context of the worker: in that of the workflow, DBOS would take what tools call for its steps, and replay
        them.
        """
        while True:
            operation_id, done = await self._submitted.get()
            segments.start_soon(self._run, operation_id, done)

    async def _run(self, operation_id: str, done: Future[bool]) -> None:
        ran = False
        try:
            while (running := self._running.get(operation_id)) is not None:
                await running.wait()
            ended = self._running[operation_id] = anyio.Event()
            self._started.add(operation_id)
            self.watch.running.add(operation_id)
            self.watch.look(operation_id)  # it is not postponed any more, so that its next pause is noticed at once
            try:
                async with self._limiter:
                    if not self._stopping and await self._serves(operation_id):
                        await self._segment(operation_id)
                        ran = True
            finally:
                del self._running[operation_id]
                ended.set()
                self.watch.finish(operation_id)
        finally:
            if not ran:
                self._store.wakeups.wake(WORK)
            done.set_result(ran)

    async def _serves(self, operation_id: str) -> bool:
        stored = await self._store.operation(operation_id)
        return (
            stored is not None
            and stored.agent_id in self._agents
            and (self._versions is None or stored.agent_version in self._versions)
        )

    def _note_found(self, operation_id: str) -> None:
        self._found.append(operation_id)
        self._has_found.set()

    async def _schedule_found(self) -> None:
        """Put the operations that were found into queues, until cancelled."""
        while True:
            await self._has_found.wait()
            self._has_found = anyio.Event()
            found, self._found = self._found, []
            for start in range(0, len(found), CHUNK):
                chunk = found[start : start + CHUNK]
                self._started.clear()
                try:
                    await self._schedule(chunk)
                except Exception:
                    logger.exception("DbosEngine could not put operations into a queue and will retry")
                    for operation_id in chunk:
                        self._postpone(operation_id, AGAIN_SECONDS)
                finally:
                    for operation_id in chunk:
                        if operation_id not in self._running:
                            self.watch.finish(operation_id)

    def _postpone(self, operation_id: str, seconds: float) -> None:
        """Do not look for an operation for some seconds, unless it has run here meanwhile and may go on."""
        if operation_id not in self._running and operation_id not in self._started:
            self.watch.postpone(operation_id, seconds)

    async def _schedule(self, operation_ids: Sequence[str]) -> None:
        """Have each operation run, unless it waits in a queue already."""
        prefixes = [f"{_make_prefix(each)}:" for each in operation_ids]
        unfinished: dict[str, list[_Workflow]] = {each: [] for each in operation_ids}
        for workflow in await self._engine._list(status=list(UNFINISHED), workflow_id_prefix=prefixes):
            if workflow.operation_id in unfinished:
                unfinished[workflow.operation_id].append(workflow)
        app_version = self._engine._module.DBOS.application_version
        for operation_id, workflows in unfinished.items():
            if operation_id in self._running:
                continue
            if any(workflow.is_reachable(app_version) for workflow in workflows):
                self._postpone(operation_id, LOOK_SECONDS)
            else:
                await self._schedule_one(operation_id, workflows)
        now = monotonic()
        self._seen = {name: seen for name, seen in self._seen.items() if now - seen[1] < 2 * LONGEST_GRACE}

    async def _schedule_one(self, operation_id: str, unfinished: Sequence[_Workflow]) -> None:
        """Put an operation into its queue, unless somebody else is about to run it."""
        stored = await self._store.operation(operation_id)
        if stored is None or stored.status not in LIVE:
            return
        first, last = await self._find_workflows(operation_id, stored.version)
        seconds = _find_grace(stored.status, stored.version, unfinished, first, last)
        situation = ",".join([str(stored.version), *(each.id + each.status for each in unfinished)])
        now = monotonic()
        if self._seen.get(operation_id, ("", 0.0))[0] != situation:
            self._seen[operation_id] = (situation, now)
        left = self._seen[operation_id][1] + seconds - now
        if left > 0:
            self._postpone(operation_id, left)
            return
        # Before the next call: it may run, and end, before that returns.
        self._postpone(operation_id, LOOK_SECONDS)
        del self._seen[operation_id]
        attempt = 0 if last is None else last.attempt + 1
        about = {
            "operation_id": operation_id,
            "agent_id": stored.agent_id,
            "agent_version": stored.agent_version,
            "queue": DEFAULT_QUEUE if first is None else first.about.get("queue", DEFAULT_QUEUE),
        }
        await self._engine._cancel([each.id for each in unfinished])
        await self._engine._enqueue(_make_id(operation_id, stored.version, attempt), about)

    async def _find_workflows(self, operation_id: str, version: int) -> tuple[_Workflow | None, _Workflow | None]:
        """Find the first workflow of an operation, and the last one of a version."""
        first_id, last, start = _make_id(operation_id, FIRST_VERSION, 0), None, 0
        ids = [first_id]
        first: _Workflow | None = None
        while True:
            ids += [_make_id(operation_id, version, attempt) for attempt in range(start, start + ATTEMPTS)]
            found = {each.id: each for each in await self._engine._list(workflow_ids=ids)}
            first = found.get(first_id, first)
            here = [each for each in found.values() if each.version == version and each.attempt >= start]
            if here:
                last = max(here, key=lambda each: each.attempt)
            if len(here) < ATTEMPTS:
                return first, last
            start, ids = start + ATTEMPTS, []

    async def _sweep(self) -> None:
        """Cancel workflows whose process died after the end of their operation: they count in limits of queues."""
        before: set[str] = set()
        while True:
            await anyio.sleep(SWEEP_SECONDS)
            pending = await self._engine._list(status="PENDING", limit=1000)
            for workflow in pending:
                if workflow.id in before and workflow.operation_id not in self._running:
                    stored = await self._store.operation(workflow.operation_id)
                    if stored is None or stored.status != "running":
                        await self._engine._cancel([workflow.id])
            before = {workflow.id for workflow in pending}


def _find_grace(
    status: str,
    version: int,
    unfinished: Sequence[_Workflow],
    first: _Workflow | None,
    last: _Workflow | None,
) -> float:
    """Return for how many seconds an operation must be seen as it is before its workflow is given up."""
    if last is not None and last in unfinished:
        return min(
            (CLAIM_SECONDS if last.status == "PENDING" else STRANDED_SECONDS) * (1 << min(last.attempt, 6)),
            LONGEST_GRACE,
        )
    if status != "running":
        return 0.0
    if first is None and version == FIRST_VERSION:
        return BEGIN_SECONDS
    return RECHECK_SECONDS


def _make_prefix(operation_id: str) -> str:
    return f"hookline:{operation_id}"


def _make_id(operation_id: str, version: int, attempt: int) -> str:
    """Return the id of a workflow: the same in all processes that find the operation, so that there is one."""
    return f"{_make_prefix(operation_id)}:{version}.{attempt}"


def _parse_workflow(status: Any) -> _Workflow | None:
    """Read a workflow as DBOS describes it; `None` if it is not one of hookline's."""
    prefix, _, numbers = status.workflow_id.rpartition(":")
    version, _, attempt = numbers.partition(".")
    if not prefix.startswith("hookline:") or not version.isdecimal() or not attempt.isdecimal():
        return None
    return _Workflow(
        id=status.workflow_id,
        operation_id=prefix.removeprefix("hookline:"),
        version=int(version),
        attempt=int(attempt),
        status=status.status,
        app_version=status.app_version,
        about=status.attributes or {},
    )


def _check_address(address: str) -> str:
    """Return the address of a database that several processes can open.

    Raises:
        HookUsageError: If it is none.
    """
    scheme = address.partition("://")[0].partition("+")[0]
    place = address.partition("://")[2].strip("/")
    if scheme not in ("postgresql", "postgres", "sqlite") or not place or (scheme, place) == ("sqlite", ":memory:"):
        raise HookUsageError(
            "The address of the system database of DBOS is 'postgresql://...' or 'sqlite:///file'; "
            f"got {quote(_hide_password(address))}."
        )
    return address


def _hide_password(address: str) -> str:
    scheme, separator, rest = address.partition("://")
    login, at, place = rest.rpartition("@")
    return f"{scheme}{separator}{login.partition(':')[0] + ':***' if ':' in login else login}{at}{place}"


def _check_queues(queues: object) -> dict[str, QueueOptions]:
    """Return the queues of an engine.

    Raises:
        HookUsageError: If they are invalid.
    """
    allowed = set(QueueOptions.__annotations__)
    if not isinstance(queues, Mapping) or not all(
        isinstance(name, str) and name.strip() and isinstance(options, Mapping) for name, options in queues.items()
    ):
        raise HookUsageError(f"`queues` gives the options of each queue by its name; got {quote(queues)}.")
    for name, options in queues.items():
        if unknown := sorted(set(options) - allowed):
            raise HookUsageError(
                f"Queue {quote(name)} has no option {quote(unknown[0])}; there are {', '.join(sorted(allowed))}. "
                "Register a partitioned queue in DBOS yourself."
            )
        for option, value in options.items():
            if (needed := _find_needed(option, value)) is not None:
                raise HookUsageError(f"`{option}` of queue {quote(name)} must be {needed}; got {quote(value)}.")
    return {name: cast("QueueOptions", dict(options)) for name, options in queues.items()}


def _find_needed(option: str, value: object) -> str | None:
    """Return what an option of a queue must be; `None` if its value is that."""
    if option == "polling_interval_sec":
        return None if _is_positive(value) else "a number of seconds above 0"
    if option == "limiter":
        is_limiter = isinstance(value, Mapping) and set(value) == {"limit", "period"}
        if value is None or (is_limiter and all(map(_is_positive, value.values()))):  # type: ignore[attr-defined]
            return None
        return "such as {'limit': 50, 'period': 60}, with numbers above 0"
    if value is None or (_is_positive(value) and isinstance(value, int)):
        return None
    return "a whole number above 0"


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _is_unreachable(error: Exception) -> bool:
    """Return whether a call failed since the database could not be reached."""
    exceptions = import_module("sqlalchemy.exc")
    return isinstance(error, (exceptions.OperationalError, exceptions.InterfaceError, exceptions.TimeoutError))
