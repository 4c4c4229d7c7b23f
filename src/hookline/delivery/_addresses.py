"""Block deliveries to private addresses (SSRF protection), checked on the address that is really connected to."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Any, TypeAlias

from hookline.errors import HookDefinitionError

__all__ = ["AddressGuard", "BlockedAddressError"]

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

NAT64 = IPv6Network("64:ff9b::/96")
PUBLIC_IPV6 = IPv6Network("2000::/3")
"""Addresses allocated for the public internet. All others are local, or tunnel to other networks."""
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
"""Networks that `is_global` of some Python version calls public, although they are private or tunnel elsewhere."""


class BlockedAddressError(OSError):
    """A connection was refused because its address is not public and not in `allow_private`."""


class AddressGuard:
    """Creates the sockets of an HTTP client, and refuses addresses that are not public.

    The address of each connection is checked after names are resolved, so that neither an unusual spelling of an
    address nor a name that resolves differently the second time (DNS rebinding) gets around the check.

    Args:
        allow_private: Networks (`"10.0.0.0/8"`) that may be reached although they are not public.
        ports: The ports that may be reached; all unless given.

    Raises:
        HookDefinitionError: If a network or a port cannot be read.
    """

    def __init__(self, allow_private: Iterable[str] = (), ports: Collection[int] | None = None) -> None:
        if isinstance(allow_private, str):
            raise HookDefinitionError(
                "allow_private", "it must be a list of networks, such as ['10.0.0.0/8']; got a string"
            )
        self._allowed = tuple(_parse_network(text) for text in allow_private)
        if ports is not None and not all(isinstance(port, int) and 0 < port < 65_536 for port in ports):
            raise HookDefinitionError("ports", f"ports must be whole numbers from 1 to 65535; got {ports!r:.200}")
        self._ports = None if ports is None else frozenset(ports)

    def socket(self, found: tuple[Any, ...]) -> socket.socket:
        """Create the socket for an address as `getaddrinfo` returns it; serves as the client's `socket_factory`.

        Raises:
            BlockedAddressError: If the address may not be reached.
        """
        family, kind, protocol, _, (host, port, *_rest) = found
        self.check(host, port)
        return socket.socket(family=family, type=kind, proto=protocol)

    def check(self, host: str, port: int) -> None:
        """Raise if an address may not be reached.

        Args:
            host: The address, in the one form that the operating system gives it.
            port: The port.

        Raises:
            BlockedAddressError: If the address may not be reached.
        """
        # The texts are the same for every address, so that a client that tries several still raises this very class.
        if self._ports is not None and port not in self._ports:
            raise BlockedAddressError("its port is not allowed")
        address = _embedded_ipv4(ip_address(host))
        if not is_public(address) and not any(address in network for network in self._allowed):
            raise BlockedAddressError("its address is not public; allow its network with `allow_private`")


def is_public(address: Address) -> bool:
    """Return whether an address belongs to one receiver on the public internet (multicast does not)."""
    if isinstance(address, IPv6Address) and address not in PUBLIC_IPV6:
        return False
    if address.is_multicast or not address.is_global:
        return False
    return not any(address in network for network in NEVER_PUBLIC)


def _embedded_ipv4(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address embeds (IPv4-mapped or NAT64), else the address itself."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in NAT64:
            return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _parse_network(text: object) -> Network:
    try:
        if isinstance(text, str):
            return ip_network(text.strip())
    except ValueError as error:
        raise HookDefinitionError("allow_private", f"{error}; use networks such as '10.0.0.0/8'") from None
    raise HookDefinitionError("allow_private", f"networks must be strings, such as '10.0.0.0/8'; got {text!r:.200}")
