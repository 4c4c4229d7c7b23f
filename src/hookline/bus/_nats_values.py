"""The values of keys of a `NatsBus`, in a bucket of JetStream."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from typing import Any, Protocol, TypeVar

from hookline.bus._memory import call_watcher
from hookline.bus._messages import BusUnavailableError, Watcher

__all__ = ["NatsValues", "raise_if_cancelled"]

logger = logging.getLogger("hookline")
_Result = TypeVar("_Result")

PAUSE = 1.0
"""Seconds after which the values are read again that could not be read."""
MARKER_SECONDS = 60.0
"""Seconds for which the server remembers that a key has lost its value. Who was away for longer compares all values."""


def raise_if_cancelled(before: int = 0) -> None:
    """Raise `CancelledError` if the current task was cancelled, for a loop around calls of `nats-py`.

    Such a call may return, or fail, in place of being cancelled: it uses `asyncio.wait_for`, which on Python 3.11 keeps
    a cancellation to itself that comes together with the answer.

    Args:
        before: How often the task had been cancelled when the loop began.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError


class JetStreamUser(Protocol):
    """Does something with JetStream, and tries again for some seconds while the server is away.

    Raises:
        BusUnavailableError: If it did not succeed in time, or the server refused it.
    """

    async def __call__(self, work: Callable[[Any], Awaitable[_Result]], /) -> _Result: ...


class NatsValues:
    """The values of keys.

    Args:
        name: The name of the bucket.
        replicas: Number of servers of a cluster that keep each value.
        use_jetstream: Does something with JetStream.
        failures: The exceptions of a server that is away.
    """

    def __init__(
        self, name: str, *, replicas: int, use_jetstream: JetStreamUser, failures: tuple[type[Exception], ...]
    ) -> None:
        self._name, self._replicas = name, replicas
        self._use_jetstream, self._failures = use_jetstream, failures
        self._errors: Any = import_module("nats.js.errors")
        self._bucket: Any = None
        self._watchers: set[Any] = set()

    async def put(self, key: str, value: bytes, seconds: float | None) -> None:
        """Give a key a value.

        Raises:
            BusUnavailableError: If the server did not say in time that it keeps the value.
        """
        expiry = None if seconds is None else math.ceil(seconds)

        async def publish(jetstream: Any) -> None:
            await self._open_bucket(jetstream)
            await jetstream.publish(f"$KV.{self._name}.{key}", value, timeout=1.0, msg_ttl=expiry)

        await self._use_jetstream(publish)

    async def get(self, key: str) -> bytes | None:
        """Return the value of a key; `None` if it has none.

        Raises:
            BusUnavailableError: If the server did not answer in time.
        """

        async def read(jetstream: Any) -> bytes | None:
            await self._open_bucket(jetstream)
            return await self._get(jetstream, key)

        return await self._use_jetstream(read)

    async def delete(self, key: str) -> None:
        """Take the value of a key away.

        Raises:
            BusUnavailableError: If the server did not answer in time.
        """

        async def purge(jetstream: Any) -> None:
            bucket = await self._open_bucket(jetstream)
            await bucket.purge(key, msg_ttl=MARKER_SECONDS)

        await self._use_jetstream(purge)

    @asynccontextmanager
    async def watch(self, prefix: str, call: Watcher) -> AsyncIterator[None]:
        """Call a function with the values of keys, and with each change, while the context is open.

        Raises:
            BusUnavailableError: If the server did not answer in time.
        """
        known: dict[str, int] = {}

        async def read(jetstream: Any) -> Any:
            return await self._read(jetstream, prefix, call, known)

        changes = await self._use_jetstream(read)
        following = asyncio.create_task(self._follow(read, changes, call, known))
        try:
            yield
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def read_again(self) -> None:
        """Make all watchers read all values again, since they may have missed something."""
        self._bucket = None  # the server may have lost it
        for changes in tuple(self._watchers):
            with suppress(*self._failures):
                await changes.stop()

    async def _get(self, jetstream: Any, key: str) -> bytes | None:
        try:
            message = await jetstream.get_msg(f"KV_{self._name}", subject=f"$KV.{self._name}.{key}")
        except self._errors.NotFoundError:
            return None
        is_marker = any(each in (message.headers or {}) for each in ("KV-Operation", "Nats-Marker-Reason"))
        return None if is_marker else bytes(message.data or b"")

    async def _open_bucket(self, jetstream: Any) -> Any:
        if self._bucket is None:
            try:
                self._bucket = await jetstream.key_value(self._name)
            except self._errors.BucketNotFoundError:
                self._bucket = await jetstream.create_key_value(
                    bucket=self._name, replicas=self._replicas, limit_marker_ttl=MARKER_SECONDS
                )
        return self._bucket

    async def _read(self, jetstream: Any, prefix: str, call: Watcher, known: dict[str, int]) -> Any:
        """Call a watcher with all values that differ from the known ones, and return the changes that follow.

        Args:
            jetstream: JetStream.
            prefix: First parts of the keys.
            call: The watcher.
            known: The number of the last value of each key that the watcher was called with; it is changed.
        """
        bucket = await self._open_bucket(jetstream)
        changes = await bucket.watch(f"{prefix}.>")
        self._watchers.add(changes)
        try:
            gone = set(known)
            async for entry in changes:
                if entry is None:  # these were all, or none has come yet: nats-py says it too early on a busy machine
                    for key in gone:
                        if await self._get(jetstream, key) is None:
                            del known[key]
                            call_watcher(call, key, None)
                    return changes
                if entry.operation is None:
                    gone.discard(entry.key)
                    _tell_change(call, known, entry)
            raise ConnectionError("the connection was lost while the values were read")
        except BaseException:
            await self._end(changes)
            raise

    async def _follow(
        self, read: Callable[[Any], Awaitable[Any]], changes: Any, call: Watcher, known: dict[str, int]
    ) -> None:
        """Call a watcher with each change, and read all values again whenever `read_again` is called."""
        while True:
            try:
                raise_if_cancelled()
                async for entry in changes:
                    _tell_change(call, known, entry)
            finally:
                await self._end(changes)
            changes = None
            while changes is None:
                raise_if_cancelled()
                try:
                    changes = await self._use_jetstream(read)
                except BusUnavailableError as error:
                    logger.info("The values in %s cannot be read, and are in %g s: %s", self._name, PAUSE, error)
                    await asyncio.sleep(PAUSE)

    async def _end(self, changes: Any) -> None:
        self._watchers.discard(changes)
        with suppress(*self._failures):
            await changes.stop()


def _tell_change(call: Watcher, known: dict[str, int], entry: Any) -> None:
    """Call a watcher with a change, unless it knows it already."""
    if entry.operation is not None:
        if known.pop(entry.key, None) is not None:
            call_watcher(call, entry.key, None)
    elif known.get(entry.key) != entry.revision:
        known[entry.key] = entry.revision
        call_watcher(call, entry.key, bytes(entry.value or b""))
