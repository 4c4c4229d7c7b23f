"""Whom a request comes from: the proxies that may say it, the address, and the network that it counts for.

uvicorn reads `X-Forwarded-For` where a trusted proxy sends it, and puts the address into the scope of the request.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from hookline.asgi import Scope
from hookline.errors import HookUsageError

__all__ = ["check_proxies", "client_address", "network_of"]


def check_proxies(given: Sequence[str]) -> list[str]:
    """Return the addresses and networks of proxies whose `X-Forwarded-For` is trusted.

    Raises:
        HookUsageError: If one is neither: a name could resolve to anything, and `*` would let anybody forge addresses.
    """
    if isinstance(given, str):
        raise HookUsageError(f"`trusted_proxies` must be a list of addresses or networks; got the text {given!r:.200}.")
    for each in given:
        try:
            ipaddress.ip_network(each)
        except (TypeError, ValueError):
            raise HookUsageError(
                f"`trusted_proxies` must be addresses or networks, as '10.0.0.7' or '10.0.0.0/8'; got {each!r:.200}."
            ) from None
    return list(given)


def client_address(scope: Scope) -> str:
    """Return the address of the client; `""` if the server does not know it."""
    client = scope.get("client")
    return str(client[0])[:100] if client else ""


def network_of(address: str) -> str:
    """Return what an address is counted as: for IPv6 its /64 network, since every client has at least one."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))
