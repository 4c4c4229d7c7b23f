"""The same over a wire: a real server, a real client, Starlette in between."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from hookline import Deny, Hooks, RequestCall, RequestResult, Respond
from hookline.asgi import HookMiddleware

from .scenes import call, hooked, serving

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

replace = msgspec.structs.replace


def application(endpoint: Any, hooks: Hooks, **options: Any) -> Starlette:
    app = Starlette(routes=[Route("/{rest:path}", endpoint, methods=["GET", "POST"])])
    app.add_middleware(HookMiddleware, hooks=[hooks], **options)
    return app


async def echo(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{request.method} {request.url.path} {(await request.body()).decode()}")


async def test_a_request_goes_through_the_hooks_and_is_answered() -> None:
    hooks = Hooks("h")
    hooks.before(RequestCall, id="in")(lambda call: replace(call, path="/final"))

    @hooks.after(RequestCall)
    def out(call: RequestCall, result: RequestResult) -> RequestResult:
        return replace(result, headers={**result.headers, "x-operation": call.operation_id})

    async with serving(application(echo, hooks)) as client:
        answer = await client.post("/first", content="body", headers={"x-request-id": "r1"})

    assert (answer.status_code, answer.text) == (200, "POST /final body")
    assert answer.headers["x-operation"] == "r1"


async def test_a_denied_request_leaves_the_connection_in_order() -> None:
    hooks = Hooks("h")
    hooks.guard(RequestCall, id="door")(lambda call: Deny("no") if call.path == "/secret" else None)

    async with serving(application(echo, hooks)) as client:
        answers = [await client.post(path, content="x" * 1000) for path in ("/secret", "/open", "/secret")]

    assert [answer.status_code for answer in answers] == [403, 200, 403]
    assert answers[0].json()["detail"] == "no"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_an_answer_whose_body_is_swallowed_leaves_the_connection_in_order(method: str) -> None:
    hooks = Hooks("h")
    hooks.after(RequestCall, id="dlp")(lambda call, result: Deny("no") if call.path == "/secret" else None)

    async with serving(application(echo, hooks)) as client:
        answers = [await client.request(method, path) for path in ("/secret", "/open", "/secret")]

    assert [answer.status_code for answer in answers] == [403, 200, 403]


async def test_a_chunk_reaches_the_client_before_the_application_sends_the_next() -> None:
    hooks = Hooks("h")
    seen: list[int] = []
    hooks.after(RequestCall, id="look")(lambda call, result: seen.append(result.status))
    received = [anyio.Event(), anyio.Event()]

    async def endpoint(request: Request) -> StreamingResponse:
        async def chunks() -> AsyncIterator[str]:
            yield "one"
            await received[0].wait()
            yield "two"
            await received[1].wait()
            yield "three"

        return StreamingResponse(chunks())

    got: list[str] = []
    async with (
        serving(application(endpoint, hooks)) as client,
        client.stream("GET", "/") as answer,
    ):
        assert seen == [200]
        async for text in answer.aiter_text():
            got.append(text)
            if len(got) <= len(received):
                received[len(got) - 1].set()

    assert got == ["one", "two", "three"]


async def test_a_client_that_leaves_in_mid_stream_ends_the_stream_of_the_application() -> None:
    hooks = Hooks("h")
    hooks.after(RequestCall, id="look")(lambda call, result: None)
    ended = anyio.Event()

    async def endpoint(request: Request) -> StreamingResponse:
        async def chunks() -> AsyncIterator[str]:
            try:
                yield "one"
                await anyio.sleep_forever()
            finally:
                ended.set()

        return StreamingResponse(chunks())

    async with serving(application(endpoint, hooks)) as client:
        async with client.stream("GET", "/") as answer:
            assert await anext(answer.aiter_text()) == "one"
        await ended.wait()


async def test_an_endless_stream_whose_answer_was_denied_ends_with_its_answer() -> None:
    hooks = Hooks("h")
    hooks.after(RequestCall, id="no")(lambda call, result: Deny("no"))
    ended = anyio.Event()

    async def chunks() -> AsyncIterator[str]:
        while True:
            yield "x"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await StreamingResponse(chunks())(scope, receive, send)
        ended.set()

    async with serving(hooked(app, hooks)) as client:
        answer = await client.get("/")
        await ended.wait()

    assert answer.status_code == 403


async def test_a_hook_that_is_not_waited_for_runs_on_while_the_next_request_of_the_connection_is_answered() -> None:
    hooks = Hooks("h")
    done, audited = anyio.Event(), anyio.Event()

    @hooks.after(RequestCall, wait=False)
    async def audit(call: RequestCall, result: RequestResult) -> None:
        await done.wait()
        audited.set()

    async with serving(application(echo, hooks)) as client:
        statuses = [(await client.get("/")).status_code for _ in range(3)]
        assert not audited.is_set()
        done.set()
        await audited.wait()

    assert statuses == [200, 200, 200]


@pytest.mark.parametrize("inside", [True, False], ids=["inside of Starlette's own", "around Starlette"])
async def test_an_application_that_fails_is_answered_with_500_and_logged_by_the_server_once(
    caplog: pytest.LogCaptureFixture, *, inside: bool
) -> None:
    hooks = Hooks("h")
    seen: list[int] = []
    hooks.after(RequestCall, id="look")(lambda call, result: seen.append(result.status))

    async def endpoint(request: Request) -> None:
        raise ValueError("bad")

    app: Any = application(endpoint, hooks if inside else Hooks("empty"))
    async with serving(app if inside else hooked(app, hooks)) as client:
        answer = await client.get("/")

    assert (answer.status_code, answer.text) == (500, "Internal Server Error")
    assert [record.name for record in caplog.records if record.levelno >= logging.ERROR] == ["uvicorn.error"]
    assert seen == ([] if inside else [500])


async def test_a_stream_that_fails_after_its_start_breaks_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks("h")
    hooks.after(RequestCall, id="look")(lambda call, result: None)

    async def endpoint(request: Request) -> StreamingResponse:
        async def chunks() -> AsyncIterator[str]:
            yield "one"
            raise ValueError("bad")

        return StreamingResponse(chunks())

    async with serving(application(endpoint, hooks)) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/")

    assert [record.name for record in caplog.records if record.levelno >= logging.ERROR] == ["uvicorn.error"]


async def test_an_application_that_never_answers_gets_the_500_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks("h")
    hooks.after(RequestCall, id="look")(lambda call, result: None)

    async def app(*_: Any) -> None: ...

    async with serving(hooked(app, hooks)) as client:
        answer = await client.get("/")

    assert answer.status_code == 500
    assert "without starting response" in caplog.text


async def test_the_lifespan_of_the_application_starts_and_ends() -> None:
    order: list[str] = []
    hooks = Hooks("h")
    hooks.before(RequestCall, id="no")(lambda call: Deny("no"))

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, str]]:
        order.append("up")
        yield {"database": "open"}
        order.append("down")

    async with serving(hooked(Starlette(lifespan=lifespan), hooks), lifespan="on") as client:
        assert (await client.get("/")).status_code == 403

    assert order == ["up", "down"]


async def test_many_requests_at_once_do_not_mix() -> None:
    hooks = Hooks("h")
    hooks.before(RequestCall, id="in")(lambda call: call.metadata.update(path=call.path))

    @hooks.before(RequestCall)
    async def cache(call: RequestCall) -> Respond | None:
        await anyio.lowlevel.checkpoint()
        return Respond(RequestResult(status=203, body=call.path.encode())) if call.path.endswith("0") else None

    @hooks.after(RequestCall, priority=0)
    def out(call: RequestCall, result: RequestResult) -> RequestResult:
        return replace(result, headers={**result.headers, "x-path": call.metadata["path"]})

    answers: dict[str, httpx.Response] = {}
    async with serving(application(echo, hooks)) as client, anyio.create_task_group() as group:

        async def get(path: str) -> None:
            answers[path] = await client.get(path)

        for number in range(50):
            group.start_soon(get, f"/{number}")

    assert len(answers) == 50
    for path, answer in answers.items():
        assert path in answer.text
        assert answer.headers.get("x-path") == path


async def test_two_middlewares_around_one_another_both_judge() -> None:
    outer, inner = Hooks("outer"), Hooks("inner")
    order: list[str] = []
    for hooks in (outer, inner):
        hooks.before(RequestCall, id="in")(lambda call, name=hooks.id: order.append(f"{name} in"))
        hooks.after(RequestCall, id="out")(lambda call, result, name=hooks.id: order.append(f"{name} out"))

    answer = await call(hooked(application(echo, inner), outer))

    assert answer.body == b"GET / "
    assert order == ["outer in", "inner in", "inner out", "outer out"]
