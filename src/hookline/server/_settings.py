"""`ServerSettings`: what a server was configured with."""

from __future__ import annotations

from typing import Self

import msgspec

from hookline.server._limits import ServerLimits
from hookline.server._rates import RateLimit

__all__ = ["RequestRate", "ServerSettings", "SizeLimits"]


class RequestRate(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A limit of the rate of requests.

    Attributes:
        requests: Number of requests; all of them may come at once.
        seconds: Seconds in which the whole allowance refills.
    """

    requests: int
    seconds: float

    @classmethod
    def from_limit(cls, limit: RateLimit | None) -> Self | None:
        """Describe a limit; `None` is no limit."""
        return None if limit is None else cls(requests=limit.requests, seconds=limit.seconds)


class SizeLimits(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The limits of one server process.

    Attributes:
        max_body_bytes: Largest body of a request, in bytes.
        max_headers_bytes: Largest address and headers of a request together, in bytes.
        header_timeout: Seconds within which the headers have to arrive.
        body_timeout: Seconds for which a body may stall, or the reading of an answer.
        max_connections: Number of open connections.
    """

    max_body_bytes: int
    max_headers_bytes: int
    header_timeout: float
    body_timeout: float
    max_connections: int

    @classmethod
    def from_limits(cls, limits: ServerLimits) -> Self:
        """Describe the limits of a server."""
        return cls(
            max_body_bytes=limits.max_body,
            max_headers_bytes=limits.max_headers,
            header_timeout=limits.header_timeout,
            body_timeout=limits.body_timeout,
            max_connections=limits.max_connections,
        )


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The settings of a server, as the code or the command line has given them.

    Attributes:
        limits: Sizes, timeouts and connections; `None` if they are not known.
        key_rate: Requests that each key may send; `None` for any number.
        tenant_rate: Requests that all keys of a tenant may send together; `None` for any number.
        agents: Ids of the agents whose operations this process resumes.
        allow_origins: Origins whose pages may use the API.
        allow_missing_hooks: Whether operations are resumed without interceptors that they were started with.
        has_page: Whether the server has the web page.
        has_session_key: Whether sessions of the page survive a restart.
        request_hooks: Number of hooks for requests, besides the stored ones.
    """

    limits: SizeLimits | None = None
    key_rate: RequestRate | None = None
    tenant_rate: RequestRate | None = None
    agents: list[str] = []
    allow_origins: list[str] = []
    allow_missing_hooks: bool = False
    has_page: bool = False
    has_session_key: bool = False
    request_hooks: int = 0
