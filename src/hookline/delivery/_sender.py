"""`Sender`: one attempt at one delivery over HTTP, signed, and kept from where it may not go."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from datetime import UTC
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from hookline.delivery._addresses import AddressGuard, BlockedAddressError
from hookline.delivery._control_answers import read_answer
from hookline.delivery._master_keys import MasterKeyError
from hookline.delivery._signing import (
    ANSWER_PREFIX,
    SIGNATURE_HEADERS,
    KeyRing,
    WebhookKeyError,
    WebhookVerificationError,
    sign,
    verify,
)
from hookline.errors import (
    DeliveryError,
    HookDefinitionError,
    HookUsageError,
    MissingExtraError,
    StoreUnavailableError,
)
from hookline.webhooks import (
    CONTROL_CHARACTER,
    HEADER_NAME,
    RESERVED_HEADERS,
    VARIABLE,
    ControlAnswer,
    Envelope,
    HookData,
)

try:
    import aiohttp
    from multidict import CIMultiDict

    from hookline.delivery._lookups import Lookups
except ImportError:
    raise MissingExtraError("server", "Sending webhooks over HTTP") from None

if TYPE_CHECKING:
    from hookline.delivery._endpoint_secrets import EndpointSecrets

__all__ = ["Sender", "Sent"]

LONGEST_WAIT = 86_400.0
"""Seconds that a receiver may ask for with `Retry-After`; who asks for more is asked again after a day."""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery was taken.

    Attributes:
        status_code: What the receiver answered: 2xx.
        duration_ms: From the start of the attempt until that answer began.
    """

    status_code: int
    duration_ms: float


