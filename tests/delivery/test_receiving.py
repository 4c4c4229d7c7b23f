"""The guard of a receiver: what is signed gets in, once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hookline.delivery import KeyRing, Sender, Verified, WebhookGuard, generate_key, public_key, sign
from hookline.errors import DeliveryError, HookDefinitionError
from tests.tables import for_each

from .envelopes import PAYLOAD, envelope_to
from .receivers import Receiver, says_json, serving, status

pytestmark = pytest.mark.anyio

SECRET = generate_key()


class App:
    """An application that does as it is told, and counts."""

    def __init__(self, then: Callable[[Request], Awaitable[Response]] | None = None) -> None:
        self.requests: list[tuple[Verified, bytes]] = []
        self.then = then

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        self.requests.append((request.state.webhook, await request.body()))
        answer = Response(b"taken", 201) if self.then is None else await self.then(request)
        await answer(scope, receive, send)


def client_of(app: Any, **options: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(WebhookGuard(app, SECRET, **options), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://receiver")


def signed(delivery: str = "msg_1", body: bytes = PAYLOAD, at: float | None = None) -> dict[str, str]:
    return sign(delivery, int(time.time() if at is None else at), body, SECRET)


async def test_a_signed_delivery_reaches_the_application_with_its_body_and_what_was_verified() -> None:
    app = App()
    async with client_of(app) as client:
        answer = await client.post("/hook", content=PAYLOAD, headers=signed("msg_7"))

    [(verified, body)] = app.requests
    assert (answer.status_code, answer.content) == (201, b"taken")
    assert (verified.id, body) == ("msg_7", PAYLOAD)
    assert abs(verified.timestamp - time.time()) < 60


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(dict, id="none"),
        pytest.param(lambda: {"webhook-id": "msg_1"}, id="half"),
        pytest.param(lambda: signed(at=time.time() - 1000), id="old"),
        pytest.param(lambda: signed(at=time.time() + 1000), id="future"),
        pytest.param(lambda: signed(body=b"other"), id="of-another-body"),
        pytest.param(lambda: sign("msg_1", int(time.time()), PAYLOAD, generate_key()), id="by-another-key"),
        pytest.param(lambda: signed("answer_msg_1"), id="of-an-answer"),
    ],
)
async def test_what_is_not_signed_for_us_is_refused_without_the_application(
    headers: Callable[[], dict[str, str]],
) -> None:
    app = App()
    async with client_of(app) as client:
        answer = await client.post("/hook", content=PAYLOAD, headers=headers())

    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == 401
    assert app.requests == []


async def test_a_header_that_is_there_twice_is_refused() -> None:
    app = App()
    async with client_of(app) as client:
        headers = [*signed().items(), ("Webhook-Id", "msg_1")]
        assert (await client.post("/hook", content=PAYLOAD, headers=headers)).status_code == 401

    assert app.requests == []


@for_each("announced", [True, False])
async def test_what_is_too_long_is_refused_before_it_is_read(announced: bool) -> None:
    app, read = App(), 0

    async def parts() -> Any:
        nonlocal read
        for _ in range(1000):
            read += 1
            yield b"x" * 100

    async with client_of(app, max_body=1000) as client:
        headers = {"content-length": "1001"} if announced else {}
        content = b"x" * 1001 if announced else parts()
        answer = await client.post("/hook", content=content, headers=headers)

    assert answer.status_code == 413
    assert app.requests == []
    assert read <= 12


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "1e9", "٣"])
async def test_a_length_that_is_a_lie_does_no_harm(length: str) -> None:
    app = App()
    guard = WebhookGuard(app, SECRET, max_body=1000)
    statuses: list[int] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"x", "more_body": False}

    async def send(message: Any) -> None:
        statuses.append(message.get("status", 0))

    await guard({"type": "http", "headers": [(b"content-length", length.encode())]}, receive, send)

    assert statuses[0] in (401, 413)


async def test_a_delivery_that_comes_again_is_answered_as_before_without_the_application() -> None:
    app = App()
    async with client_of(app) as client:
        answers = [await client.post("/hook", content=PAYLOAD, headers=signed()) for _ in range(3)]

    assert [(answer.status_code, answer.content) for answer in answers] == [(201, b"taken")] * 3
    assert len(app.requests) == 1


async def test_a_long_answer_is_not_remembered_but_the_delivery_is() -> None:
    async def long(request: Request) -> Response:
        return Response(b"x" * 100_000)

    app = App(long)
    async with client_of(app) as client:
        first = await client.post("/hook", content=PAYLOAD, headers=signed())
        again = await client.post("/hook", content=PAYLOAD, headers=signed())

    assert (len(first.content), again.status_code, again.content) == (100_000, 200, b"")
    assert len(app.requests) == 1


@pytest.mark.parametrize("failure", [500, 404, 302, None])
async def test_a_delivery_that_failed_is_let_in_again(failure: int | None) -> None:
    async def failing(request: Request) -> Response:
        if len(app.requests) > 1:
            return Response(b"taken")
        if failure is None:
            raise RuntimeError("broken")
        return Response(status_code=failure)

    app = App(failing)
    async with client_of(app) as client:
        first = await client.post("/hook", content=PAYLOAD, headers=signed())
        second = await client.post("/hook", content=PAYLOAD, headers=signed())
        third = await client.post("/hook", content=PAYLOAD, headers=signed())

    assert first.status_code == (failure or 500)
    assert (second.status_code, third.status_code) == (200, 200)
    assert len(app.requests) == 2


async def test_a_delivery_that_is_being_handled_is_put_off() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: Request) -> Response:
        begun.set()
        await go_on.wait()
        return Response(b"taken")

    app = App(slow)
    async with asyncio.timeout(10), client_of(app) as client, asyncio.TaskGroup() as group:
        first = group.create_task(client.post("/hook", content=PAYLOAD, headers=signed()))
        await begun.wait()
        second = await client.post("/hook", content=PAYLOAD, headers=signed())
        go_on.set()
        await first
        third = await client.post("/hook", content=PAYLOAD, headers=signed())

    assert (second.status_code, second.headers["retry-after"]) == (409, "1")
    assert (third.status_code, third.content) == (200, b"taken")
    assert len(app.requests) == 1


async def test_a_delivery_whose_handling_was_cancelled_is_let_in_again() -> None:
    begun = asyncio.Event()

    async def slow(request: Request) -> Response:
        if len(app.requests) == 1:
            begun.set()
            await asyncio.Event().wait()
        return Response(b"taken")

    app = App(slow)
    async with client_of(app) as client:
        first = asyncio.create_task(client.post("/hook", content=PAYLOAD, headers=signed()))
        await begun.wait()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)

        assert (await client.post("/hook", content=PAYLOAD, headers=signed())).status_code == 200


async def test_only_so_many_deliveries_are_remembered() -> None:
    app = App()
    async with client_of(app, remember=2) as client:
        for delivery in ("a", "b", "c", "c", "b", "a"):
            await client.post("/hook", content=PAYLOAD, headers=signed(delivery))

    assert [verified.id for verified, _ in app.requests] == ["a", "b", "c", "a"]


async def test_websockets_are_refused_and_lifespans_pass() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    guard = WebhookGuard(app, SECRET)
    for kind in ("lifespan", "websocket"):
        await guard({"type": kind, "headers": []}, receive, send)

    assert seen == ["lifespan"]
    assert [message["type"] for message in sent] == ["websocket.close"]


async def test_a_client_that_goes_away_gets_no_answer() -> None:
    app = App()

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    await WebhookGuard(app, SECRET)({"type": "http", "headers": []}, receive, send)

    assert app.requests == []


@for_each("options", [{"app": None}, {"tolerance": 0}, {"tolerance": float("nan")}, {"max_body": 0}, {"remember": 0}])
async def test_arguments_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(HookDefinitionError):
        WebhookGuard(**{"app": App(), "keys": SECRET, **options})


async def test_a_public_key_cannot_sign_answers() -> None:
    with pytest.raises(HookDefinitionError, match="signed_answers"):
        WebhookGuard(App(), public_key(generate_key("ed25519")), signed_answers=True)


class TestOnARealServer:
    """A `Sender` at one end, an application behind the guard at the other."""

    async def test_a_delivery_is_handled_once_however_often_it_is_sent(self) -> None:
        handled: list[str] = []

        async def hook(request: Request) -> JSONResponse:
            handled.append(request.state.webhook.id)
            return JSONResponse(await request.json())

        app = Starlette(routes=[Route("/hook", hook, methods=["POST"])])
        keys = KeyRing({"": [SECRET]})
        async with serving(WebhookGuard(app, SECRET)) as url, Sender(keys, allow_private=["127.0.0.0/8"]) as sender:
            for _ in range(2):
                assert (await sender.send(envelope_to(url))).status_code == 200

        assert handled == ["msg_1"]

    @pytest.mark.parametrize("kind", ["hmac", "ed25519"])
    async def test_an_answer_is_signed_too(self, kind: Any) -> None:
        secret = generate_key(kind)

        async def hook(request: Request) -> Response:
            return JSONResponse({"decision": "deny", "reason": "no"})

        guard = WebhookGuard(App(hook), secret, signed_answers=True)
        keys = KeyRing({"": [secret]})
        async with serving(guard) as url, Sender(keys, allow_private=["127.0.0.0/8"], signed_answers=True) as sender:
            for _ in range(2):  # the second is the remembered one
                answer = await sender.ask(envelope_to(url, control=True), 10.0)

                assert (answer.decision, answer.reason) == ("deny", "no")


class TestSignedAnswers:
    """What somebody between the two might make of it."""

    async def ask(self, receiver: Receiver) -> str:
        keys = KeyRing({"": [SECRET]})
        async with Sender(keys, allow_private=["127.0.0.0/8"], signed_answers=True) as sender:
            with pytest.raises(DeliveryError, match="no valid signature") as caught:
                await sender.ask(envelope_to(receiver.url, control=True), 5.0)
        return caught.value.code

    async def test_an_unsigned_answer_is_none(self) -> None:
        async with Receiver() as receiver:
            receiver.says(says_json({"decision": "allow"}))
            assert await self.ask(receiver) == "invalid_response"

    async def test_a_question_that_is_sent_back_is_no_answer(self) -> None:
        """Its signature is by the right key, and its `args` would read as an answer's."""
        async with Receiver() as receiver:

            async def mirror(request: Any, writer: Any) -> bool:
                return await status(
                    200,
                    body=request.body,
                    webhook_id=request.id,
                    webhook_timestamp=request.headers["webhook-timestamp"],
                    webhook_signature=request.headers["webhook-signature"],
                )(request, writer)

            receiver.says(mirror)
            assert await self.ask(receiver) == "invalid_response"

    @pytest.mark.parametrize(("delivery", "age"), [("answer_msg_2", 0), ("answer_msg_1", 1000), ("msg_1", 0)])
    async def test_an_answer_to_another_question_or_an_old_one_is_none(self, delivery: str, age: int) -> None:
        body = b'{"decision": "allow"}'
        headers = sign(delivery, int(time.time()) - age, body, SECRET)
        async with Receiver() as receiver:
            receiver.says(status(200, body=body, **{name.replace("-", "_"): value for name, value in headers.items()}))
            assert await self.ask(receiver) == "invalid_response"

    async def test_an_answer_that_was_changed_is_none(self) -> None:
        headers = sign("answer_msg_1", int(time.time()), b'{"decision": "deny"}', SECRET)
        async with Receiver() as receiver:
            receiver.says(
                status(
                    200,
                    body=b'{"decision":"allow"}',
                    **{name.replace("-", "_"): value for name, value in headers.items()},
                )
            )
            assert await self.ask(receiver) == "invalid_response"


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from([200, 204, 500, None])),
        max_size=12,
    )
)
def test_the_application_takes_each_delivery_at_most_once(sent: list[tuple[str, int | None]]) -> None:
    """However they come, and however it fails in between."""
    taken: list[str] = []
    seen: list[int] = []

    async def main() -> None:
        outcome: int | None = 200

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if outcome is None:
                raise RuntimeError("broken")
            if outcome < 300:
                taken.append(scope["state"]["webhook"].id)
            await send({"type": "http.response.start", "status": outcome, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        async with client_of(app) as client:
            for delivery, outcome in sent:  # noqa: B007
                answer = await client.post("/hook", content=PAYLOAD, headers=signed(delivery))
                seen.append(answer.status_code)

    asyncio.run(main())

    assert len(taken) == len(set(taken))
    assert set(taken) == {delivery for delivery, outcome in sent if outcome in (200, 204)}
    assert len(seen) == len(sent)
