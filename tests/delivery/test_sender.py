"""One attempt at one delivery, against receivers that are good, slow, gone, lying and enormous."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable
from email.utils import format_datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.delivery import KeyRing, Sender, Sent, generate_key
from hookline.errors import DeliveryError, HookDefinitionError, HookUsageError
from tests.tables import for_each

from .envelopes import PAYLOAD, envelope_to
from .receivers import (
    Answer,
    Receiver,
    bomb,
    drips,
    enormous,
    garbage,
    hang,
    hangs_up,
    lies_about_its_length,
    ok,
    raw,
    status,
)

pytestmark = pytest.mark.anyio

SECRET = generate_key()
LOOPBACK = ["127.0.0.0/8"]


def sender_of(**options: Any) -> Sender:
    return Sender(KeyRing({"": [SECRET]}), allow_private=LOOPBACK, **options)


async def failure_of(sender: Sender, url: str, **webhook: Any) -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        await sender.send(envelope_to(url, **webhook))
    return caught.value


async def test_a_delivery_arrives_signed_as_it_was_given() -> None:
    async with Receiver([SECRET]) as receiver, sender_of() as sender:
        receiver.says(status(202))
        sent = await sender.send(envelope_to(receiver.url, delivery="msg_7"))

        [request] = receiver.requests
        assert sent == Sent(status_code=202, duration_ms=sent.duration_ms)
        assert 0 < sent.duration_ms < 30_000
        assert (request.method, request.path, request.body, request.id) == ("POST", "/hook", PAYLOAD, "msg_7")
        assert request.headers["content-type"] == "application/json"
        assert request.headers["user-agent"].startswith("hookline/")
        assert not receiver.unsigned


async def test_every_attempt_has_the_same_id_and_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Receiver() as receiver, sender_of() as sender:
        for now in (1_700_000_000.9, 1_700_000_400.0, 1_600_000_000.0):
            monkeypatch.setattr(time, "time", lambda now=now: now)
            await sender.send(envelope_to(receiver.url))

        stamps = [request.headers["webhook-timestamp"] for request in receiver.requests]
        assert receiver.ids == ["msg_1"] * 3
        assert stamps == ["1700000000", "1700000400", "1600000000"]
        assert len({request.headers["webhook-signature"] for request in receiver.requests}) == 3


async def test_every_secret_of_the_named_key_signs_and_no_other() -> None:
    old, new = generate_key(), generate_key()
    keys = KeyRing({"": [SECRET], "billing": [old]})
    async with Receiver() as receiver, Sender(keys, allow_private=LOOPBACK) as sender:
        keys.rotate("billing", new)
        await sender.send(envelope_to(receiver.url, key="billing"))

        [request] = receiver.requests
        assert request.signed_by(old)
        assert request.signed_by(new)
        assert not request.signed_by(SECRET)


async def test_without_a_key_nothing_is_sent() -> None:
    async with Receiver() as receiver, sender_of() as sender:
        error = await failure_of(sender, receiver.url, key="billing")

        assert error.code == "configuration"
        assert "HOOKLINE_WEBHOOK_KEY_BILLING" in str(error)
        assert receiver.connections == 0


@pytest.mark.parametrize(
    ("answer", "code", "status_code"),
    [
        pytest.param(status(400), "http_error", 400, id="400"),
        pytest.param(status(410), "gone", 410, id="410"),
        pytest.param(status(429), "http_error", 429, id="429"),
        pytest.param(status(500, body="x" * 100_000), "http_error", 500, id="500"),
        pytest.param(status(302, location="http://example.com"), "http_error", 302, id="302"),
        pytest.param(status(304), "http_error", 304, id="304"),
        pytest.param(garbage(), "network_error", None, id="garbage"),
        pytest.param(hangs_up(), "network_error", None, id="hangs-up"),
        pytest.param(raw(b"HTTP/1.1 200"), "network_error", None, id="half-a-status"),
        pytest.param(raw(b"HTTP/1.1 200 OK\r\nx: " + b"x" * 100_000), "network_error", None, id="endless-header"),
        pytest.param(raw(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 50_000), "network_error", None, id="endless-headers"),
        pytest.param(hang(), "timeout", None, id="hangs"),
        pytest.param(raw(b"HTTP/1.1 200 OK\r\n", keep=True), "timeout", None, id="half-an-answer"),
        pytest.param(raw(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, keep=True), "timeout", None, id="only-continues"),
    ],
)
async def test_a_bad_answer_is_an_error_that_says_which(answer: Answer, code: str, status_code: int | None) -> None:
    async with Receiver() as receiver, sender_of() as sender:
        receiver.says(answer)
        error = await failure_of(sender, receiver.url, timeout=0.4)

        assert (error.code, error.status_code, error.hook_id) == (code, status_code, "told")


async def test_nobody_there_is_a_network_error() -> None:
    async with Receiver() as receiver:
        gone = receiver.url
    async with sender_of() as sender:
        assert (await failure_of(sender, gone)).code == "network_error"
        assert (await failure_of(sender, "http://nobody.invalid/")).code == "network_error"


@pytest.mark.parametrize(
    "answering",
    [
        pytest.param(lies_about_its_length, id="lies"),
        pytest.param(drips, id="drips"),
        pytest.param(enormous, id="enormous"),
        pytest.param(bomb, id="bomb"),
        pytest.param(lambda: status(200, content_encoding="br", body="no brotli"), id="wrong-encoding"),
    ],
)
async def test_a_delivery_that_was_taken_is_taken_whatever_else_is_said(answering: Callable[[], Answer]) -> None:
    async with Receiver() as receiver, sender_of() as sender:
        receiver.says(answering())
        sent = await sender.send(envelope_to(receiver.url, timeout=0.4))
        receiver.says(ok())
        again = await sender.send(envelope_to(receiver.url, timeout=5.0))

        assert (sent.status_code, again.status_code) == (200, 200)


async def test_of_an_enormous_answer_no_more_is_read_than_was_said() -> None:
    async with Receiver() as receiver, sender_of(max_response=1000) as sender:
        receiver.says(enormous(1 << 32))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(20):
            await sender.send(envelope_to(receiver.url))
            with pytest.raises(DeliveryError) as caught:
                await sender.ask(envelope_to(receiver.url, control=True), 10.0)
            assert caught.value.code == "response_too_large"

        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("7", 7.0),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("99999999999999999999", 86_400.0),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("Wed, 99 Foo 2020", None),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400.0),
        ("٣", None),
    ],
)
async def test_retry_after_is_read_and_bounded(given: str, expected: float | None) -> None:
    async with Receiver() as receiver, sender_of() as sender:
        receiver.says(status(503, retry_after=given))

        assert (await failure_of(sender, receiver.url)).retry_after == expected


@pytest.mark.parametrize("zone", [datetime.UTC, None, datetime.timezone(datetime.timedelta(hours=-7))])
async def test_retry_after_as_a_date_counts_from_now(zone: datetime.timezone | None) -> None:
    moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=100)
    given = format_datetime(moment.replace(tzinfo=None) if zone is None else moment.astimezone(zone))
    async with Receiver() as receiver, sender_of() as sender:
        receiver.says(status(429, retry_after=given))
        error = await failure_of(sender, receiver.url)

        assert error.retry_after == pytest.approx(100, abs=10)


class TestHeaders:
    async def test_variables_are_filled_in_when_it_is_sent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        headers = {"authorization": "Bearer ${TOKEN}/${OTHER}", "x-plain": "ä $TOKEN ${"}
        async with Receiver() as receiver, sender_of() as sender:
            for token in ("one", "two"):
                monkeypatch.setenv("TOKEN", token)
                monkeypatch.setenv("OTHER", "${TOKEN}")
                await sender.send(envelope_to(receiver.url, headers=headers, allowed_env_vars=["TOKEN", "OTHER"]))

            got = [request.headers["authorization"] for request in receiver.requests]
            assert got == ["Bearer one/${TOKEN}", "Bearer two/${TOKEN}"]
            assert receiver.requests[0].headers["x-plain"].encode("latin-1").decode() == "ä $TOKEN ${"

    @pytest.mark.parametrize(
        ("headers", "problem"),
        [
            ({"x-token": "${NOT_SET_HERE}"}, "not set in the sending process"),
            ({"x-token": "${HOME}"}, "not in `allowed_env_vars`"),
            ({"x-token": "${SECRET_WITH_BREAK}"}, "line break"),
            ({"x-token": "hunter2\r\nx: y"}, "line break"),
            ({"x-token": "hunter2\0"}, "control character"),
            ({"x token": "hunter2"}, "may not be set"),
            ({"": "hunter2"}, "may not be set"),
            ({"x\r\ny": "hunter2"}, "may not be set"),
            ({"Webhook-Signature": "hunter2"}, "may not be set"),
            ({"Content-Length": "hunter2"}, "may not be set"),
            ({"HOST": "hunter2"}, "may not be set"),
            ({"Transfer-Encoding": "chunked"}, "may not be set"),
            ({"Hookline-Deadline": "hunter2"}, "may not be set"),
        ],
    )
    async def test_a_header_that_may_not_be_sent_stops_the_delivery(
        self, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], problem: str
    ) -> None:
        monkeypatch.setenv("SECRET_WITH_BREAK", "hunter2\nx-admin: yes")
        allowed = ["NOT_SET_HERE", "SECRET_WITH_BREAK"]
        async with Receiver() as receiver, sender_of() as sender:
            error = await failure_of(sender, receiver.url, headers=headers, allowed_env_vars=allowed)

            assert error.code == "configuration"
            assert problem in str(error)
            assert "hunter2" not in str(error)
            assert receiver.connections == 0

    async def test_no_cookie_of_a_receiver_comes_back_to_it(self) -> None:
        async with Receiver() as receiver, sender_of() as sender:
            receiver.says(status(200, set_cookie="a=b; Path=/"))
            for _ in range(2):
                await sender.send(envelope_to(receiver.url_of("/").replace("127.0.0.1", "localhost")))

            assert all("cookie" not in request.headers for request in receiver.requests)


async def test_the_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Receiver() as proxy, Receiver() as receiver:
        for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(variable, proxy.url)
        async with sender_of() as sender:
            await sender.send(envelope_to(receiver.url))

        assert proxy.connections == 0
        assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/",
        "local://name",
        "nonsense",
        "http://",
        "http://u:hunter2@example.com/",
        "http://[",
        "http://h:99999/",
    ],
)
async def test_an_address_that_is_none_is_a_matter_of_configuration(url: str) -> None:
    async with sender_of() as sender:
        error = await failure_of(sender, url)

        assert error.code == "configuration"
        assert "hunter2" not in str(error)


async def test_no_error_shows_what_is_secret(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    headers = {"authorization": "Bearer ${TOKEN}"}
    async with Receiver() as receiver, sender_of() as sender:
        for answer in (status(500, body="you sent hunter2"), garbage(), hangs_up(), hang()):
            receiver.says(answer)
            url = receiver.url_of("/services/hunter2?token=hunter2")
            error = await failure_of(sender, url, timeout=0.3, headers=headers, allowed_env_vars=["TOKEN"])

            shown = f"{error} {error!r} {error.__cause__!r} {sender!r} {caplog.text}"
            assert "hunter2" not in shown
            assert SECRET not in shown


async def test_a_hung_receiver_holds_back_nobody_else() -> None:
    async with Receiver() as hung, Receiver() as fast, sender_of(connections=20) as sender:
        hung.says(hang())
        async with asyncio.TaskGroup() as group:
            waiting = [
                group.create_task(failure_of(sender, hung.url, timeout=20.0), name=f"hung {nth}") for nth in range(100)
            ]
            await hung.received(4)
            async with asyncio.timeout(10):
                for nth in range(100):
                    await sender.send(envelope_to(fast.url, delivery=f"msg_{nth}"))
            for task in waiting:
                task.cancel()

        assert len(fast.requests) == 100
        assert hung.connections == 4


async def test_names_that_nobody_answers_for_hold_back_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither other deliveries nor what the application does in threads."""
    over, found = threading.Event(), socket.getaddrinfo

    def silent(host: Any, *args: Any, **kwargs: Any) -> Any:
        if str(host).endswith(".example"):
            over.wait(30)
            raise socket.gaierror(socket.EAI_AGAIN, "nobody answers")
        return found(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    async with Receiver() as receiver, sender_of() as sender, asyncio.TaskGroup() as group:
        waiting = [
            group.create_task(failure_of(sender, f"http://silent{nth}.example/", timeout=20.0)) for nth in range(40)
        ]
        try:
            async with asyncio.timeout(10):
                await asyncio.sleep(0)
                assert await sender.send(envelope_to(receiver.url.replace("127.0.0.1", "localhost")))
                assert await asyncio.to_thread(int, "1") == 1
        finally:
            over.set()

        assert {(await task).code for task in waiting} == {"network_error"}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                *(
                    b"HTTP/1.1 200 OK",
                    b"HTTP/1.1 200 OK\r\n",
                    b"HTTP/1.1 500 X\r\n",
                    b"HTTP/1.1 100 \r\n",
                    b"HTTP/9 2 3",
                ),
                *(
                    b"\r\n",
                    b"\r\n\r\n",
                    b"\n",
                    b"\0",
                    b"{}",
                    b": ",
                    b"content-length: 2\r\n",
                    b"content-length: -1\r\n",
                ),
                *(b"transfer-encoding: chunked\r\n", b"2\r\n{}\r\n0\r\n\r\n", b"ffffffffffffffffff\r\n", b"x" * 9000),
                *(
                    b"content-encoding: gzip\r\n",
                    b"retry-after: \xff\r\n",
                    b"location: http://[\r\n",
                    b"connection: upgrade\r\n",
                ),
            ]
        )
        | st.binary(max_size=50),
        max_size=8,
    ).map(b"".join),
    st.booleans(),
)
def test_whatever_a_receiver_says_it_is_an_answer_or_a_delivery_error(said: bytes, keep: bool) -> None:
    async def main() -> None:
        async with Receiver() as receiver, sender_of() as sender:
            receiver.says(raw(said, keep=keep))
            for attempt in (
                lambda: sender.send(envelope_to(receiver.url, timeout=0.1)),
                lambda: sender.ask(envelope_to(receiver.url, control=True), 0.1),
            ):
                with contextlib.suppress(DeliveryError):
                    await attempt()

    asyncio.run(main())


