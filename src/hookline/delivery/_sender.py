"""`Sender`: one attempt at one delivery over HTTP, signed, and kept from where it may not go."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import partial
from importlib.metadata import version
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

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

if TYPE_CHECKING:
    from hookline.delivery._endpoint_secrets import EndpointSecrets

__all__ = ["AddressGuard", "BlockedAddressError", "Lookups", "Sender", "Sent"]

THREADS = 64
"""How many names may be looked up at a time. One whose servers are silent keeps its thread for some ten seconds."""


class Lookups(AbstractResolver):
    """The operating system's lookups, in threads of their own.

    The threads of the event loop are a handful, and belong to the application: names that hang would take them all.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="hookline-lookup")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of a name.

        Raises:
            OSError: If it has none.
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
        """Let go of the threads; one that hangs ends when its lookup does."""
        self._threads.shutdown(wait=False, cancel_futures=True)


Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

NAT64 = IPv6Network("64:ff9b::/96")
PUBLIC_IPV6 = IPv6Network("2000::/3")
"""All that is given out for the public internet. What is outside of it is local, or a way around."""
NEVER_PUBLIC: tuple[Network, ...] = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",
            "100.64.0.0/10",
            "168.63.129.16/32",  # Azure answers for the virtual machine's host there
            "192.0.0.0/24",
            "192.88.99.0/24",
            "2001::/23",  # Teredo is in it
            "2002::/16",  # 6to4 carries any IPv4 address
            "3fff::/20",
        ),
    )
)
"""What `is_global` of this or an older Python takes for public, and is not, or leads elsewhere."""


class BlockedAddressError(OSError):
    """A connection to an address that is not public, and that was not allowed."""


class AddressGuard:
    """Makes the sockets of a client, and refuses addresses that are not public.

    It judges the address of each connect, after names have been resolved, so that no spelling of an address and no name
    that changes its mind gets around it.

    Args:
        allow_private: Networks (`"10.0.0.0/8"`) that may be reached although they are not public.
        ports: The ports that may be reached; all unless given.

    Raises:
        HookDefinitionError: If a network or a port cannot be read.
    """

    def __init__(self, allow_private: Iterable[str] = (), ports: Collection[int] | None = None) -> None:
        if isinstance(allow_private, str):
            raise HookDefinitionError("allow_private", "it is a list of networks, such as ['10.0.0.0/8']; got a string")
        self._allowed = tuple(_network(text) for text in allow_private)
        if ports is not None and not all(isinstance(port, int) and 0 < port < 65_536 for port in ports):
            raise HookDefinitionError("ports", f"ports are whole numbers from 1 to 65535; got {ports!r:.200}")
        self._ports = None if ports is None else frozenset(ports)

    def socket(self, found: tuple[Any, ...]) -> socket.socket:
        """The socket for an address as `getaddrinfo` gives it: the `socket_factory` of a client.

        Raises:
            BlockedAddressError: If it may not be reached.
        """
        family, kind, protocol, _, (host, port, *_rest) = found
        self.check(host, port)
        return socket.socket(family=family, type=kind, proto=protocol)

    def check(self, host: str, port: int) -> None:
        """Refuse an address.

        Args:
            host: The address, in the one form that the operating system gives it.
            port: The port.

        Raises:
            BlockedAddressError: If it may not be reached.
        """
        # The texts are the same for every address, so that a client that tries several still raises this very class.
        if self._ports is not None and port not in self._ports:
            raise BlockedAddressError("its port is not among the allowed ports")
        address = _inner(ip_address(host))
        if not is_public(address) and not any(address in network for network in self._allowed):
            raise BlockedAddressError("its address is not public; `allow_private` names networks that may be reached")


def is_public(address: Address) -> bool:
    """Whether an address belongs to the public internet, and to one receiver in it."""
    if isinstance(address, IPv6Address) and address not in PUBLIC_IPV6:
        return False
    if address.is_multicast or not address.is_global:
        return False
    return not any(address in network for network in NEVER_PUBLIC)


def _inner(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, where it does."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in NAT64:
            return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _network(text: object) -> Network:
    try:
        if isinstance(text, str):
            return ip_network(text.strip())
    except ValueError as error:
        raise HookDefinitionError("allow_private", f"{error}; name networks, such as '10.0.0.0/8'") from None
    raise HookDefinitionError("allow_private", f"networks are strings, such as '10.0.0.0/8'; got {text!r:.200}")


try:
    import aiohttp
    from multidict import CIMultiDict

except ImportError:
    raise MissingExtraError("server", "Sending webhooks over HTTP") from None

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
