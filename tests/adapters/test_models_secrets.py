"""A key, however it comes back from the provider, is in no result, error, event, log or repr."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from hookline import Agent, Hooks, ModelCall, ModelResponse, OperationResult, exec_agent
from hookline.adapters.models import PydanticModel
from tests.runtime.scenes import AT_ONCE, Recorder
from tests.tables import for_each

from .provider import (
    KEY,
    Exchange,
    Play,
    Provider,
    answer_of,
    asked,
    chunk,
    function,
    hangs_up,
    refuses,
    responds,
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

HEADER = "Tr4velsInAHeaderOfItsOwn"
LEAKS: list[Play] = [
    refuses(401, f"Incorrect API key provided: {KEY}."),
    refuses(400, f"you sent {{'authorization': 'Bearer {KEY}', 'x-team-token': '{HEADER}'}}"),
    refuses(429, KEY, Retry_After="0", X_Echo=KEY),
    refuses(500, "x" * 590 + KEY),
    sends(f"<html>{KEY}</html>".encode(), "text/html"),
    sends(f"<html>{KEY}</html>".encode(), "text/html", 502),
    sends(f'{{"choices": "{KEY}"}}'.encode()),
    sends(f'{{"id": "x", "object": "{KEY}", "created": "{HEADER}", "choices": [], "model": "m"}}'.encode()),
    sends(f"{KEY}".encode()),
    sends(json.dumps({"detail": [{"headers": {"Authorization": f"Bearer {KEY}"}}]}).encode(), status=422),
    hangs_up,
    streams(chunk({"content": "Hal"}), {"error": {"message": f"bad {KEY}", "type": "server_error", "code": None}}),
    streams(chunk({"content": "Hal"}), f"{KEY} {{"),
    streams(chunk({"content": "Hal"}), {"choices": KEY}),
    streams(chunk({"content": "Hal"}), then=Exchange.cut),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Provider]:
    with Provider() as running:
        yield running


@pytest.fixture
def provider(server: Provider) -> Provider:
    server.script()
    return server


def told(result: OperationResult, recorder: Recorder) -> str:
    """Everything that a run tells anybody."""
    error = result.error
    return "\n".join(
        [
            repr(result),
            *map(repr, recorder.events),
            *([repr(error), str(error), repr(vars(error)), *traceback.format_exception(error)] if error else []),
        ]
    )


@both
@for_each("play", LEAKS, ids=range(len(LEAKS)))
@one_loop
async def test_a_key_that_the_provider_sends_back_is_told_to_nobody(
    provider: Provider, play: Play, streamed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    provider.script(play)
    recorder = Recorder()

    with caplog.at_level(logging.DEBUG):
        async with asked(provider, settings={"extra_headers": {"x-team-token": HEADER}}) as model:
            result = await exec_agent(
                Agent(id="a", model=model, retry=AT_ONCE),
                "Hi",
                hooks=[recorder.hooks],
                on_token=(lambda text: None) if streamed else None,
            )

    assert result.reason == "error"
    assert KEY not in told(result, recorder)
    assert HEADER not in told(result, recorder)
    assert (result.error.__cause__, result.error.__context__) == (None, None)  # type: ignore[union-attr]
    ours = [record for record in caplog.records if record.name.partition(".")[0] == "hookline"]
    assert not any(KEY in record.getMessage() or HEADER in record.getMessage() for record in ours)
    # httpcore and httpcore2 write down what a server sends, headers too, at DEBUG: an echoed key is the server's word.
    others = [record for record in caplog.records if record.name.partition(".")[0] not in ("httpcore", "httpcore2")]
    assert not any(KEY in record.getMessage() for record in others)


@both
async def test_a_good_run_tells_nobody_its_key(
    provider: Provider, streamed: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", provider.url)
    provider.script(says(None, function("none", "{}", "c1")), says("ok"))
    recorder = Recorder()

    with caplog.at_level(logging.DEBUG):
        agent = Agent(id="a", model="openai-chat:gpt-4o")
        result = await exec_agent(
            agent, "Hi", hooks=[recorder.hooks], on_token=(lambda text: None) if streamed else None
        )

    assert result.reason == "done"
    assert KEY not in told(result, recorder) + repr(agent) + repr(vars(agent.model))
    assert KEY not in caplog.text
    assert provider.exchanges[0].headers["authorization"] == f"Bearer {KEY}"


async def test_a_key_with_a_line_break_is_not_told_by_the_http_client(provider: Provider) -> None:
    async with httpx2.AsyncClient(verify=False) as client:
        wire = OpenAIProvider(base_url=provider.url, api_key=KEY + "\n", http_client=client)
        model = PydanticModel(OpenAIChatModel("gpt-4o", provider=wire), settings={"max_retries": 0})
        with pytest.raises(Exception, match="gave no answer") as caught:
            await answer_of(model, user(), streamed=False)

    assert KEY not in str(caught.value)
    assert not provider.exchanges


@for_each(
    "text",
    [
        "Bearer sk-abcdefghijklmnop1234",
        "Authorization: Basic dXNlcjpwYXNzd29yZA==",
        "Incorrect API key provided: sk-proj-*****************Xy7z",
        "x-api-key: 0123456789abcdef0123",
        'api_key="0123456789abcdef0123"',
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "https://me:hunter22hunter@proxy.example/v1",
    ],
)
@one_loop
async def test_what_looks_like_a_secret_is_hidden_although_nobody_knows_it(text: str) -> None:
    def fails(messages: list[ModelMessage], info: AgentInfo) -> Any:
        raise ModelAPIError("gpt", f"refused: {text}")

    with pytest.raises(Exception, match="refused") as caught:
        await answer_of(PydanticModel(FunctionModel(fails)), user(), streamed=False)

    secret = max(text.replace('"', " ").split(), key=len).removeprefix("api_key=")
    assert secret not in str(caught.value)
    assert "[redacted]" in str(caught.value)


async def test_a_secret_of_the_environment_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_API_TOKEN", "plainwordsecret")

    def fails(messages: list[ModelMessage], info: AgentInfo) -> Any:
        raise ModelHTTPError(400, "gpt", {"error": {"message": "plainwordsecret is wrong"}})

    with pytest.raises(Exception, match="is wrong") as caught:
        await answer_of(PydanticModel(FunctionModel(fails)), user(), streamed=False)

    assert "plainwordsecret" not in str(caught.value)


async def test_a_secret_in_the_settings_of_one_call_is_hidden(provider: Provider) -> None:
    provider.script(refuses(400, f"what is {HEADER}?"))
    call = ModelCall(messages=user().messages, settings={"extra_headers": {"X-Goog-Api-Key": HEADER}})

    async with asked(provider) as model:
        with pytest.raises(Exception, match="what is") as caught:
            await model.respond(call)

    assert HEADER not in str(caught.value)
    assert provider.exchanges[0].headers["x-goog-api-key"] == HEADER


async def test_what_is_kept_for_later_calls_holds_no_key(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", provider.url.replace("http://", "http://me:hunter22@"))
    content = [{"type": "output_text", "text": "ok", "annotations": []}]
    item = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": content}
    provider.script(responds(item))
    seen: list[ModelResponse] = []
    hooks = Hooks("h")
    hooks.after(ModelCall)(lambda call, response: seen.append(response))

    result = await exec_agent(Agent(id="a", model="openai:gpt-5"), "Hi", hooks=[hooks])

    assert result.output == "ok"
    assert seen[0].details
    assert "hunter22" not in repr(result) + repr(seen)
    assert KEY not in repr(result) + repr(seen)
