"""`Sender`: send one delivery over HTTP once, signed, and only to addresses that may be reached."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache, partial
from importlib.metadata import version
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from hookline.delivery._addresses import AddressGuard, BlockedAddressError
from hookline.delivery._control_answers import read_answer, read_host_answer
from hookline.delivery._master_keys import MasterKeyError
from hookline.delivery._retries import parse_retry_after
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
    from aiohttp.abc import AbstractResolver, ResolveResult
    from multidict import CIMultiDict
except ImportError:
    raise MissingExtraError("server", "Sending webhooks over HTTP") from None

if TYPE_CHECKING:
    from hookline.delivery._endpoint_secrets import EndpointSecrets

__all__ = ["Sender", "Sent"]

LOOKUP_THREADS = 64
"""Host names that can be looked up at a time. A lookup whose name server is silent holds its thread for about 10 s."""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery that the receiver accepted.

    Attributes:
        status_code: The status of the receiver's answer: 2xx.
        duration_ms: Milliseconds from the start of the attempt until the answer began.
    """

    status_code: int
    duration_ms: float


class Sender:
    """Sends deliveries over HTTP, one attempt at a time.

    Every request is signed. Redirects are not followed, the environment's proxy settings are ignored, answers are not
    decompressed, and at most `max_response` bytes of an answer are read. Connections go to public addresses only.

    The connections belong to the event loop in which the sender is first used; `aclose` closes them.

    Args:
        keys: The keys that sign.
        allow_private: Networks (`"10.0.0.0/8"`) that may be reached although they are not public.
        ports: The ports that may be reached; all unless given.
        max_response: Bytes of an answer that are read at most.
        connections: Open connections at a time at most; one receiver gets a fifth of them at most.
        signed_answers: Whether the answers of controls must be signed, as `WebhookGuard(signed_answers=True)` does.
        secrets: Secrets of endpoints in a store, which sign in place of `keys`.
        tls: TLS settings, for receivers whose certificates come from a private authority.

    Raises:
        HookDefinitionError: If an argument is invalid.
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
            raise HookDefinitionError("Sender", f"`keys` must be a KeyRing; got {type(keys).__name__}")
        if connections < 1 or max_response < 1:
            raise HookDefinitionError("Sender", "`connections` and `max_response` must be at least 1")
        self.keys = keys
        self.secrets = secrets
        self._guard = AddressGuard(allow_private, ports)
        self._max_response, self._connections = max_response, connections
        self._signed_answers, self._tls = signed_answers, tls
        self._agent = _user_agent()
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def send(self, envelope: Envelope) -> Sent:
        """Attempt a delivery once, within the timeout of its webhook.

        Args:
            envelope: The delivery.

        Raises:
            DeliveryError: If the receiver did not accept it.
        """
        started = perf_counter()
        receiver = _receiver_origin(envelope.hook)
        # No agent waits for this delivery, so the receiver's timeout starts after the signing secret is read.
        headers = await self._build_headers(envelope, {})
        async with self._post(envelope, receiver, envelope.hook.webhook.timeout, headers) as response:
            duration_ms = (perf_counter() - started) * 1e3
            await self._drain(response)
            return Sent(status_code=response.status, duration_ms=duration_ms)

    async def ask(self, envelope: Envelope, timeout: float) -> ControlAnswer:
        """Ask a control once.

        Args:
            envelope: The question.
            timeout: Seconds within which the answer has to come; the header `hookline-deadline` tells the receiver
                that moment in unix milliseconds.

        Raises:
            DeliveryError: If no valid answer came in time.
        """
        hook_id = envelope.hook.id
        deadline = {"hookline-deadline": str(int((time.time() + timeout) * 1e3))}
        began = perf_counter()
        receiver = _receiver_origin(envelope.hook)
        headers = await self._build_headers(envelope, deadline, timeout)
        async with self._post(envelope, receiver, timeout, headers, spent=perf_counter() - began) as response:
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                raise DeliveryError(
                    hook_id, "invalid_response", "the answer is compressed, although no compression was requested"
                )
            body = await self._read_body(response)
            if body is None:
                problem = f"the answer is longer than {self._max_response} bytes"
                raise DeliveryError(hook_id, "response_too_large", problem, status_code=response.status)
            if self._signed_answers:
                await self._check_signature(envelope, response, body)
        own = envelope.hook.webhook.dialect == "hookline"
        return read_answer(hook_id, body) if own else read_host_answer(envelope.hook, body)

    async def aclose(self) -> None:
        """Close the connections; requests still under way fail."""
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
    async def _post(
        self, envelope: Envelope, receiver: str, timeout: float, headers: CIMultiDict[str], *, spent: float = 0.0
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Post a delivery, and yield the response if its status is 2xx.

        Raises:
            DeliveryError: If the status is another one, or no response comes.
        """
        hook = envelope.hook
        session = await self._open_session()
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
                    raise _status_error(hook.id, receiver, response)
                yield response
        except TimeoutError:
            raise DeliveryError(hook.id, "timeout", f"{receiver} did not answer within {timeout:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _connection_error(hook.id, receiver, error) from None

    async def _build_headers(
        self, envelope: Envelope, more: dict[str, str], timeout: float | None = None
    ) -> CIMultiDict[str]:
        hook = envelope.hook
        headers = CIMultiDict({"user-agent": self._agent})
        for name, template in hook.webhook.headers.items():
            headers[name] = _fill_header(hook, name, template)
        ring, key = await self._find_signing_key(hook, timeout)
        try:
            signed = sign(envelope.id, int(time.time()), envelope.payload, ring, name=key)
        except WebhookKeyError as error:
            raise DeliveryError(hook.id, "configuration", str(error)) from None
        if envelope.number is not None:
            headers["hookline-event-number"] = str(envelope.number)
        headers.update({"content-type": "application/json", "accept-encoding": "identity", **more, **signed})
        return headers

    async def _find_signing_key(self, hook: HookData, timeout: float | None = None) -> tuple[KeyRing, str]:
        """Return the key ring that signs for a hook, and the name of the key in it.

        Raises:
            DeliveryError: If the secret cannot be read in time. `__cause__` says whether the master key or the
                database was missing.
        """
        if self.secrets is None:
            return self.keys, hook.webhook.key
        try:
            if timeout is None:
                return await self.secrets.ring_of(hook)
            async with asyncio.timeout(timeout):
                return await self.secrets.ring_of(hook)
        except TimeoutError as error:
            raise DeliveryError(hook.id, "timeout", "its signing secret could not be read in time") from error
        except (MasterKeyError, StoreUnavailableError) as error:
            raise DeliveryError(hook.id, "configuration", str(error)) from error

    async def _open_session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is not None and self._loop is loop:
            return self._session
        if self._loop is not None and not self._loop.is_closed():
            raise HookUsageError("This Sender is used by another event loop; create one for each loop.")
        connector = aiohttp.TCPConnector(
            limit=self._connections,
            limit_per_host=max(1, self._connections // 5),
            resolver=_NameResolver(),
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

    async def _read_body(self, response: aiohttp.ClientResponse) -> bytes | None:
        """Read the body of a response; if it is too long, close the connection and return `None`."""
        parts, length = [], 0
        async for part in response.content.iter_any():
            parts.append(part)
            length += len(part)
            if length > self._max_response:
                response.close()
                return None
        return b"".join(parts)

    async def _drain(self, response: aiohttp.ClientResponse) -> None:
        """Read the rest of a response so that the connection can be reused; errors no longer matter."""
        try:
            await self._read_body(response)
        except (aiohttp.ClientError, OSError):  # the status 2xx has come, and the body does not change it
            response.close()

    async def _check_signature(self, envelope: Envelope, response: aiohttp.ClientResponse, body: bytes) -> None:
        given = [(name, value) for name, value in response.headers.items() if name.lower() in SIGNATURE_HEADERS]
        ring, _ = await self._find_signing_key(envelope.hook, envelope.hook.webhook.timeout)
        try:
            verified = verify(given, body, ring)
            if verified.id != ANSWER_PREFIX + envelope.id:
                raise WebhookVerificationError("it answers another delivery")
        except WebhookVerificationError as error:
            problem = f"the answer has no valid signature: {error.reason}"
            raise DeliveryError(envelope.hook.id, "invalid_response", problem) from None


@cache
def _user_agent() -> str:
    """Return the name by which receivers know hookline. To read its version takes 2 ms."""
    return f"hookline/{version('hookline')}"


class _NameResolver(AbstractResolver):
    """Look up host names with the operating system's resolver, in threads that only this sender uses.

    aiohttp's own `ThreadedResolver` uses the default threads of the event loop. Those are few and belong to the
    application: names whose lookup hangs would take all of them.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUP_THREADS, thread_name_prefix="hookline-lookup")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a host name.

        Raises:
            OSError: If the name has no address.
        """
        look_up = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=int(address[1]),
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        """Release the threads without waiting for them; a thread whose lookup hangs ends with the lookup."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _receiver_origin(hook: HookData) -> str:
    """Return the scheme and host of a hook's URL for error messages, since path and query may hold secrets.

    Raises:
        DeliveryError: If the URL is no usable HTTP URL.
    """
    try:
        parts = urlsplit(hook.webhook.url)
        if parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc:
            return f"{parts.scheme}://{parts.netloc}"
    except ValueError:
        pass
    raise DeliveryError(hook.id, "configuration", "its `url` must be an http:// or https:// URL without a user")


def _fill_header(hook: HookData, name: str, template: str) -> str:
    """Fill the environment variables into a header's template.

    Raises:
        DeliveryError: If a variable is missing, or the header may not be sent. The error never shows a value.
    """

    def problem(text: str) -> DeliveryError:
        return DeliveryError(hook.id, "configuration", f"the header {name!r:.100} {text}")

    if not HEADER_NAME.fullmatch(name) or name.lower() in RESERVED_HEADERS:
        raise problem("may not be set by a hook")
    for variable in VARIABLE.findall(template):
        if variable not in hook.webhook.allowed_env_vars:
            raise problem(f"uses ${{{variable}}}, which is not in `allowed_env_vars`")
        if variable not in os.environ:
            raise problem(f"uses ${{{variable}}}, which is not set in the sending process")
    value = VARIABLE.sub(lambda found: os.environ[found[1]], template)
    if CONTROL_CHARACTER.search(value):
        raise problem("contains a line break or a control character")
    return value


def _status_error(hook_id: str, receiver: str, response: aiohttp.ClientResponse) -> DeliveryError:
    status = response.status
    return DeliveryError(
        hook_id,
        "gone" if status == 410 else "http_error",
        f"{receiver} answered {status}" + (", and redirects are not followed" if 300 <= status < 400 else ""),
        status_code=status,
        retry_after=parse_retry_after(response.headers.get("retry-after")),
    )


def _connection_error(hook_id: str, receiver: str, error: Exception) -> DeliveryError:
    cause: Any = getattr(error, "os_error", error)
    if isinstance(cause, BlockedAddressError):
        return DeliveryError(hook_id, "blocked", f"{receiver} may not be reached: {cause}")
    if isinstance(error, aiohttp.InvalidURL):
        return DeliveryError(hook_id, "configuration", "its `url` cannot be parsed")
    if isinstance(error, aiohttp.ClientConnectorError):
        what = f"no connection ({cause.strerror or type(cause).__name__})"
    else:
        what = type(error).__name__
    return DeliveryError(hook_id, "network_error", f"{receiver}: {what}")