async def test_connections_are_used_again() -> None:
    async with Receiver() as receiver, sender_of() as sender:
        for nth in range(20):
            receiver.says(ok("x" * nth))
            await sender.send(envelope_to(receiver.url))

        assert receiver.connections == 1


async def test_a_receiver_that_comes_back_is_found_again() -> None:
    async with sender_of() as sender:
        async with Receiver() as receiver:
            await sender.send(envelope_to(receiver.url))
        assert (await failure_of(sender, receiver.url)).code == "network_error"
        async with Receiver(port=receiver.port) as back:
            await sender.send(envelope_to(back.url))

            assert len(back.requests) == 1


async def test_a_cancelled_attempt_ends_at_once() -> None:
    async with Receiver() as receiver, sender_of() as sender:
        receiver.says(hang())
        task = asyncio.create_task(sender.send(envelope_to(receiver.url)))
        await receiver.received(1)
        task.cancel()

        with pytest.raises(asyncio.CancelledError):
            await task


async def test_closing_ends_what_is_under_way_and_it_can_be_used_again() -> None:
    async with Receiver() as receiver, sender_of() as sender:
        receiver.says(hang(), ok())
        task = asyncio.create_task(failure_of(sender, receiver.url))
        await receiver.received(1)
        await sender.aclose()

        assert (await task).code == "network_error"
        assert (await sender.send(envelope_to(receiver.url))).status_code == 200


