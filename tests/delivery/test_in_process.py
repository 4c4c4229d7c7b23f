"""Deliveries without a store: in order, tried a few times, each sibling on its own."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from time import perf_counter
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import BeforeStep
from hookline.delivery import ControlAnswer, Envelope, InProcess, KeyRing, Sender, default_delivery, generate_key
from hookline.dispatcher import HookDispatcher
from hookline.errors import DeliveryError, HookDefinitionError, HookUsageError, install_command
from hookline.hooks import Hook
from tests.tables import for_each

from .envelopes import envelope_to
from .receivers import Answer, Receiver, after, garbage, hang, ok, status

pytestmark = pytest.mark.anyio

SECRET = generate_key()


@pytest.fixture
async def carrier() -> Any:
    made = delivery()
    yield made
    await made.aclose()


def delivery(**options: Any) -> InProcess:
    return InProcess(keys=KeyRing({"": [SECRET]}), allow_private=["127.0.0.0/8"], **options)


async def failure_of(carrier: InProcess, *envelopes: Envelope) -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        await carrier.publish(envelopes)
    return caught.value


class TestPublishing:
    async def test_deliveries_to_one_receiver_arrive_in_order_and_signed(self, carrier: InProcess) -> None:
        async with Receiver([SECRET]) as receiver:
            receiver.says(status(503), ok())
            await carrier.publish([envelope_to(receiver.url, delivery=f"msg_{nth}") for nth in range(20)])

            assert receiver.ids == ["msg_0", *(f"msg_{nth}" for nth in range(20))]
            assert not receiver.unsigned

    async def test_nothing_to_deliver_is_delivered(self, carrier: InProcess) -> None:
        await carrier.publish([])

    async def test_a_slow_receiver_does_not_hold_back_another(self, carrier: InProcess) -> None:
        async with Receiver() as slow, Receiver() as fast:
            come = asyncio.Event()
            slow.says(after(come, ok()))
            task = asyncio.create_task(carrier.publish([envelope_to(slow.url), envelope_to(fast.url)]))
            await fast.received(1)
            come.set()
            await task

            assert len(slow.requests) == 1

    @pytest.mark.parametrize(
        ("answer", "tries"),
        [
            pytest.param(status(500), 3, id="500"),
            pytest.param(status(503), 3, id="503"),
            pytest.param(status(408), 3, id="408"),
            pytest.param(status(425), 3, id="425"),
            pytest.param(status(429), 3, id="429"),
            pytest.param(garbage(), 3, id="garbage"),
            pytest.param(status(400), 1, id="400"),
            pytest.param(status(404), 1, id="404"),
            pytest.param(status(410), 1, id="410"),
            pytest.param(status(302), 1, id="302"),
            pytest.param(status(503, retry_after="600"), 1, id="asked-to-wait-too-long"),
        ],
    )
    async def test_only_what_may_pass_is_tried_again(self, carrier: InProcess, answer: Answer, tries: int) -> None:
        async with Receiver() as receiver:
            receiver.says(answer)
            async with asyncio.timeout(20):
                await failure_of(carrier, envelope_to(receiver.url, timeout=5.0))

            assert receiver.ids == ["msg_1"] * tries

    async def test_a_receiver_is_left_alone_for_as_long_as_it_asks(self, carrier: InProcess) -> None:
        async with Receiver() as receiver:
            receiver.says(status(429, retry_after="1"), ok())
            await carrier.publish([envelope_to(receiver.url)])

            first, second = receiver.requests
            assert second.at - first.at >= 1

    async def test_no_try_begins_when_the_time_is_over(self, carrier: InProcess) -> None:
        async with Receiver() as receiver:
            receiver.says(hang())
            error = await failure_of(carrier, envelope_to(receiver.url, timeout=0.3))

            assert error.code == "timeout"
            assert len(receiver.requests) == 1

    async def test_the_siblings_of_a_failure_are_tried_all_the_same(
        self, carrier: InProcess, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with Receiver() as receiver:
            refusing = receiver.says_at("/refusing", status(400))
            gone = receiver.says_at("/gone", status(410))
            with caplog.at_level(logging.ERROR, "hookline"):
                error = await failure_of(
                    carrier,
                    envelope_to(receiver.url, delivery="a"),
                    envelope_to(refusing, delivery="b", hook_id="refused"),
                    envelope_to(gone, delivery="c", hook_id="gone"),
                    envelope_to(refusing, delivery="d"),
                    envelope_to("local://nobody", delivery="e"),
                    envelope_to(receiver.url, delivery="f"),
                )

            assert (error.hook_id, error.status_code) == ("refused", 400)
            assert sorted(receiver.ids) == ["a", "b", "c", "d", "f"]
            assert [record.levelname for record in caplog.records] == ["ERROR"] * 3
            assert "gone" in caplog.text

    async def test_a_cancelled_publish_ends_at_once(self, carrier: InProcess) -> None:
        async with Receiver() as receiver:
            urls = [receiver.says_at(path, hang()) for path in ("/a", "/b")]
            task = asyncio.create_task(carrier.publish([envelope_to(url) for url in urls]))
            await receiver.received(2)
            task.cancel()

            with pytest.raises(asyncio.CancelledError):
                await task

    async def test_without_a_key_nothing_leaves(self) -> None:
        async with Receiver() as receiver:
            carrier = InProcess(allow_private=["127.0.0.0/8"])
            error = await failure_of(carrier, envelope_to(receiver.url))
            await carrier.aclose()

            assert error.code == "configuration"
            assert receiver.connections == 0

    async def test_private_addresses_are_blocked_unless_allowed(self) -> None:
        async with Receiver() as receiver:
            carrier = InProcess(keys=KeyRing({"": [SECRET]}))
            error = await failure_of(carrier, envelope_to(receiver.url))
            await carrier.aclose()

            assert (error.code, receiver.connections) == ("blocked", 0)

    async def test_a_given_sender_is_used_and_closed(self) -> None:
        async with Receiver([SECRET]) as receiver:
            carrier = InProcess(Sender(KeyRing({"": [SECRET]}), allow_private=["127.0.0.0/8"]), tries=1)
            await carrier.publish([envelope_to(receiver.url)])
            await carrier.aclose()

            assert not receiver.unsigned


class TestFunctions:
    async def test_a_function_takes_what_is_delivered_to_its_name(self, carrier: InProcess) -> None:
        taken: list[Envelope] = []

        async def take(envelope: Envelope) -> None:
            taken.append(envelope)

        envelopes = [envelope_to("local://audit", delivery=f"msg_{nth}") for nth in range(5)]
        async with carrier.serve("audit", take):
            await carrier.publish(envelopes)

        assert taken == envelopes
        assert (await failure_of(carrier, *envelopes)).code == "configuration"

    async def test_nobody_there_says_how_to_be_there(self, carrier: InProcess) -> None:
        error = await failure_of(carrier, envelope_to("local://audit"))

        assert error.code == "configuration"
        assert "delivery.serve('audit'" in str(error)

    async def test_a_function_that_fails_is_tried_again_and_its_error_is_the_cause(self, carrier: InProcess) -> None:
        taken: list[str] = []

        async def broken(envelope: Envelope) -> None:
            taken.append(envelope.id)
            raise ValueError("hunter2")

        async with carrier.serve("audit", broken):
            error = await failure_of(carrier, envelope_to("local://audit"))

        assert taken == ["msg_1"] * 3
        assert "ValueError" in str(error)
        assert "hunter2" not in str(error)
        assert isinstance(error.__cause__, ValueError)

    async def test_a_function_that_hangs_is_stopped(self, carrier: InProcess) -> None:
        stopped = asyncio.Event()

        async def hung(envelope: Envelope) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        async with carrier.serve("audit", hung):
            assert (await failure_of(carrier, envelope_to("local://audit", timeout=0.2))).code == "timeout"
        assert stopped.is_set()

    async def test_a_timeout_of_its_own_is_no_timeout_of_ours(self, carrier: InProcess) -> None:
        async def impatient(envelope: Envelope) -> None:
            raise TimeoutError

        async with carrier.serve("audit", impatient):
            assert (await failure_of(carrier, envelope_to("local://audit"))).code == "http_error"

    async def test_a_name_has_one_function_at_a_time(self, carrier: InProcess) -> None:
        async def take(envelope: Envelope) -> None: ...

        async with carrier.serve("audit", take):
            with pytest.raises(HookUsageError, match="already served"):
                async with carrier.serve("audit", take):
                    pass
        async with carrier.serve("audit", take):
            pass

    @pytest.mark.parametrize("name", ["", "a/b", "a?b", "a#b", None, "a b/c"])
    async def test_a_name_that_could_never_be_reached_is_refused(self, carrier: InProcess, name: Any) -> None:
        async def take(envelope: Envelope) -> None: ...

        with pytest.raises(HookUsageError, match="needs a name"):
            async with carrier.serve(name, take):
                pass
        with pytest.raises(HookUsageError, match="async function"):
            async with carrier.serve("audit", None):  # type: ignore[arg-type]
                pass


class TestAsking:
    @pytest.mark.parametrize("given", [ControlAnswer(decision="deny", reason="no"), None])
    async def test_a_function_decides(self, carrier: InProcess, given: ControlAnswer | None) -> None:
        async def judge(envelope: Envelope) -> ControlAnswer | None:
            return given

        async with carrier.serve("judge", judge):
            answer = await carrier.request(envelope_to("local://judge", control=True), timeout=5.0)

        assert answer == (given or ControlAnswer())

    async def test_what_a_function_says_is_checked(self, carrier: InProcess) -> None:
        async def judge(envelope: Envelope) -> Any:
            return {"decision": "deny"}

        async with carrier.serve("judge", judge):
            with pytest.raises(DeliveryError, match="must be a ControlAnswer"):
                await carrier.request(envelope_to("local://judge", control=True), timeout=5.0)

    async def test_an_answer_that_comes_too_late_is_none(self, carrier: InProcess) -> None:
        async def judge(envelope: Envelope) -> None:
            await asyncio.Event().wait()

        async with carrier.serve("judge", judge), Receiver() as receiver:
            receiver.says(status(503), hang())
            for url in ("local://judge", receiver.url):
                started = perf_counter()
                with pytest.raises(DeliveryError) as caught:
                    await carrier.request(envelope_to(url, control=True), timeout=0.6)

                assert caught.value.code == "timeout"
                assert perf_counter() - started < 10


async def test_a_webhook_of_a_dispatcher_is_delivered(carrier: InProcess) -> None:
    """The way from an event to a receiver, without a run."""
    async with Receiver([SECRET]) as receiver, HookDispatcher(delivery=carrier) as dispatcher:
        hook = Hook(id="told", type=BeforeStep, webhook={"url": receiver.url, "body": {"team": "a"}})
        async with dispatcher.operation("op-1", [hook]):
            dispatcher.dispatch(BeforeStep(operation_id="op-1", step_index=3))
        await receiver.received(1)

        [payload] = receiver.payloads
        assert (payload["type"], payload["hookId"], payload["team"]) == ("beforeStep", "told", "a")
        assert not receiver.unsigned


class TestDefault:
    async def test_the_environment_says_how(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOOKLINE_WEBHOOK_KEY", SECRET)
        monkeypatch.setenv("HOOKLINE_WEBHOOK_ALLOW_PRIVATE", " 10.0.0.0/8, 127.0.0.0/8,")
        async with Receiver([SECRET]) as receiver:
            carrier = default_delivery()
            await carrier.publish([envelope_to(receiver.url)])
            await carrier.aclose()

            assert not receiver.unsigned

    async def test_a_bad_environment_says_so_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOOKLINE_WEBHOOK_ALLOW_PRIVATE", "everything")
        with pytest.raises(HookDefinitionError, match="everything"):
            default_delivery()

    async def test_an_empty_environment_sends_nothing_but_serves_functions(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("HOOKLINE_WEBHOOK_KEY", raising=False)
        taken: list[str] = []

        async def take(envelope: Envelope) -> None:
            taken.append(envelope.id)

        carrier = default_delivery()
        async with carrier.serve("audit", take):
            await carrier.publish([envelope_to("local://audit")])

        assert taken == ["msg_1"]
        assert (await failure_of(carrier, envelope_to("http://10.0.0.1/"))).code == "configuration"
        await carrier.aclose()


@for_each("options", [{"tries": 0}, {"allow_private": "10.0.0.0/8"}, {"sender": Sender(KeyRing()), "keys": KeyRing()}])
async def test_arguments_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(HookDefinitionError):
        InProcess(**options)


def test_on_trio_it_says_that_it_needs_asyncio() -> None:
    carrier = InProcess()

    for refused in (
        lambda: carrier.publish([envelope_to("local://audit")]),
        lambda: carrier.request(envelope_to("local://audit", control=True), timeout=1.0),
    ):
        with pytest.raises(HookUsageError, match="need asyncio"):
            trio.run(refused)


def test_without_the_extra_functions_are_served_and_http_says_what_to_install() -> None:
    code = """
