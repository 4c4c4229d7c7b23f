"""Who is cancelled when somebody has had enough: the caller, the server, or a hook."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hookline import Hooks, RequestCall, RequestResult, Respond

from .scenes import Answer, Receive, Send, call, hooked

pytestmark = pytest.mark.anyio


class Ended:
    """Notes who was cancelled, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def for_ever(self, name: str, reached: anyio.Event | None = None) -> None:
        if reached is not None:
            reached.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            self.names.append(name)
            raise


async def cancelled_once(reached: anyio.Event, app: Any, answer: Answer) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: call(app, answer=answer))
        with anyio.fail_after(5):
            await reached.wait()
        group.cancel_scope.cancel()


async def test_a_cancelled_request_cancels_the_application_and_then_the_around_that_waits_for_it() -> None:
    hooks, ended, reached, answer = Hooks("h"), Ended(), anyio.Event(), Answer()

    @hooks.around(RequestCall)
    async def around(call: RequestCall, call_next: Any) -> Any:
        try:
            return await call_next(call)
        finally:
            ended.names.append("around")

    async def app(*_: Any) -> None:
        await ended.for_ever("application", reached)

    await cancelled_once(reached, hooked(app, hooks), answer)

    assert sorted(ended.names) == ["application", "around"]
    assert answer.messages == []


async def test_a_request_that_is_cancelled_in_mid_stream_cancels_the_application_and_the_hooks_beside_it() -> None:
    hooks, ended, reached, answer = Hooks("h"), Ended(), anyio.Event(), Answer()

    @hooks.before(RequestCall, wait=False)
    async def beside(call: RequestCall) -> None:
        await ended.for_ever("beside")

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await ended.for_ever("application", reached)

    await cancelled_once(reached, hooked(app, hooks), answer)

    assert sorted(ended.names) == ["application", "beside"]
    assert (answer.status, answer.body) == (200, b"x")


async def test_a_request_that_is_cancelled_while_hooks_look_at_the_answer_sends_nothing() -> None:
    hooks, ended, reached, answer = Hooks("h"), Ended(), anyio.Event(), Answer()

    @hooks.after(RequestCall)
    async def look(call: RequestCall, result: RequestResult) -> None:
        await ended.for_ever("after", reached)

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        finally:
            ended.names.append("application")

    await cancelled_once(reached, hooked(app, hooks), answer)

    assert sorted(ended.names) == ["after", "application"]
    assert answer.messages == []


@pytest.mark.parametrize("body", [b"too slow", b""])
@pytest.mark.parametrize("stubborn", [False, True], ids=["gives in", "answers all the same"])
async def test_an_around_that_gives_up_on_the_application_cancels_it_and_answers_itself(
    body: bytes, *, stubborn: bool
) -> None:
    hooks, ended, reached, given_up = Hooks("h"), Ended(), anyio.Event(), anyio.Event()

    @hooks.around(RequestCall)
    async def impatient(call: RequestCall, call_next: Any) -> Any:
        async with anyio.create_task_group() as group:
            group.start_soon(call_next, call)
            await reached.wait()
            group.cancel_scope.cancel()
        await given_up.wait()
        return Respond(RequestResult(status=504, body=body))

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        try:
            await ended.for_ever("application", reached)
        finally:
            given_up.set()
            if stubborn:
                with anyio.CancelScope(shield=True):
                    await send({"type": "http.response.start", "status": 200, "headers": []})
                    await send({"type": "http.response.body", "body": b"at last"})

    answer = await call(hooked(app, hooks))

    assert (answer.status, answer.body) == (504, body)
    assert ended.names == ["application"]


async def test_an_application_that_gives_up_while_the_hooks_look_at_its_answer_is_not_answered_for() -> None:
    hooks, looked = Hooks("h"), anyio.Event()
    gone = anyio.Event()

    @hooks.after(RequestCall)
    async def look(call: RequestCall, result: RequestResult) -> None:
        looked.set()
        await gone.wait()

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(send, {"type": "http.response.start", "status": 200, "headers": []})
            await looked.wait()
            group.cancel_scope.cancel()  # as Starlette does when the caller has gone
        gone.set()

    answer = await call(hooked(app, hooks))

    assert answer.messages == []


async def test_a_server_that_refuses_the_answer_of_a_hook_ends_the_application_and_gets_its_own_error() -> None:
    hooks, ended = Hooks("h"), Ended()
    error = OSError("the caller has gone")
    hooks.after(RequestCall, id="replace")(lambda call, result: RequestResult(status=200, body=b"mine"))

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await ended.for_ever("application")

    async def front(scope: Any, receive: Receive, send: Send) -> None:
        async def refuse(message: Any) -> None:
            raise error

        await hooked(app, hooks)(scope, receive, refuse)

    with pytest.raises(OSError) as caught:
        await call(front)

    assert caught.value is error
    assert ended.names in ([], ["application"])
