"""What hooks see and change of an answer, when it goes out, and who sends it."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from hookline import Deny, Hooks, RequestCall, RequestResult, Respond
from hookline.errors import HookDenied

from .scenes import Answer, Message, Receive, Send, call, hello, hooked

pytestmark = pytest.mark.anyio

ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])
START: Message = {"type": "http.response.start", "status": 200, "headers": []}
END: Message = {"type": "http.response.body", "body": b""}

replace = msgspec.structs.replace


class Fatal(BaseException):
    """Something that nobody may swallow."""


async def test_an_after_hook_sees_status_headers_and_time_and_no_body() -> None:
    hooks = Hooks("h")
    seen: list[RequestResult] = []
    hooks.after(RequestCall, id="spy")(lambda call, result: seen.append(result))

    await call(hooked(hello(status=201, headers=[("X-One", "1"), ("x-one", "2")]), hooks))

    (result,) = seen
    assert (result.status, result.headers, result.body) == (201, {"x-one": "1, 2"}, b"")
    assert result.duration_ms > 0


@pytest.mark.parametrize("kind", ["after", "around"])
async def test_a_hook_changes_status_and_headers_of_an_answer(kind: str) -> None:
    hooks = Hooks("h")

    def changed(result: RequestResult) -> RequestResult:
        return replace(result, status=203, headers={**result.headers, "X-New": "n"})

    if kind == "after":
        hooks.after(RequestCall, id="change")(lambda call, result: changed(result))
    else:

        @hooks.around(RequestCall)
        async def change(call: RequestCall, call_next: Any) -> RequestResult:
            return changed(await call_next(call))

    answer = await call(hooked(hello(), hooks))

    assert (answer.status, answer.body) == (203, b"hello")
    assert answer.headers == {"content-type": "text/plain", "x-new": "n"}


async def test_a_changed_answer_leaves_the_message_of_the_application_alone() -> None:
    hooks = Hooks("h")
    hooks.after(RequestCall, id="change")(lambda call, result: RequestResult(status=203, headers={"x": "1"}))
    start = {**START}

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await send(start)
        await send(END)

    answer = await call(hooked(app, hooks))

    assert (answer.status, start) == (203, START)


async def test_cookies_that_are_set_stay_separate_lines_also_when_a_hook_adds_one() -> None:
    hooks = Hooks("h")

    @hooks.after(RequestCall)
    def add(call: RequestCall, result: RequestResult) -> RequestResult:
        cookies = result.headers["set-cookie"] + "\nc=3; Path=/"
        return replace(result, headers={**result.headers, "set-cookie": cookies})

    answer = await call(hooked(hello(headers=[("set-cookie", "a=1"), ("set-cookie", "b=2"), ("vary", "x")]), hooks))

    cookies = [("set-cookie", "a=1"), ("set-cookie", "b=2"), ("set-cookie", "c=3; Path=/")]
    assert answer.lines == [("vary", "x"), *cookies]


async def test_lines_of_one_name_that_no_hook_has_changed_stay_separate() -> None:
    hooks = Hooks("h")
    hooks.after(RequestCall, id="change")(lambda call, result: replace(result, status=203))
    lines = [("set-cookie", "a=1"), ("vary", "x"), ("set-cookie", "b=2"), ("vary", "y")]

    answer = await call(hooked(hello(headers=lines), hooks))

    assert answer.lines == lines


async def test_an_answer_that_a_hook_denies_is_replaced_and_its_body_swallowed() -> None:
    hooks = Hooks("h")
    ended: list[str] = []
    hooks.after(RequestCall, id="dlp")(lambda call, result: Deny("holds a secret"))

    async def endpoint(request: Request) -> StreamingResponse:
        async def chunks() -> Any:
            for _ in range(3):
                yield b"secret"
            ended.append("stream")

        return StreamingResponse(chunks(), background=BackgroundTask(ended.append, "background"))

    answer = await call(hooked(Starlette(routes=[Route("/", endpoint)]), hooks))

    assert answer.status == 403
    assert answer.problem["detail"] == "holds a secret"
    assert b"secret" not in answer.body.replace(b"holds a secret", b"")
    assert ended == ["stream", "background"]


async def test_an_endless_stream_whose_answer_was_denied_does_not_stop_the_loop() -> None:
    hooks = Hooks("h")
    hooks.after(RequestCall, id="no")(lambda call, result: Deny("no"))
    answer = Answer()

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await send(START)
        while True:
            await send({"type": "http.response.body", "body": b"x", "more_body": True})

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: call(hooked(app, hooks), answer=answer))
        while len(answer.messages) < 2:
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()

    assert answer.status == 403


async def test_a_body_that_a_hook_gives_to_an_answer_replaces_that_of_the_application() -> None:
    hooks = Hooks("h")
    hooks.after(RequestCall, id="mask")(lambda call, result: replace(result, status=451, body=b"masked"))

    answer = await call(hooked(hello(headers=[("content-length", "5")]), hooks))

    assert (answer.status, answer.headers, answer.body) == (451, {"content-length": "6"}, b"masked")


async def test_a_start_of_the_application_waits_until_the_hooks_have_decided() -> None:
    hooks = Hooks("h")
    order: list[str] = []
    answer = Answer()

    @hooks.after(RequestCall)
    async def look(call: RequestCall, result: RequestResult) -> None:
        await anyio.lowlevel.checkpoint()
        order.append(f"after with {len(answer.messages)} sent")

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await send({**START})
        order.append(f"application goes on with {len(answer.messages)} sent")
        await send(END)

    await call(hooked(app, hooks), answer=answer)

    assert order == ["after with 0 sent", "application goes on with 1 sent"]


async def test_chunks_go_out_as_the_application_sends_them() -> None:
    hooks = Hooks("h")
    answer = Answer()
    counts: list[int] = []
    hooks.after(RequestCall, id="look")(lambda call, result: None)

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await send({**START})
        for _ in range(3):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            counts.append(len(answer.messages))
        await send(END)

    await call(hooked(app, hooks), answer=answer)

    assert counts == [2, 3, 4]


async def test_a_start_and_a_body_of_two_tasks_of_the_application_keep_their_order() -> None:
    hooks = Hooks("h")

    @hooks.after(RequestCall)
    async def slow(call: RequestCall, result: RequestResult) -> None:
        for _ in range(5):
            await anyio.lowlevel.checkpoint()

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        async def begin() -> None:
            started.set()
            await send({**START})

        started = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(begin)
            await started.wait()
            await anyio.lowlevel.checkpoint()
            await send({**END, "body": b"hello"})

    answer = await call(hooked(app, hooks))

    assert [message["type"] for message in answer.messages] == ["http.response.start", "http.response.body"]


async def test_messages_of_extensions_pass_before_and_after_the_start() -> None:
    hooks = Hooks("h")
    hooks.after(RequestCall, id="change")(lambda call, result: replace(result, status=203))
    hint: Message = {"type": "http.response.early_hint", "links": [b"</style.css>; rel=preload"]}
    trailers: Message = {"type": "http.response.trailers", "headers": [(b"grpc-status", b"0")]}

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await send(hint)
        await send({**START, "trailers": True})
        await send(END)
        await send(trailers)

    answer = await call(hooked(app, hooks))

    assert answer.messages == [hint, {**START, "status": 203, "trailers": True}, END, trailers]


async def test_the_way_out_of_an_around_ends_before_the_answer_goes_out() -> None:
    hooks = Hooks("h")
    answer = Answer()
    order: list[Any] = []

    @hooks.around(RequestCall)
    async def measure(call: RequestCall, call_next: Any) -> Any:
        result = await call_next(call)
        order.append((result.status, len(answer.messages)))
        return result

    await call(hooked(hello(status=202), hooks), answer=answer)

    assert order == [(202, 0)]


async def test_an_around_may_keep_a_scope_open_while_the_application_streams_from_tasks_of_its_own() -> None:
    hooks = Hooks("h")

    @hooks.around(RequestCall)
    async def limited(call: RequestCall, call_next: Any) -> Any:
        with anyio.fail_after(5):
            async with anyio.create_task_group():
                return await call_next(call)

    async def endpoint(request: Request) -> StreamingResponse:
        async def chunks() -> Any:
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
                yield b"x"

        return StreamingResponse(chunks())

    answer = await call(hooked(Starlette(routes=[Route("/", endpoint)]), hooks))

    assert answer.body == b"xxx"


@ASYNCIO
async def test_an_around_may_use_the_timeout_of_asyncio() -> None:
    hooks = Hooks("h")

    @hooks.around(RequestCall)
    async def limited(call: RequestCall, call_next: Any) -> Any:
        async with asyncio.timeout(5):
            return await call_next(call)

    answer = await call(hooked(hello(), hooks))

    assert answer.body == b"hello"


# Applications that fail.


@pytest.mark.parametrize("error", [ValueError("bad"), ExceptionGroup("two", [ValueError()]), Fatal()], ids=repr)
async def test_an_error_before_the_answer_passes_through_the_hooks_to_the_server_unchanged(
    error: BaseException,
) -> None:
    hooks = Hooks("h")
    seen: list[object] = []
    answer = Answer()
    hooks.after(RequestCall, id="spy")(lambda call, result: seen.append(result))

    @hooks.around(RequestCall)
    async def around(call: RequestCall, call_next: Any) -> Any:
        try:
            return await call_next(call)
        except BaseException as raised:
            seen.append(raised)
            raise

    async def app(*_: Any) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await call(hooked(app, hooks), answer=answer)

    assert caught.value is error
    assert seen == [error]
    assert answer.messages == []


@pytest.mark.parametrize("error", [ValueError("bad"), Fatal()], ids=repr)
async def test_an_error_after_the_start_reaches_the_server_unchanged(error: BaseException) -> None:
    hooks = Hooks("h")
    answer = Answer()
    hooks.after(RequestCall, id="look")(lambda call, result: None)

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await send({**START})
        raise error

    with pytest.raises(type(error)) as caught:
        await call(hooked(app, hooks), answer=answer)

    assert caught.value is error
    assert answer.messages == [START]


@ASYNCIO
@pytest.mark.parametrize("started", [False, True])
async def test_an_application_that_ends_as_cancelled_by_itself_does_so_for_the_server_too(started: bool) -> None:
    hooks = Hooks("h")
    hooks.after(RequestCall, id="look")(lambda call, result: None)

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        if started:
            await send({**START})
        raise asyncio.CancelledError("of something else")

    with pytest.raises(asyncio.CancelledError, match="of something else"):
        await call(hooked(app, hooks))


async def test_an_around_answers_for_an_application_that_failed() -> None:
    hooks = Hooks("h")

    @hooks.around(RequestCall)
    async def mend(call: RequestCall, call_next: Any) -> Any:
        try:
            return await call_next(call)
        except ValueError:
            return Respond(RequestResult(status=502, body=b"sorry"))

    async def app(*_: Any) -> None:
        raise ValueError("bad")

    answer = await call(hooked(app, hooks))

    assert (answer.status, answer.body) == (502, b"sorry")


async def test_an_error_of_an_application_whose_answer_was_denied_still_reaches_the_server() -> None:
    hooks = Hooks("h")
    answer = Answer()
    hooks.after(RequestCall, id="no")(lambda call, result: Deny("no"))

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await send({**START})
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        await call(hooked(app, hooks), answer=answer)

    assert answer.status == 403


async def test_an_application_that_never_answers_is_left_to_the_server() -> None:
    hooks = Hooks("h")
    seen: list[object] = []
    hooks.after(RequestCall, id="spy")(lambda call, result: seen.append(result))

    @hooks.around(RequestCall)
    async def around(call: RequestCall, call_next: Any) -> Any:
        try:
            return await call_next(call)
        except Exception as error:
            seen.append(str(error))
            raise

    async def app(*_: Any) -> None: ...

    answer = await call(hooked(app, hooks))

    assert answer.messages == []
    assert seen == ["The application ended without having begun an answer."]


@pytest.mark.parametrize("shield", [False, True], ids=["", "of a shielded application"])
async def test_a_header_of_an_answer_that_http_cannot_carry_is_an_error_for_the_server(*, shield: bool) -> None:
    hooks = Hooks("h")
    answer = Answer()
    hooks.after(RequestCall, id="split")(lambda call, result: replace(result, headers={"x": "a\r\nb: c"}))

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        with anyio.CancelScope(shield=shield):
            await send({**START})
            await send(END)

    with pytest.raises(RuntimeError, match="not valid in HTTP"):
        await call(hooked(app, hooks), answer=answer)

    assert answer.messages == []


# Hooks that are not waited for.


@pytest.mark.parametrize("kind", ["before", "after"])
async def test_a_hook_that_is_not_waited_for_does_not_hold_back_the_answer(kind: str) -> None:
    hooks = Hooks("h")
    answer = Answer()
    seen: list[bool] = []

    @getattr(hooks, kind)(RequestCall, wait=False)
    async def audit(*args: Any) -> None:
        while END not in answer.messages:  # never, if the answer waited for this hook
            await anyio.lowlevel.checkpoint()
        seen.append(True)

    await call(hooked(hello(), hooks), answer=answer)

    assert seen == [True]


async def test_a_hook_that_is_not_waited_for_does_not_hold_back_a_denial() -> None:
    hooks = Hooks("h")
    answer = Answer()
    seen: list[str] = []
    hooks.after(RequestCall, id="no")(lambda call, result: Deny("no"))

    @hooks.before(RequestCall, wait=False)
    async def audit(call: RequestCall) -> None:
        while len(answer.messages) < 2:
            await anyio.lowlevel.checkpoint()
        seen.append("before")

    @hooks.after(RequestCall, wait=False)
    def never(call: RequestCall, result: RequestResult) -> None:
        seen.append("after")

    await call(hooked(hello(), hooks), answer=answer)

    assert answer.status == 403
    assert seen == ["before"]


async def test_hooks_that_are_not_waited_for_see_the_final_call_and_the_final_result() -> None:
    hooks = Hooks("h")
    seen: list[Any] = []
    hooks.before(RequestCall, id="audit 1", wait=False)(lambda call: seen.append(call.path))
    hooks.after(RequestCall, id="audit 2", wait=False)(lambda call, result: seen.append((call.path, result.status)))
    hooks.before(RequestCall, id="change")(lambda call: replace(call, path="/final"))
    hooks.after(RequestCall, id="change back")(lambda call, result: replace(result, status=203))

    await call(hooked(hello(), hooks))

    assert seen == ["/final", ("/final", 203)]


async def test_of_an_answer_of_a_hook_only_the_after_hooks_that_are_not_waited_for_hear() -> None:
    hooks = Hooks("h")
    seen: list[Any] = []
    hooks.before(RequestCall, id="audit 1", wait=False)(lambda call: seen.append("before"))
    hooks.after(RequestCall, id="audit 2", wait=False)(lambda call, result: seen.append(result.status))
    hooks.before(RequestCall, id="cache")(lambda call: Respond(RequestResult(status=304)))

    await call(hooked(hello(), hooks))

    assert seen == [304]


async def test_a_denied_request_starts_no_hook_that_is_not_waited_for() -> None:
    hooks = Hooks("h")
    seen: list[Any] = []
    hooks.before(RequestCall, id="audit 1", wait=False)(lambda call: seen.append("before"))
    hooks.after(RequestCall, id="audit 2", wait=False)(lambda call, result: seen.append("after"))
    hooks.guard(RequestCall, id="no")(lambda call: Deny("no"))

    await call(hooked(hello(), hooks))

    assert seen == []


async def test_hooks_of_one_bundle_that_are_not_waited_for_run_one_after_the_other() -> None:
    hooks = Hooks("h")
    order: list[str] = []

    @hooks.before(RequestCall, wait=False)
    async def first(call: RequestCall) -> None:
        order.append("first begins")
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        order.append("first ends")

    hooks.after(RequestCall, id="second", wait=False)(lambda call, result: order.append("second"))

    await call(hooked(hello(), hooks))

    assert order == ["first begins", "first ends", "second"]


async def test_a_hook_that_is_not_waited_for_ends_before_the_request_even_if_the_application_failed() -> None:
    hooks = Hooks("h")
    seen: list[str] = []

    @hooks.before(RequestCall, wait=False)
    async def audit(call: RequestCall) -> None:
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        seen.append("audited")

    async def app(*_: Any) -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        await call(hooked(app, hooks))

    assert seen == ["audited"]


async def test_a_failure_of_a_hook_that_is_not_waited_for_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks("h")

    @hooks.after(RequestCall, wait=False)
    async def broken(call: RequestCall, result: RequestResult) -> None:
        raise ValueError("bad")

    answer = await call(hooked(hello(), hooks))

    assert answer.status == 200
    assert "broken" in caplog.text


# What AGENT-33's hooks of requests got wrong.


async def test_the_post_hook_of_a_request_sees_status_and_time_also_when_the_application_fails() -> None:
    hooks = Hooks("h")
    answer = Answer()
    seen: list[RequestResult] = []
    hooks.after(RequestCall, id="metrics")(lambda call, result: seen.append(result))

    async def endpoint(request: Request) -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):  # Starlette answers, and raises for the server's log
        await call(hooked(Starlette(routes=[Route("/", endpoint)]), hooks), answer=answer)

    (result,) = seen
    assert (result.status, answer.status) == (500, 500)
    assert result.duration_ms > 0


async def test_pre_and_post_hooks_of_a_request_share_one_metadata_dict_with_the_application() -> None:
    hooks = Hooks("h")
    seen: list[Any] = []
    hooks.before(RequestCall, id="pre")(lambda call: call.metadata.update(pre=1))
    hooks.after(RequestCall, id="post")(lambda call, result: seen.append(dict(call.metadata)))
    hooks.after(RequestCall, id="late", wait=False)(lambda call, result: seen.append(dict(call.metadata)))

    async def endpoint(request: Request) -> PlainTextResponse:
        request.state.hookline.metadata["application"] = 2
        return PlainTextResponse("")

    app = hooked(Starlette(routes=[Route("/", endpoint)]), hooks)
    await call(app)
    await call(app)

    assert seen == [{"pre": 1, "application": 2}] * 4


async def test_a_denied_request_is_seen_by_the_outer_hooks() -> None:
    hooks = Hooks("h")
    seen: list[tuple[str, str]] = []

    @hooks.around(RequestCall, priority=0)
    async def audit(call: RequestCall, call_next: Any) -> Any:
        try:
            return await call_next(call)
        except HookDenied as denied:
            seen.append((denied.hook_id, denied.reason))
            raise

    hooks.guard(RequestCall, id="door")(lambda call: Deny("no"))

    answer = await call(hooked(hello(), hooks))

    assert seen == [("door", "no")]
    assert answer.status == 403


async def test_a_hook_that_fails_after_the_answer_began_never_runs_the_application_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hooks = Hooks("h")
    app = hello()

    @hooks.around(RequestCall, on_error="open")
    async def late(call: RequestCall, call_next: Any) -> Any:
        await call_next(call)
        raise ValueError("late")

    answer = await call(hooked(app, hooks))

    assert (answer.status, answer.body) == (200, b"hello")
    assert len(app.scopes) == 1  # type: ignore[attr-defined]