class Sender:
    """Sends deliveries over HTTP, one attempt at a time.

    Every request is signed. Redirects are not followed, the proxies of the environment are not used, answers are not
    decompressed, and no more of them is read than `max_response`. Only public addresses are connected to.

    Its connections belong to the event loop in which it is first used, and end with `aclose`.

    Args:
        keys: What signs.
        allow_private: Networks (`"10.0.0.0/8"`) that may be reached although they are not public.
        ports: The ports that may be reached; all unless given.
        max_response: Bytes of an answer that are read.
        connections: How many there may be at a time; one receiver gets a fifth of them at most.
        signed_answers: Whether the answers of controls must be signed, as `WebhookGuard(signed_answers=True)` does.
        secrets: Secrets of endpoints in a store, which sign in place of `keys`.
        tls: How certificates are verified, for receivers with an authority of their own.

    Raises:
        HookDefinitionError: If an argument cannot work.
    """

    def __init__(
        self,
        keys: KeyRing,
        *,
        allow_private: Iterable[str] = (),
        ports: Collection[int] | None = None,
        max_response: int = 65_536,
        connections: int = 500,
        signed_answers: bool = False,
        secrets: EndpointSecrets | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if not isinstance(keys, KeyRing):
            raise HookDefinitionError("Sender", f"`keys` is a KeyRing; got {type(keys).__name__}")
        if connections < 1 or max_response < 1:
            raise HookDefinitionError("Sender", "`connections` and `max_response` are at least 1")
        self.keys = keys
        self.secrets = secrets
        self._guard = AddressGuard(allow_private, ports)
        self._max_response, self._connections = max_response, connections
        self._signed_answers, self._tls = signed_answers, tls
        self._agent = f"hookline/{version('hookline')}"
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def send(self, envelope: Envelope) -> Sent:
        """Attempt a delivery, within the timeout of its webhook.

        Args:
            envelope: What is delivered.

        Raises:
            DeliveryError: If it was not taken.
        """
        started = perf_counter()
        # Nobody waits for it: the time of the receiver begins once the secret that signs is known.
        headers = await self._headers(envelope, {})
        async with self._posted(envelope, envelope.hook.webhook.timeout, headers) as response:
            duration_ms = (perf_counter() - started) * 1e3
            await self._finish(response)
            return Sent(status_code=response.status, duration_ms=duration_ms)

    async def ask(self, envelope: Envelope, timeout: float) -> ControlAnswer:
        """Ask a control once.

        Args:
            envelope: What is asked.
            timeout: Seconds until the answer is too late; the receiver finds that moment in `hookline-deadline`, in
                unix milliseconds.

        Raises:
            DeliveryError: If no valid answer came in time.
        """
        hook_id = envelope.hook.id
        deadline = {"hookline-deadline": str(int((time.time() + timeout) * 1e3))}
        began = perf_counter()
        headers = await self._headers(envelope, deadline, timeout)
        async with self._posted(envelope, timeout, headers, spent=perf_counter() - began) as response:
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                raise DeliveryError(hook_id, "invalid_response", "the answer is compressed, which was not asked for")
            body = await self._read(response)
            if body is None:
                problem = f"the answer is longer than {self._max_response} bytes"
                raise DeliveryError(hook_id, "response_too_large", problem, status_code=response.status)
            if self._signed_answers:
                await self._check_signature(envelope, response, body)
        return read_answer(hook_id, body)

    async def aclose(self) -> None:
        """Close the connections; what is still under way fails."""
        session, self._session, self._loop = self._session, None, None
        if session is not None:
            await session.close()

    async def __aenter__(self) -> Sender:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"Sender({self.keys!r})"

    @asynccontextmanager
    async def _posted(
        self, envelope: Envelope, timeout: float, headers: CIMultiDict[str], *, spent: float = 0.0
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Post a delivery, and keep the answer open, if it is a good one.

        Raises:
            DeliveryError: If it is not, or none comes.
        """
        hook = envelope.hook
        receiver = _receiver(hook)
        session = await self._opened()
        try:
            async with session.post(
                hook.webhook.url,
                data=envelope.payload,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=max(0.001, timeout - spent)),
                allow_redirects=False,
            ) as response:
                if not 200 <= response.status < 300:
                    response.close()
                    raise _refused(hook.id, receiver, response)
                yield response
        except TimeoutError:
            raise DeliveryError(hook.id, "timeout", f"{receiver} did not answer within {timeout:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _unreachable(hook.id, receiver, error) from None

    async def _headers(
        self, envelope: Envelope, more: dict[str, str], timeout: float | None = None
    ) -> CIMultiDict[str]:
        hook = envelope.hook
        _receiver(hook)  # what goes nowhere needs no secret
        headers = CIMultiDict({"user-agent": self._agent})
        for name, template in hook.webhook.headers.items():
            headers[name] = _header(hook, name, template)
        ring, key = await self._ring_of(hook, timeout)
        try:
            signed = sign(envelope.id, int(time.time()), envelope.payload, ring, name=key)
        except WebhookKeyError as error:
            raise DeliveryError(hook.id, "configuration", str(error)) from None
        if envelope.number is not None:
            headers["hookline-event-number"] = str(envelope.number)
        headers.update({"content-type": "application/json", "accept-encoding": "identity", **more, **signed})
        return headers

    async def _ring_of(self, hook: HookData, timeout: float | None = None) -> tuple[KeyRing, str]:
        """What signs for a hook, and by which name.

        Raises:
            DeliveryError: If nobody can say in time. Its cause tells a key that is not here from one that is wrong.
        """
        if self.secrets is None:
            return self.keys, hook.webhook.key
        try:
            async with asyncio.timeout(timeout):
                return await self.secrets.ring_of(hook)
        except TimeoutError as error:
            raise DeliveryError(hook.id, "timeout", "its signing secret could not be read in time") from error
        except (MasterKeyError, StoreUnavailableError) as error:
            raise DeliveryError(hook.id, "configuration", str(error)) from error

    async def _opened(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is not None and self._loop is loop:
            return self._session
        if self._loop is not None and not self._loop.is_closed():
            raise HookUsageError("This Sender is in use in another event loop; make one for each.")
        connector = aiohttp.TCPConnector(
            limit=self._connections,
            limit_per_host=max(1, self._connections // 5),
            resolver=Lookups(),
            socket_factory=self._guard.socket,
            ssl=True if self._tls is None else self._tls,
        )
        left, self._loop = self._session, loop
        self._session = session = aiohttp.ClientSession(
            connector=connector, trust_env=False, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
        )
        if left is not None:
            await left.close()
        return session

    async def _read(self, response: aiohttp.ClientResponse) -> bytes | None:
        """The body of an answer; `None`, and the connection is gone, if it is too long."""
        parts, length = [], 0
        async for part in response.content.iter_any():
            parts.append(part)
            length += len(part)
            if length > self._max_response:
                response.close()
                return None
        return b"".join(parts)

    async def _finish(self, response: aiohttp.ClientResponse) -> None:
        """Read what else there is, so that the connection can be used again. The delivery was taken all the same."""
        try:
            await self._read(response)
        except (aiohttp.ClientError, OSError):  # the status has come; a body that never ends, or lies, changes nothing
            response.close()

    async def _check_signature(self, envelope: Envelope, response: aiohttp.ClientResponse, body: bytes) -> None:
        given = [(name, value) for name, value in response.headers.items() if name.lower() in SIGNATURE_HEADERS]
        ring, _ = await self._ring_of(envelope.hook, envelope.hook.webhook.timeout)
        try:
            verified = verify(given, body, ring)
            if verified.id != ANSWER_PREFIX + envelope.id:
                raise WebhookVerificationError("it answers another delivery")
        except WebhookVerificationError as error:
            problem = f"the answer is not signed as it must be: {error.reason}"
            raise DeliveryError(envelope.hook.id, "invalid_response", problem) from None


def _receiver(hook: HookData) -> str:
    """Where a delivery goes, for errors: paths and queries may hold secrets.

    Raises:
        DeliveryError: If it is nowhere that can be reached over HTTP.
    """
    try:
        parts = urlsplit(hook.webhook.url)
        if parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc:
            return f"{parts.scheme}://{parts.netloc}"
    except ValueError:
        pass
    raise DeliveryError(hook.id, "configuration", "its `url` is no http:// or https:// address without a user")


def _header(hook: HookData, name: str, template: str) -> str:
    """A header's value, with the variables of this process in their places.

    Raises:
        DeliveryError: If one is missing, or the header may not be sent. It never shows a value.
    """

    def problem(text: str) -> DeliveryError:
        return DeliveryError(hook.id, "configuration", f"the header {name!r:.100} {text}")

    if not HEADER_NAME.fullmatch(name) or name.lower() in RESERVED_HEADERS:
        raise problem("may not be set by a hook")
    for variable in VARIABLE.findall(template):
        if variable not in hook.webhook.allowed_env_vars:
            raise problem(f"names ${{{variable}}}, which is not among `allowed_env_vars`")
        if variable not in os.environ:
            raise problem(f"names ${{{variable}}}, which is not set in the process that sends")
    value = VARIABLE.sub(lambda found: os.environ[found[1]], template)
    if CONTROL_CHARACTER.search(value):
        raise problem("has a line break or a control character in it")
    return value


def _refused(hook_id: str, receiver: str, response: aiohttp.ClientResponse) -> DeliveryError:
    status = response.status
    return DeliveryError(
        hook_id,
        "gone" if status == 410 else "http_error",
        f"{receiver} answered {status}" + (", and redirects are not followed" if 300 <= status < 400 else ""),
        status_code=status,
        retry_after=_retry_after(response.headers.get("retry-after")),
    )


def _retry_after(given: str | None) -> float | None:
    """Seconds from now, whichever of its two forms the header has; `None` if it has neither."""
    if given is None:
        return None
    text = given.strip()
    if text.isascii() and text.isdigit():
        return float(min(int(text[:9]), LONGEST_WAIT))
    try:
        moment = parsedate_to_datetime(text)
        seconds = moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() - time.time()
    except (ValueError, OverflowError, IndexError, TypeError):
        return None
    return min(max(0.0, seconds), LONGEST_WAIT)


def _unreachable(hook_id: str, receiver: str, error: Exception) -> DeliveryError:
    cause: Any = getattr(error, "os_error", error)
    if isinstance(cause, BlockedAddressError):
        return DeliveryError(hook_id, "blocked", f"{receiver} may not be reached: {cause}")
    if isinstance(error, aiohttp.InvalidURL):
        return DeliveryError(hook_id, "configuration", "its `url` cannot be read")
    if isinstance(error, aiohttp.ClientConnectorError):
        what = f"no connection ({cause.strerror or type(cause).__name__})"
    else:
        what = type(error).__name__
    return DeliveryError(hook_id, "network_error", f"{receiver}: {what}")
