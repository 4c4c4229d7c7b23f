"""Wake up the processes that wait for a change, by LISTEN/NOTIFY or by looking, so that they need not query."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from importlib import import_module
from time import time
from typing import Any, Protocol, runtime_checkable

from hookline.errors import HookUsageError, MissingExtraError, message_of

__all__ = ["FileWakeups", "PollingWakeups", "PostgresWakeups", "Wakeups"]

logger = logging.getLogger("hookline")
_jitter = random.Random()  # not the global one, whose numbers belong to the program

NET = (10.0, 30.0)
"""Shortest and longest time, in seconds, after which a listener looks although nothing woke it."""
POLL_SECONDS = 0.5
"""Seconds between two looks where nothing can wake a listener."""
TOPIC = re.compile(r"[a-z0-9][a-z0-9._:-]{0,62}")


@runtime_checkable
class Wakeups(Protocol):
    """Carries wake-ups between the processes that share a store. They may get lost, and come too often.

    So nothing may be known from a wake-up alone: who is woken looks at the database. An implementation also wakes each
    listener from time to time without a reason (the slow net), so that what a lost wake-up told is found later.
    """

    def wake(self, topic: str) -> None:
        """Wake the listeners of a topic, in this process and in others. Call it after the commit, in the event loop.

        It returns at once and never fails; wake-ups that follow one another quickly become one.

        Args:
            topic: Lower-case letters, digits and `._:-`, up to 63 characters.

        Raises:
            HookUsageError: If this is no topic.
        """
        ...

    def woken(self, topic: str, call: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        """Call a function whenever a topic is woken, while the context is open.

        What is committed after the context was entered is found; so enter it, and then look for the first time.

        Args:
            topic: The topic.
            call: The function; it must be quick, such as `asyncio.Event.set`. It may be called without a reason.

        Raises:
            HookUsageError: If this is no topic, or no function.
        """
        ...

    async def aclose(self) -> None:
        """Send the wake-ups that wait, for two seconds at most, and close the connections. May be called twice.

        All listeners are called once more, since nobody will wake them from now on.
        """
        ...


class LocalWakeups:
    """Wakes the listeners of this process; the base of those that also reach other processes.

    Args:
        net: Shortest and longest time, in seconds, after which a listener is called without a reason.
    """

    def __init__(self, net: Sequence[float]) -> None:
        self._net = check_net(net)
        self._calls: dict[str, list[Callable[[], None]]] = {}
        self._net_changed = asyncio.Event()

    def wake(self, topic: str) -> None:
        """Wake the listeners of a topic."""
        check_topic(topic)
        if topic in self._calls:
            self._call(topic)

    @asynccontextmanager
    async def woken(self, topic: str, call: Callable[[], None]) -> AsyncIterator[None]:
        """Call a function whenever a topic is woken, while the context is open."""
        check_topic(topic)
        if not callable(call):
            raise HookUsageError(f"`call` must be a function without arguments; got {call!r:.100}.")
        self._calls.setdefault(topic, []).append(call)
        casting = asyncio.create_task(self._cast_net(call))
        try:
            self._begin_listening()
            yield
        finally:
            casting.cancel()
            self._calls[topic].remove(call)
            if not self._calls[topic]:
                del self._calls[topic]
            if not self._calls:
                self._stop_listening()

    async def aclose(self) -> None:
        """Call all listeners, since nobody will wake them from now on."""
        self._call(*self._calls)

    def _begin_listening(self) -> None:
        """Begin to listen to other processes; called for each new listener."""

    def _stop_listening(self) -> None:
        """Stop listening to other processes, since nobody listens here."""

    def _pause(self) -> float:
        """Return the seconds until a listener is called without a reason."""
        return _jitter.uniform(*self._net)

    def _change_net(self) -> None:
        """Begin the pauses of all listeners anew, since they have become shorter or longer."""
        self._net_changed.set()
        self._net_changed = asyncio.Event()

    async def _cast_net(self, call: Callable[[], None]) -> None:
        while True:
            try:
                async with asyncio.timeout(self._pause()):
                    await self._net_changed.wait()
            except TimeoutError:
                call_safely(call)

    def _call(self, *topics: str) -> None:
        for topic in topics:
            for call in tuple(self._calls.get(topic, ())):
                call_safely(call)


class PollingWakeups(LocalWakeups):
    """Wakes listeners of this process at once; listeners of other processes look by themselves, again and again.

    It needs no connection, and works with every database and pooler. Each listener costs a query or more each time.

    Args:
        seconds: Seconds between two looks of a listener.

    Raises:
        HookUsageError: If `seconds` is invalid.
    """

    def __init__(self, seconds: float = POLL_SECONDS) -> None:
        super().__init__((check_seconds("seconds", seconds),) * 2)


LOOK_SECONDS = 0.05
"""Seconds between two looks at the times of a file."""
QUIET_SECONDS = 0.25
"""Seconds for which a file that has changed is not looked at again: a busy file would wake everybody all the time."""
GRAIN = 0.02
"""Seconds for which a file's time may stay the same although the file changes: Linux counts ticks of up to 10 ms."""


