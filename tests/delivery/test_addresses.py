"""Addresses: nothing that is not public is connected to, however it is spelled, unless it was allowed."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.delivery import HookData, KeyRing, Sender, Webhook, generate_key
from hookline.delivery._addresses import AddressGuard, BlockedAddressError
from hookline.errors import DeliveryError, HookDefinitionError
from tests.tables import for_each

from .envelopes import envelope_to
from .receivers import Receiver, ok, redirect

pytestmark = pytest.mark.anyio

SIXTEEN = [
    "127.0.0.1",
    "localhost",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0",
    "0.0.0.0",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "169.254.169.254",
    "10.0.0.1",
    "192.168.0.1",
    "100.64.0.1",
    "[fd00::1]",
    "[64:ff9b::7f00:1]",
    "224.0.0.1",
]
MORE = [
    "0177.0.0.1",
    "127.0.0.1.",
    "172.16.0.1",
    "255.255.255.255",
    "240.0.0.1",
    "192.0.0.192",
    "168.63.129.16",
    "[::]",
    "[::127.0.0.1]",
    "[::ffff:10.0.0.1]",
    "[::ffff:a9fe:a9fe]",
    "[2002:7f00:1::]",
    "[2002:a00:1::1]",
    "[2001:0:a00:1::1]",
    "[2001:0:5ef5:79fd:0:59d:80ff:fffe]",
    "[64:ff9b:1::a00:1]",
    "[fe80::1]",
    "[fec0::1]",
    "[ff02::1]",
    "[fd00:ec2::254]",
    "[2001:db8::1]",
    "[3fff::1]",
    "[100::1]",
]


@for_each("host", SIXTEEN + MORE)
async def test_a_form_of_a_private_address_is_blocked_and_nothing_arrives(host: str) -> None:
    async with Receiver() as receiver, Sender(KeyRing({"": [generate_key()]})) as sender:
        with pytest.raises(DeliveryError) as caught:
            await sender.send(envelope_to(f"http://{host}:{receiver.port}/hook", timeout=5.0))

        # Newer versions of aiohttp refuse some old spellings of IPv4 addresses before they are looked up.
        assert caught.value.code in ("blocked", "configuration")
        assert receiver.connections == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f000001", "[::ffff:127.0.0.1]"])
async def test_an_allowed_network_is_reached_in_every_spelling(host: str) -> None:
    networks = ["127.0.0.0/8"]
    async with Receiver() as receiver, Sender(KeyRing({"": [generate_key()]}), allow_private=networks) as sender:
        sent = await sender.send(envelope_to(f"http://{host}:{receiver.port}/hook"))

        assert sent.status_code == 200
        assert len(receiver.requests) == 1


async def test_what_was_allowed_allows_nothing_else() -> None:
    async with (
        Receiver() as receiver,
        Sender(KeyRing({"": [generate_key()]}), allow_private=["127.0.0.2/32", "::1/128"]) as sender,
    ):
        with pytest.raises(DeliveryError, match="blocked"):
            await sender.send(envelope_to(receiver.url))


async def test_a_name_that_changes_its_mind_is_judged_by_where_it_leads_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: the first answer is public, that of the connect is not."""
    asked: list[str] = []
    found = socket.getaddrinfo

    def rebinding(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host != "rebinding.example":
            return found(host, *args, **kwargs)
        asked.append(host)
        return found("127.0.0.1", *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    async with Receiver() as receiver, Sender(KeyRing({"": [generate_key()]})) as sender:
        with pytest.raises(DeliveryError, match="blocked"):
            await sender.send(envelope_to(f"http://rebinding.example:{receiver.port}/"))

        assert asked
        assert receiver.connections == 0


async def test_a_redirect_to_a_private_address_is_not_followed() -> None:
    keys = KeyRing({"": [generate_key()]})
    async with (
        Receiver() as inner,
        Receiver(host="127.0.0.2") as outer,
        Sender(keys, allow_private=["127.0.0.2/32"]) as sender,
    ):
        for code in (301, 302, 303, 307, 308):
            outer.says(redirect(inner.url, code))
            with pytest.raises(DeliveryError, match="redirects are not followed") as caught:
                await sender.send(envelope_to(outer.url))
            assert (caught.value.code, caught.value.status_code) == ("http_error", code)
        assert inner.connections == 0


async def test_only_the_allowed_ports_are_reached() -> None:
    async with Receiver() as receiver, Receiver() as other:
        receiver.says(ok())
        keys = KeyRing({"": [generate_key()]})
        async with Sender(keys, allow_private=["127.0.0.0/8"], ports=[receiver.port]) as sender:
            assert await sender.send(envelope_to(receiver.url))
            with pytest.raises(DeliveryError, match="port is not allowed") as caught:
                await sender.send(envelope_to(other.url))

        assert caught.value.code == "blocked"
        assert other.connections == 0


@pytest.mark.parametrize("given", ["127.0.0.0/8", ["nonsense"], [""], ["10.0.0.1/8"], [10], [None]])
def test_networks_that_are_none_are_refused(given: Any) -> None:
    with pytest.raises(HookDefinitionError, match="allow_private"):
        AddressGuard(given)


@for_each("ports", [[0], [65_536], ["80"], [None]])
def test_ports_that_are_none_are_refused(ports: Any) -> None:
    with pytest.raises(HookDefinitionError, match="ports"):
        AddressGuard(ports=ports)


@for_each("host", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"])
def test_a_public_address_is_let_through(host: str) -> None:
    AddressGuard().check(host, 443)


PRIVATE = [
    ip_network(text) for text in ("10.0.0.0/8", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16")
]


@given(st.sampled_from(PRIVATE), st.integers(0, 2**24))
def test_no_way_of_carrying_a_private_address_gets_through(network: Any, offset: int) -> None:
    inner = int(IPv4Address(int(network.network_address) + offset % network.num_addresses))
    carried = [
        IPv4Address(inner),
        IPv6Address(0xFFFF << 32 | inner),  # mapped
        IPv6Address(inner),  # compatible
        IPv6Address(0x0064FF9B << 96 | inner),  # NAT64
        IPv6Address(0x2002 << 112 | inner << 80 | 1),  # 6to4
        IPv6Address(0x20010000 << 96 | 0x08080808 << 64 | inner ^ 0xFFFFFFFF),  # Teredo
    ]

    for address in carried:
        with pytest.raises(BlockedAddressError):
            AddressGuard().check(str(address), 443)


def test_a_hook_is_data_and_cannot_allow_anything() -> None:
    assert not {"allowPrivate", "ports"} & set(Webhook.__struct_encode_fields__ + HookData.__struct_encode_fields__)
