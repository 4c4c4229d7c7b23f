"""`InProcess`: deliver webhooks without a store. A delivery that fails a few quick tries is reported and lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from hookline._checks import quote
from hookline._deadlines import runs_on_asyncio
from hookline.delivery._addresses import AddressGuard
from hookline.delivery._control_answers import check_answer
from hookline.delivery._signing import KeyRing
from hookline.errors import DeliveryError, HookDefinitionError, HookUsageError, MissingExtraError
from hookline.webhooks import ControlAnswer, Envelope, HookData, ServedBy

if TYPE_CHECKING:
    from hookline.delivery._sender import Sender

__all__ = ["InProcess", "LocalFunctions", "is_local", "is_retryable", "require_asyncio"]

logger = logging.getLogger("hookline")
_jitter = random.Random()  # not the global one, whose numbers belong to the program

T = TypeVar("T")

FIRST_PAUSE = 0.1
"""Seconds before the second try, with ±50 % jitter; each further pause is twice as long."""


class InProcess:
    """Delivers webhooks at once, from this process. It is the default delivery of a run.

    Deliveries to one URL go out one after another, those to different URLs in parallel. A failed try is repeated until
    the webhook's timeout, counted from the first try, has passed.

    Args:
        sender: The HTTP sender; `aclose` closes it. By default, one is made from the other arguments at its first use.
        keys: The keys that sign.
        allow_private: Networks (`"10.0.0.0/8"`) that may be reached although they are not public.
        tries: How often a delivery is tried at most.

    Raises:
        HookDefinitionError: If an argument is invalid.
    """

    def __init__(
        self,
        sender: Sender | None = None,
        *,
        keys: KeyRing | None = None,
        allow_private: Iterable[str] = (),
        tries: int = 3,
    ) -> None:
        if sender is not None and keys is not None:
            raise HookDefinitionError("InProcess", "pass `keys` to the Sender, not to InProcess")
        if tries < 1:
            raise HookDefinitionError("InProcess", f"`tries` must be at least 1; got {tries!r}")
        self._sender, self._tries = sender, tries
        self._keys = KeyRing() if keys is None else keys
        self._allow_private = allow_private if isinstance(allow_private, str) else tuple(allow_private)
        AddressGuard(self._allow_private)  # refused now rather than at the first delivery
        self._functions = LocalFunctions()

    async def publish(self, envelopes: Sequence[Envelope]) -> None:
        """Deliver envelopes, in order for each URL.

        Raises:
            DeliveryError: The first failure, if any. The other envelopes are tried all the same, and their failures
                are logged.
            HookUsageError: If the event loop is not asyncio's.
        """
        require_asyncio()
        by_url: dict[str, list[Envelope]] = {}
        for envelope in envelopes:
            by_url.setdefault(envelope.hook.webhook.url, []).append(envelope)
        failed: dict[str, DeliveryError] = {}

        async def deliver(queue: list[Envelope]) -> None:
            for envelope in queue:
                try:
                    await self._retry(envelope.hook, lambda left, sent=envelope: self._deliver(sent))  # type: ignore[misc]
                except DeliveryError as error:
                    failed[envelope.id] = error

        ends = await asyncio.gather(*map(deliver, by_url.values()), return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end
        errors = [failed[envelope.id] for envelope in envelopes if envelope.id in failed]
        for error in errors[1:]:
            logger.error("%s", error)
        if errors:
            raise errors[0]

    async def request(self, envelope: Envelope, *, timeout: float) -> ControlAnswer:
        """Ask the receiver of a control for its decision; failed tries are repeated while there is time.

        Raises:
            DeliveryError: If no valid answer came in time.
            HookUsageError: If the event loop is not asyncio's.
        """
        require_asyncio()
        hook = envelope.hook
        if is_local(hook):
            return await self._functions.call(envelope, timeout)
        return await self._retry(hook, lambda left: self._http_sender(hook).ask(envelope, left), timeout)

    @contextlib.asynccontextmanager
    async def serve(self, name: str, handler: ServedBy) -> AsyncIterator[None]:
        """Call a function with each delivery to `local://name`, while the context is open.

        Args:
            name: The name in the URL.
            handler: `async (envelope) -> ControlAnswer | None`; its return value answers a control.

        Raises:
            HookUsageError: If the name is invalid, or is served already.
        """
        with self._functions.serve_name(name, handler):
            yield

    async def aclose(self) -> None:
        """Close the connections."""
        if self._sender is not None:
            await self._sender.aclose()

    def __repr__(self) -> str:
        return f"InProcess(tries={self._tries})"

    async def _deliver(self, envelope: Envelope) -> None:
        hook = envelope.hook
        if is_local(hook):
            await self._functions.call(envelope, hook.webhook.timeout)
        else:
            await self._http_sender(hook).send(envelope)

    def _http_sender(self, hook: HookData) -> Sender:
        """Return the HTTP sender, which is made at its first use.

        Raises:
            DeliveryError: If the extra `server` is not installed.
        """
        if self._sender is None:
            try:
                from hookline.delivery._sender import Sender
            except MissingExtraError as error:
                raise DeliveryError(hook.id, "configuration", str(error)) from error
            self._sender = Sender(self._keys, allow_private=self._allow_private)
        return self._sender

    async def _retry(self, hook: HookData, attempt: Callable[[float], Awaitable[T]], timeout: float | None = None) -> T:
        """Try a delivery until it succeeds, and return the result of the successful try.

        Args:
            hook: The hook whose delivery is tried.
            attempt: Makes one try; its argument is the number of seconds left.
            timeout: Seconds within which a try may begin; the webhook's timeout by default.

        Raises:
            DeliveryError: The error of the last try.
        """
        ends = perf_counter() + (hook.webhook.timeout if timeout is None else timeout)
        nth = 1
        while True:
            try:
                return await attempt(max(0.001, ends - perf_counter()))
            except DeliveryError as error:
                pause = max(FIRST_PAUSE * 2 ** (nth - 1) * _jitter.uniform(0.5, 1.5), error.retry_after or 0.0)
                if nth == self._tries or not is_retryable(error) or perf_counter() + pause >= ends:
                    raise
            await asyncio.sleep(pause)
            nth += 1


class LocalFunctions:
    """The functions of this process that receive deliveries to `local://name`."""

    def __init__(self) -> None:
        self._served: dict[str, ServedBy] = {}

    @contextlib.contextmanager
    def serve_name(self, name: str, handler: ServedBy) -> Iterator[None]:
        """Call a function with each delivery to a name, while the context is open.

        Raises:
            HookUsageError: If the name is invalid, or is served already.
        """
        printable = isinstance(name, str) and name.isascii() and name.isprintable() and " " not in name
        if not printable or not name or urlsplit(f"local://{name}").netloc != name:
            raise HookUsageError(f"`serve` needs a name as in local://name; got {quote(name)}.")
        if not callable(handler):
            raise HookUsageError(f"`serve` needs an async function of an envelope; got {quote(handler)}.")
        if name in self._served:
            raise HookUsageError(f"local://{name} is already served; each name has one function at a time.")
        self._served[name] = handler
        try:
            yield
        finally:
            del self._served[name]

    async def call(self, envelope: Envelope, timeout: float) -> ControlAnswer:
        """Deliver an envelope to the function that serves its name.

        Raises:
            DeliveryError: If no function serves the name, or the function fails or takes too long.
        """
        hook = envelope.hook
        name = urlsplit(hook.webhook.url).netloc
        handler = self._served.get(name)
        if handler is None:
            problem = f"no function in this process serves local://{name}; open `delivery.serve({name!r}, ...)` first"
            raise DeliveryError(hook.id, "configuration", problem)
        try:
            async with asyncio.timeout(timeout) as limit:
                answer = await handler(envelope)
        except DeliveryError:
            raise
        except Exception as error:
            if limit.expired() and isinstance(error, TimeoutError):
                problem = f"local://{name} did not answer within {timeout:g} s"
                raise DeliveryError(hook.id, "timeout", problem) from None
            problem = f"the function that serves local://{name} raised {type(error).__name__}"
            raise DeliveryError(hook.id, "http_error", problem) from error
        return check_answer(hook.id, answer) if hook.webhook.control else ControlAnswer()


def is_local(hook: HookData) -> bool:
    """Return whether a hook delivers to a function of a process (`local://`)."""
    return urlsplit(hook.webhook.url).scheme == "local"


def is_retryable(error: DeliveryError) -> bool:
    """Return whether the same delivery may succeed later without anybody changing anything."""
    if error.code == "http_error":
        status = error.status_code
        return status is None or status in (408, 425, 429) or status >= 500
    return error.code in ("network_error", "timeout")


def require_asyncio() -> None:
    """Raise unless the running event loop is asyncio's.

    Raises:
        HookUsageError: If another event loop, such as trio's, is running.
    """
    if not runs_on_asyncio():
        raise HookUsageError(
            "Webhooks need asyncio, and this program runs on trio. Use a hook with a `handler` that sends the event."
        )