class FileWakeups(LocalWakeups):
    """Wakes listeners of this process at once, and those of other processes when a file changes: for SQLite.

    A file does not say what has changed, so that all topics are woken. It is never opened: closing it would release
    SQLite's locks. Nobody looks at it while there are no listeners.

    Args:
        files: The files, which need not be there; none if no other process can share the database.
        net: Shortest and longest time, in seconds, after which a listener is called without a reason.

    Raises:
        HookUsageError: If an argument is invalid.
    """

    def __init__(self, *files: str | os.PathLike[str], net: Sequence[float] = NET) -> None:
        super().__init__(net)
        self._files = [os.fspath(file) for file in files]
        self._watching: asyncio.Task[None] | None = None

    async def aclose(self) -> None:
        """Stop looking at the files."""
        self._stop_listening()
        await super().aclose()

    def _begin_listening(self) -> None:
        if self._watching is None and self._files:
            self._watching = asyncio.create_task(self._watch(read_times(self._files)))

    def _stop_listening(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def _watch(self, seen: list[tuple[int, int] | None]) -> None:
        look_again = False
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            before, seen = seen, read_times(self._files)
            if seen == before and not look_again:
                continue
            newest = max((each[0] for each in seen if each is not None), default=0)
            look_again = seen != before and abs(time() - newest / 1e9) < GRAIN
            self._call(*self._calls)
            await asyncio.sleep(QUIET_SECONDS - LOOK_SECONDS)


CHANNEL = "hookline"
NOTIFY_SECONDS = 0.02
"""Seconds between two notifications of a process. Each takes a lock of the whole server until it is committed, and is
sent to every process that listens."""
LONGEST_PAYLOAD = 7000
"""Bytes of a notification; PostgreSQL allows just under 8000."""
EVERYTHING = "*"
CONNECTING, ANSWERING, CLOSING = 10.0, 5.0, 2.0
"""Seconds that connecting, a statement, and closing may take."""
PROBE_SECONDS = 3.0
"""Seconds within which a process has to hear its own notification."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Shortest and longest pause, in seconds, between two tries to connect."""
HEARTBEAT_SECONDS = 60.0
"""Seconds of silence after which the connection is tried out: a router may have forgotten it."""


class PostgresWakeups(LocalWakeups):
    """Wakes listeners of all processes with `NOTIFY` and `LISTEN` of PostgreSQL, on a connection of its own.

    A process sends at most one notification in 20 ms, with all topics, and never inside of another transaction. The
    connection is opened when it is first needed, and again when it is lost; then all listeners are called, since they
    may have missed something. A pooler that gives each transaction another connection breaks `LISTEN`: this is noticed
    and logged once, and the listeners of this process then look every `poll_seconds`, as they do while the connection
    is lost.

    Args:
        url: `postgresql://user:password@host/database`, as for `SqlStore`.
        net: Shortest and longest time, in seconds, after which a listener is called without a reason.
        poll_seconds: Seconds between two looks of a listener while it cannot be woken by other processes.

    Raises:
        HookUsageError: If an argument is invalid.
        MissingExtraError: If the driver is not installed.
    """

    def __init__(self, url: str, *, net: Sequence[float] = NET, poll_seconds: float = POLL_SECONDS) -> None:
        super().__init__(net)
        try:
            asyncpg: Any = import_module("asyncpg")
        except ImportError as error:
            raise MissingExtraError("server", "Waking up over PostgreSQL") from error
        if not isinstance(url, str) or not re.match(r"postgres(ql)?(\+asyncpg)?://", url):
            raise HookUsageError("The URL of PostgresWakeups must be 'postgresql://user:password@host/database'.")
        self._driver = asyncpg
        errors = asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError
        self._failures = (OSError, TimeoutError, *errors)
        self._url = f"postgresql://{url.partition('://')[2]}"
        self._poll_seconds = check_seconds("poll_seconds", poll_seconds)
        self._pending: set[str] = set()
        self._heard: set[str] = set()
        self._heard_at = -math.inf
        self._flush: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._listening = self._probed = self._failing = self._warned = self._closing = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_listening(self) -> bool:
        """Whether the connection works: otherwise listeners look by themselves."""
        return self._listening

    def wake(self, topic: str) -> None:
        """Wake the listeners of a topic, in this process now and in others soon."""
        super().wake(topic)
        if topic not in self._pending and not self._closing:
            self._pending.add(topic)
            self._start()

    async def aclose(self) -> None:
        """Send the wake-ups that wait, for two seconds at most, and close the connection. May be called twice."""
        self._closing = True
        self._changed.set()
        task, self._task = self._task, None
        if task is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSING):
                    await asyncio.shield(task)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._flush is not None:
            self._flush.cancel()
        await super().aclose()

    def _begin_listening(self) -> None:
        if not self._closing:
            self._start()

    def _start(self) -> None:
        self._changed.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="hookline-wakeups")

    def _pause(self) -> float:
        return super()._pause() if self._listening else self._poll_seconds

    async def _run(self) -> None:
        """Notify and listen until closed, and connect again whenever the connection is lost."""
        pause = FIRST_PAUSE
        while True:
            try:
                connection = await self._connect()
                try:
                    pause = FIRST_PAUSE
                    await self._serve(connection)
                    await connection.close(timeout=CLOSING)
                    return
                finally:
                    connection.terminate()
                    self._probed = False
                    self._set_listening(listening=False)
            except self._failures as error:
                if self._closing:
                    return
                if not self._failing:
                    logger.info("Wake-ups lost their connection to PostgreSQL and connect again: %s", message_of(error))
                self._failing = True
            # Random, so that the processes of a restarted server do not come all at once.
            await asyncio.sleep(pause * _jitter.uniform(0.5, 1.5))
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _connect(self) -> Any:
        return await self._driver.connect(self._url, timeout=CONNECTING)

    async def _serve(self, connection: Any) -> None:
        """Notify and listen on a connection, until closed and everything is sent.

        Raises:
            Exception: One of `self._failures`, if the connection is lost.
        """
        connection.add_termination_listener(lambda _: self._changed.set())
        while not connection.is_closed():
            self._changed.clear()
            if self._pending:
                await self._notify(connection)
            if self._calls and not self._probed and not self._closing:
                await self._listen(connection)
            if self._pending:
                continue
            if self._closing:
                return
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                await connection.execute("SELECT 1", timeout=ANSWERING)
        raise self._lost_error()

    async def _notify(self, connection: Any) -> None:
        topics, self._pending = self._pending, set()
        payload = ",".join(sorted(topics))
        if len(payload) > LONGEST_PAYLOAD:
            payload = EVERYTHING
        try:
            # In one round trip. A notification may get lost, so that its commit need not wait for the disk, where it
            # would keep the lock; the setting must not outlive the transaction on a connection that a pooler shares.
            await connection.execute(
                f"BEGIN; SET LOCAL synchronous_commit = off; NOTIFY {CHANNEL}, '{payload}'; COMMIT", timeout=ANSWERING
            )
        except BaseException:
            self._pending |= topics
            raise
        self._failing = False
        if not self._closing:
            await asyncio.sleep(NOTIFY_SECONDS)

    async def _listen(self, connection: Any) -> None:
        """Listen to the notifications of other processes, if they arrive here."""
        self._probed = True
        if await self._probe(connection):
            await connection.add_listener(CHANNEL, self._hear)
            self._set_listening(listening=True)
            self._failing = False
            self._call(*self._calls)  # they may have missed something
        elif not self._warned:
            self._warned = True
            logger.warning(
                "Wake-ups do not arrive over this connection to PostgreSQL, probably because of a pooler in "
                "transaction mode. This process now queries the database every %g s instead. Give the store a URL "
                "without the pooler, or PollingWakeups.",
                self._poll_seconds,
            )

    async def _probe(self, connection: Any) -> bool:
        """Return whether a notification of another connection arrives on this one.

        Raises:
            Exception: One of `self._failures`, if the connection is lost meanwhile.
        """
        channel, arrived = f"{CHANNEL}_{secrets.token_hex(8)}", asyncio.Event()
        connection.add_termination_listener(lambda _: arrived.set())

        def note_arrival(*_: object) -> None:
            arrived.set()

        await connection.add_listener(channel, note_arrival)
        other = await self._connect()
        try:
            await other.execute(f"NOTIFY {channel}", timeout=ANSWERING)
            with suppress(TimeoutError):
                async with asyncio.timeout(PROBE_SECONDS):
                    await arrived.wait()
        finally:
            other.terminate()
        if connection.is_closed():
            raise self._lost_error()
        await connection.remove_listener(channel, note_arrival)
        return arrived.is_set()

    def _lost_error(self) -> Exception:
        error: Exception = self._driver.InterfaceError("the server has closed the connection")
        return error

    def _set_listening(self, *, listening: bool) -> None:
        if listening != self._listening:
            self._listening = listening
            self._change_net()

    def _hear(self, connection: Any, pid: int, channel: str, payload: object) -> None:
        if pid == connection.get_server_pid():
            return  # listeners of this process were called when it was sent
        self._heard.update(str(payload).split(","))
        if self._flush is None:
            loop = asyncio.get_running_loop()
            self._flush = loop.call_later(max(0.0, self._heard_at + NOTIFY_SECONDS - loop.time()), self._call_heard)

    def _call_heard(self) -> None:
        """Call the listeners of the topics that were heard: many processes together may send many notifications."""
        topics, self._heard, self._flush = self._heard, set(), None
        self._heard_at = asyncio.get_running_loop().time()
        self._call(*(self._calls if EVERYTHING in topics else topics))