import asyncio, sys
for name in ("aiohttp", "cryptography", "multidict", "sqlalchemy"):
    sys.modules[name] = None
from hookline.delivery import Envelope, HookData, InProcess, KeyRing, Webhook, WebhookGuard, generate_key, sign, verify
from hookline.errors import DeliveryError, MissingExtraError, install_command

secret = generate_key()
carrier = InProcess(keys=KeyRing({"": [secret]}))
def envelope(url):
    hook = HookData(id="told", type="onComplete", webhook=Webhook(url=url))
    return Envelope(id="msg_1", hook=hook, operation_id="op-1", payload=b"{}")
async def main():
    taken = []
    async def take(envelope):
        taken.append(envelope.id)
    async with carrier.serve("audit", take):
        await carrier.publish([envelope("local://audit")])
    assert taken == ["msg_1"]
    try:
        await carrier.publish([envelope("https://example.com")])
    except DeliveryError as error:
        assert error.code == "configuration" and install_command("server") in str(error)
asyncio.run(main())
try:
    from hookline.delivery import Sender
except MissingExtraError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert ran.returncode == 0, ran.stderr
    assert install_command("server") in ran.stdout


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=12))
def test_every_delivery_is_tried_in_order_for_each_receiver_whatever_fails(plan: list[tuple[str, bool]]) -> None:
    tried: list[tuple[str, str]] = []
    fails = {f"msg_{nth}" for nth, (_, bad) in enumerate(plan) if bad}

    async def take(envelope: Envelope) -> None:
        tried.append((envelope.hook.webhook.url, envelope.id))
        if envelope.id in fails:
            raise DeliveryError("told", "gone", "it fails")

    async def main() -> DeliveryError | None:
        carrier = InProcess()
        envelopes = [envelope_to(f"local://{name}", delivery=f"msg_{nth}") for nth, (name, _) in enumerate(plan)]
        async with carrier.serve("a", take), carrier.serve("b", take), carrier.serve("c", take):
            try:
                await carrier.publish(envelopes)
            except DeliveryError as error:
                return error
        return None

    error = asyncio.run(main())

    for name in "abc":
        wanted = [f"msg_{nth}" for nth, (receiver, _) in enumerate(plan) if receiver == name]
        assert [delivery for url, delivery in tried if url == f"local://{name}"] == wanted
    assert (error is not None) is bool(fails)