class TestTls:
    @pytest.fixture
    def authority(self, tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """What a receiver and a sender need for a certificate that nobody else knows."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "receiver")])
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        public, both = tmp_path / "public.pem", tmp_path / "both.pem"
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        public.write_bytes(pem)
        both.write_bytes(
            pem
            + key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(both)
        return server, ssl.create_default_context(cafile=str(public))

    async def test_an_unknown_certificate_is_refused(self, authority: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
        async with Receiver(tls=authority[0]) as receiver, sender_of() as sender:
            assert (await failure_of(sender, receiver.url)).code == "network_error"
            assert not receiver.requests

    async def test_an_own_authority_is_trusted(self, authority: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
        async with Receiver([SECRET], tls=authority[0]) as receiver, sender_of(tls=authority[1]) as sender:
            await sender.send(envelope_to(receiver.url))

            assert not receiver.unsigned
            other = receiver.url.replace("127.0.0.1", "127.0.0.2")
            assert (await failure_of(sender, other)).code == "network_error"


@for_each("options", [{"keys": "whsec_x"}, {"connections": 0}, {"max_response": 0}, {"allow_private": "10.0.0.0/8"}])
async def test_arguments_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(HookDefinitionError):
        Sender(**{"keys": KeyRing(), **options})


def test_a_sender_outlives_a_closed_event_loop() -> None:
    sender = sender_of()

    async def once() -> int:
        async with Receiver() as receiver:
            return (await sender.send(envelope_to(receiver.url))).status_code

    assert asyncio.run(once()) == 200
    assert asyncio.run(once()) == 200
    asyncio.run(sender.aclose())


def test_a_sender_serves_one_event_loop_at_a_time() -> None:
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    sender = sender_of()
    try:
        with pytest.raises(DeliveryError):
            first.run_until_complete(sender.send(envelope_to("http://10.0.0.1/")))
        with pytest.raises(HookUsageError, match="another event loop"):
            second.run_until_complete(sender.send(envelope_to("http://10.0.0.1/")))
        first.run_until_complete(sender.aclose())
    finally:
        first.close()
        second.close()