def read_times(files: Iterable[str]) -> list[tuple[int, int] | None]:
    """Return the time of the last change, in nanoseconds, and the size of files; `None` for one that is not there."""
    found: list[tuple[int, int] | None] = []
    for file in files:
        try:
            its = os.stat(file)
        except OSError:
            found.append(None)
        else:
            found.append((its.st_mtime_ns, its.st_size))
    return found


def call_safely(call: Callable[[], None]) -> None:
    """Call a listener, and log its error, so that it does not keep the others from being called."""
    try:
        call()
    except Exception:
        logger.exception("A listener of wake-ups failed")


def check_topic(topic: str) -> None:
    """Raise unless a text is a topic.

    Raises:
        HookUsageError: If it is none.
    """
    if not isinstance(topic, str) or not TOPIC.fullmatch(topic):
        raise HookUsageError(
            f"A topic has up to 63 lower-case letters, digits and '._:-', and begins with one of the first two; got "
            f"{topic!r:.100}."
        )


def check_seconds(name: str, seconds: float) -> float:
    """Return a number of seconds.

    Raises:
        HookUsageError: If it is none, or not above 0.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise HookUsageError(f"`{name}` must be a number of seconds above 0; got {seconds!r:.100}.")
    return float(seconds)


def check_net(net: Sequence[float]) -> tuple[float, float]:
    """Return the shortest and the longest time of a slow net.

    Raises:
        HookUsageError: If these are not two numbers of seconds above 0, the smaller one first.
    """
    if not isinstance(net, tuple | list) or len(net) != 2:
        raise HookUsageError(f"`net` must be two numbers of seconds, such as (10, 30); got {net!r:.100}.")
    shortest, longest = (check_seconds("net", seconds) for seconds in net)
    if shortest > longest:
        raise HookUsageError(f"`net` must begin with the shorter time; got {net!r:.100}.")
    return shortest, longest
