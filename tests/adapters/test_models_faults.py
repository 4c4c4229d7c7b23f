"""Everything that a provider can do wrong, and what the run comes to."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import anyio
import pytest
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, FunctionModel

from hookline import Agent, OnError, TransientModelError, exec_agent, interrupt
from hookline.adapters.models import ProviderError, PydanticModel
from hookline.errors import HookUsageError, ModelError
from hookline.runtime import ModelRetry
from tests.runtime.scenes import AT_ONCE, Recorder, assert_order
from tests.tables import for_each

from .provider import (
    USAGE,
    Exchange,
    Provider,
    answer_of,
    asked,
    chunk,
    function,
    hangs,
    hangs_up,
    refuses,
    says,
    sends,
    streams,
    user,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:Async generator '(openai|httpx2|httpcore2|pydantic_ai):ResourceWarning"),
]
one_loop = pytest.mark.parametrize("anyio_backend", ["asyncio"])
"""For tests with many cases, in which the event loop has no part."""

both = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])

HALF = chunk({"content": "Hal"})
HALF_CALL = chunk({"tool_calls": [{"index": 0, **function("search", '{"que', "c1")}]})


@pytest.fixture(scope="module")
def server() -> Iterator[Provider]:
    with Provider() as running:
        yield running


@pytest.fixture
def provider(server: Provider) -> Provider:
    server.script()
    return server


async def error_of(model: PydanticModel, *, streamed: bool) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await answer_of(model, user(), streamed=streamed)
    return caught.value


@both
@for_each("status", [408, 409, 425, 429, 500, 503, 529])
@one_loop
async def test_a_passing_status_may_be_tried_again(provider: Provider, status: int, streamed: bool) -> None:
    provider.script(refuses(status, "later, please"))

    async with asked(provider) as model:
        error = await error_of(model, streamed=streamed)

    assert isinstance(error, TransientModelError)
    assert str(error) == f"Model 'gpt-4o' gave no answer, but status {status}: later, please"
    assert error.retry_after is None
    assert len(provider.exchanges) == 1


@both
@for_each(
    ("status", "advice"),
    [
        (400, ""),
        (401, " Check its API key."),
        (403, " Check its API key, and what the key may use."),
        (404, " Check the model's name, and the provider's base URL."),
        (422, ""),
    ],
)
@one_loop
async def test_any_other_status_ends_the_run_with_what_the_provider_said(
    provider: Provider, status: int, advice: str, streamed: bool
) -> None:
    provider.script(refuses(status, "that will not do"))
    recorder = Recorder()

    async with asked(provider) as model:
        result = await exec_agent(
            Agent(id="a", model=model, retry=AT_ONCE),
            "Hi",
            hooks=[recorder.hooks],
            on_token=(lambda text: None) if streamed else None,
        )

    assert result.reason == "error"
    assert isinstance(result.error, ProviderError)
    assert not isinstance(result.error, TransientModelError)
    assert str(result.error) == f"Model 'gpt-4o' gave no answer, but status {status}: that will not do{advice}"
    assert (result.error.status, len(provider.exchanges)) == (status, 1)
    assert_order(recorder.events)
    (told,) = recorder.of(OnError)
    assert told.error_message == str(result.error)


async def test_an_account_without_credit_is_not_asked_again(provider: Provider) -> None:
    provider.script(refuses(429, "You exceeded your current quota", code="insufficient_quota"))

    async with asked(provider) as model:
        error = await error_of(model, streamed=False)

    assert not isinstance(error, TransientModelError)


@for_each(
    ("headers", "seconds"),
    [
        ({"Retry_After": "7"}, 7.0),
        ({"Retry_After": "0"}, 0.0),
        ({"Retry_After": "1.5"}, 1.5),
        ({"Retry_After_Ms": "250"}, 0.25),
        ({"Retry_After_Ms": "250", "Retry_After": "9"}, 0.25),
        ({"Retry_After": "86400"}, 60.0),
        ({"Retry_After": "9" * 400}, None),
        ({"Retry_After": "1e999"}, None),
        ({"Retry_After": "-3"}, None),
        ({"Retry_After": "nan"}, None),
        ({"Retry_After": "soon"}, None),
        ({"Retry_After": ""}, None),
        ({"Retry_After": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"Retry_After": "Fri, 31 Dec 9999 23:59:59 GMT"}, 60.0),
        ({}, None),
    ],
)
@one_loop
async def test_the_wait_that_a_provider_asks_for_is_kept_within_bounds(
    provider: Provider, headers: dict[str, str], seconds: float | None
) -> None:
    provider.script(refuses(429, **headers))

    async with asked(provider) as model:
        error = await error_of(model, streamed=False)

    assert isinstance(error, TransientModelError)
    assert error.retry_after == seconds


async def test_a_wait_may_be_a_date(provider: Provider) -> None:
    provider.script(refuses(503, Retry_After=format_datetime(datetime.now(UTC) + timedelta(seconds=40), usegmt=True)))

    async with asked(provider) as model:
        error = await error_of(model, streamed=False)

    assert isinstance(error, TransientModelError)
    assert error.retry_after is not None
    assert 1 < error.retry_after <= 40


@both
@for_each(
    "body",
    [
        b"",
        b"garbage",
        b"{",
        b"{}",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"choices": []}',
        b'{"choices": 3}',
        b'{"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [{"message": 5}]}',
        b'{"error": null, "choices": null}',
    ],
)
@one_loop
async def test_a_body_that_is_no_answer_is_an_error_that_does_not_pass(
    provider: Provider, body: bytes, streamed: bool
) -> None:
    provider.script(sends(body))

    async with asked(provider) as model:
        error = await error_of(model, streamed=streamed)

    assert not isinstance(error, TransientModelError)
    assert str(error).startswith("Model 'gpt-4o' gave no answer: ")


@both
async def test_a_page_for_people_is_an_error_that_does_not_pass(provider: Provider, streamed: bool) -> None:
    provider.script(sends(b"<html>" + b"Please log in. " * 700_000, "text/html"))

    async with asked(provider) as model:
        error = await error_of(model, streamed=streamed)

    assert not isinstance(error, TransientModelError)
    assert len(str(error)) < 1000


@both
async def test_an_error_page_of_megabytes_is_told_in_short(provider: Provider, streamed: bool) -> None:
    provider.script(sends(b"<html>" + b"Bad gateway. " * 700_000, "text/html", 502))

    async with asked(provider) as model:
        error = await error_of(model, streamed=streamed)

    assert isinstance(error, TransientModelError)
    assert "Bad gateway." in str(error)
    assert len(str(error)) < 1000


@both
async def test_a_connection_that_is_closed_without_an_answer_may_be_tried_again(
    provider: Provider, streamed: bool
) -> None:
    provider.script(hangs_up, says("ok"))

    async with asked(provider) as model:
        result = await exec_agent(
            Agent(id="a", model=model, retry=AT_ONCE), "Hi", on_token=(lambda text: None) if streamed else None
        )

    assert (result.reason, result.output, len(provider.exchanges)) == ("done", "ok", 2)


@both
async def test_nobody_there_is_an_error_that_may_pass(streamed: bool) -> None:
    with Provider() as gone:
        pass

    async with asked(gone) as model:
        error = await error_of(model, streamed=streamed)

    assert isinstance(error, TransientModelError)
    assert "Connection error" in str(error)


@both
async def test_an_address_that_is_none_is_not_tried_again(provider: Provider, streamed: bool) -> None:
    async with asked(provider, url="ftp://127.0.0.1/v1") as model:
        error = await error_of(model, streamed=streamed)

    assert not isinstance(error, TransientModelError)


def ends_in_a_character(exchange: Exchange) -> None:
    exchange.raw('data: {"choices": [{"delta": {"content": "é'.encode()[:-1])
    exchange.end()


@for_each(
    ("play", "passes"),
    [
        (streams(HALF, then=Exchange.cut), True),
        (streams(HALF_CALL, then=Exchange.cut), True),
        (streams(then=Exchange.cut), True),
        (streams(HALF), True),
        (streams(HALF, "[DONE]"), True),
        (streams(HALF_CALL), True),
        (streams(HALF, then=ends_in_a_character), True),
        (streams(HALF, {"error": {"message": "overloaded", "type": "server_error", "code": None}}), True),
        (streams(HALF, {"error": {"message": "no", "type": "invalid_request_error", "code": None}}), False),
        (streams(HALF, "{gar"), False),
        (streams(HALF, "garbage"), False),
        (streams(HALF, {"choices": 3}), False),
        (streams(HALF, {"choices": [{"delta": {"tool_calls": 7}}]}), False),
        (streams(), False),
        (streams("[DONE]"), False),
    ],
)
async def test_a_stream_that_breaks_is_one_error(provider: Provider, play: Callable[..., None], passes: bool) -> None:
    provider.script(play)
    recorder = Recorder()
    tokens: list[str] = []

    async with asked(provider) as model:
        error = await error_of(model, streamed=True)
        provider.script(play)
        agent = Agent(id="a", model=model, retry=ModelRetry(attempts=1))
        result = await exec_agent(agent, "Hi", hooks=[recorder.hooks], on_token=tokens.append)

    assert isinstance(error, TransientModelError) is passes
    assert (result.reason, type(result.error)) == ("error", type(error))
    assert recorder.names() == ["beforeStep", "afterStep", "onComplete", "onError"]
    assert_order(recorder.events)
    assert len(provider.exchanges) == 1


async def test_a_stream_that_only_forgets_its_usage_or_its_reason_is_whole(provider: Provider) -> None:
    usage = {**chunk({}), "choices": [], "usage": USAGE}
    provider.script(streams(HALF, chunk({}, "stop")), streams(HALF, usage))

    async with asked(provider) as model:
        without_usage, _ = await answer_of(model, user(), streamed=True)
        without_reason, _ = await answer_of(model, user(), streamed=True)

    assert (without_usage.content, without_usage.usage.input_tokens) == ("Hal", 0)
    assert (without_reason.content, without_reason.usage.input_tokens) == ("Hal", 11)


@both
async def test_a_call_that_takes_too_long_is_given_up_and_its_connection_closed(
    provider: Provider, streamed: bool
) -> None:
    provider.script(hangs)

    async with asked(provider, timeout=0.5) as model:
        error = await error_of(model, streamed=streamed)

    assert isinstance(error, TransientModelError)
    assert "Increase `timeout`." in str(error)
    assert await anyio.to_thread.run_sync(provider.exchanges[0].left.wait, 5)


async def test_a_stream_that_falls_silent_is_given_up_and_its_connection_closed(provider: Provider) -> None:
    provider.script(streams(HALF, then=Exchange.wait_for_leave))

    async with asked(provider, stall_timeout=0.5) as model:
        error = await error_of(model, streamed=True)

    assert isinstance(error, TransientModelError)
    assert "Increase `stall_timeout`" in str(error)
    assert await anyio.to_thread.run_sync(provider.exchanges[0].left.wait, 5)


async def test_a_stream_with_signs_of_life_is_not_silent_but_ends_in_time(provider: Provider) -> None:
    def pings(exchange: Exchange) -> None:
        exchange.begin()
        exchange.event(HALF)
        exchange.wait_for_leave(lambda: exchange.raw(b": ping\n\n"))

    provider.script(pings)

    async with asked(provider, stall_timeout=0.6, timeout=1.2) as model:
        error = await error_of(model, streamed=True)

    assert "Increase `timeout`." in str(error)


async def test_a_model_without_a_connection_is_watched_too() -> None:
    async def silent(messages: list[ModelMessage], info: AgentInfo) -> Any:
        yield "Hal"
        await anyio.sleep_forever()

    error = await error_of(PydanticModel(FunctionModel(stream_function=silent), stall_timeout=0.05), streamed=True)

    assert isinstance(error, TransientModelError)
    assert "it sent nothing for 0.05 s" in str(error)


@both
async def test_a_cancelled_call_closes_its_connection_at_once(provider: Provider, streamed: bool) -> None:
    provider.script(streams(HALF, then=Exchange.wait_for_leave) if streamed else hangs)

    async with asked(provider) as model, anyio.create_task_group() as group:
        group.start_soon(lambda: answer_of(model, user(), streamed=streamed))
        with anyio.fail_after(5):
            while not provider.exchanges:
                await anyio.sleep(0.005)
        group.cancel_scope.cancel()

    assert await anyio.to_thread.run_sync(provider.exchanges[0].left.wait, 5)


@both
async def test_a_run_that_is_interrupted_leaves_the_provider(provider: Provider, streamed: bool) -> None:
    provider.script(streams(HALF, then=Exchange.wait_for_leave) if streamed else hangs)
    recorder = Recorder()

    async def stop() -> None:
        while not provider.exchanges:
            await anyio.sleep(0.005)
        assert interrupt("op")

    with anyio.fail_after(5):
        async with asked(provider) as model, anyio.create_task_group() as group:
            group.start_soon(stop)
            result = await exec_agent(
                Agent(id="a", model=model),
                "Hi",
                operation_id="op",
                hooks=[recorder.hooks],
                on_token=(lambda text: None) if streamed else None,
            )

    assert result.reason == "interrupted"
    assert_order(recorder.events)
    assert await anyio.to_thread.run_sync(provider.exchanges[0].left.wait, 5)


async def test_a_stream_that_nobody_reads_to_its_end_closes_its_connection(provider: Provider) -> None:
    provider.script(streams(HALF, then=Exchange.wait_for_leave))

    async with asked(provider) as model:
        stream = model.stream(user())
        assert await anext(stream) == "Hal"
        await stream.aclose()

        assert await anyio.to_thread.run_sync(provider.exchanges[0].left.wait, 5)


@both
async def test_the_next_call_after_a_broken_one_works(provider: Provider, streamed: bool) -> None:
    provider.script(hangs_up, sends(b"garbage"), refuses(500), streams(HALF, then=Exchange.cut), says("ok"))

    async with asked(provider) as model:
        for _ in range(4):
            await error_of(model, streamed=streamed)
        response, _ = await answer_of(model, user(), streamed=streamed)

    assert response.content == "ok"


async def test_of_several_models_one_that_may_pass_is_enough_to_try_again(provider: Provider) -> None:
    provider.script(refuses(401, "who are you"), refuses(503, "busy", Retry_After="3"))

    async with asked(provider) as first, asked(provider) as second:
        each = FallbackModel(first._model, second._model, fallback_on=(Exception,))
        error = await error_of(PydanticModel(each, settings={"max_retries": 0}), streamed=False)

    assert isinstance(error, TransientModelError)
    assert (error.retry_after, "who are you" in str(error), "busy" in str(error)) == (3.0, True, True)


async def test_an_error_of_a_model_of_ones_own_is_told() -> None:
    def broken(messages: list[ModelMessage], info: AgentInfo) -> Any:
        raise LookupError("no such page")

    error = await error_of(PydanticModel(FunctionModel(broken)), streamed=False)

    assert str(error) == "Model 'function:broken:' gave no answer: LookupError: no such page"
    assert (error.__cause__, error.__context__) == (None, None)


async def test_a_call_that_waits_in_the_background_is_an_error() -> None:
    def put_off(messages: list[ModelMessage], info: AgentInfo) -> Any:
        from pydantic_ai.messages import ModelResponse

        return ModelResponse([], state="suspended")

    error = await error_of(PydanticModel(FunctionModel(put_off)), streamed=False)

    assert "in the background, which is not supported" in str(error)


def test_an_error_of_a_provider_survives_pickling() -> None:
    error = ProviderError("gpt", "no", 401)

    copied = pickle.loads(pickle.dumps(error))

    assert (str(copied), copied.status, copied.model) == (str(error), 401, "gpt")


@for_each("seconds", [0, -1, "5", float("nan")])
@for_each("option", ["timeout", "stall_timeout"])
def test_a_timeout_is_a_positive_number(option: str, seconds: Any) -> None:
    with pytest.raises(HookUsageError, match=f"`{option}` of a PydanticModel must be a positive number"):
        PydanticModel("test", **{option: seconds})
