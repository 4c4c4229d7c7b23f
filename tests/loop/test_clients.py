"""The clients of other providers, and the helpers of the clients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import msgspec
import openai
import pytest
from anthropic import beta_tool
from pydantic import BaseModel

from hookline import AfterStep, Deny, Hooks, ModelCall, ModelResponse, Respond
from hookline.errors import HookUsageError, RunStopped
from hookline.loop import wrap
from tests.adapters.provider import Provider, message_item, responds, says, writes

from .dialects import http_client
from .stage import entered, settled

AZURE = {"azure_endpoint": "{host}", "api_key": "key", "api_version": "2024-10-21"}
BEDROCK = {"base_url": "{host}", "aws_access_key": "a", "aws_secret_key": "b", "aws_region": "us-east-1"}
VERTEX = {"base_url": "{host}", "access_token": "t", "project_id": "p", "region": "us"}
MANTLE = {"base_url": "{host}", "api_key": "key", "aws_region": "us-east-1"}

CLIENTS: dict[Any, dict[str, str]] = {
    openai.AzureOpenAI: AZURE,
    openai.AsyncAzureOpenAI: AZURE,
    anthropic.AnthropicBedrock: BEDROCK,
    anthropic.AsyncAnthropicBedrock: BEDROCK,
    anthropic.AnthropicBedrockMantle: MANTLE,
    anthropic.AsyncAnthropicBedrockMantle: MANTLE,
    anthropic.AnthropicFoundry: {"base_url": "{host}", "api_key": "key"},
    anthropic.AnthropicVertex: VERTEX,
    anthropic.AsyncAnthropicVertex: VERTEX,
}

SIGNED = (anthropic.AnthropicBedrock, anthropic.AsyncAnthropicBedrock)
"""Clients that sign what they send with the libraries of Amazon; they send nothing here."""


@pytest.fixture(params=CLIENTS, ids=lambda kind: kind.__name__)
def client(request: pytest.FixtureRequest, provider: Provider) -> Any:
    options = {
        name: text.format(host=provider.url.removesuffix("/v1")) for name, text in CLIENTS[request.param].items()
    }
    is_sync = not request.param.__name__.startswith("Async")
    return request.param(**options, max_retries=0, http_client=http_client(sync=is_sync))


async def ask(run: Any) -> Any:
    request: dict[str, Any] = {"model": "model", "messages": [{"role": "user", "content": "go"}]}
    if isinstance(run.client, openai.OpenAI | openai.AsyncOpenAI):
        return await settled(run.client.chat.completions.create(**request))
    return await settled(run.client.messages.create(max_tokens=5, **request))


def text_of(answer: Any) -> str:
    return answer.choices[0].message.content if hasattr(answer, "choices") else answer.content[0].text


@pytest.mark.anyio
async def test_clients_of_other_providers_go_through_the_hooks(client: Any, provider: Provider) -> None:
    is_openai = isinstance(client, openai.OpenAI | openai.AsyncOpenAI)
    provider.script(says("hi") if is_openai else writes("hi"))
    steps: list[str] = []
    hooks = Hooks("hooks")
    hooks.on(AfterStep)(lambda event: steps.append(event.content))
    if isinstance(client, SIGNED):
        hooks.before(ModelCall)(lambda call: Respond(ModelResponse(content="hi")))

    async with entered(wrap(client, hooks=[hooks])) as run:
        answer = await ask(run)

        assert type(run.client) is type(client)
    await settled(client.close())
    assert (text_of(answer), steps) == ("hi", ["hi"])


@pytest.mark.anyio
async def test_guards_hold_on_the_clients_of_other_providers(client: Any, provider: Provider) -> None:
    asked: list[object] = []
    provider.script(asked.append)
    hooks = Hooks("hooks")
    hooks.guard(ModelCall)(lambda call: Deny("no"))

    with pytest.raises(RunStopped, match="no"):
        async with entered(wrap(client, hooks=[hooks])) as run:
            await ask(run)
    assert asked == []
    await settled(client.close())


def test_guards_hold_on_resources_that_a_client_has_as_plain_attributes(provider: Provider) -> None:
    asked: list[object] = []
    provider.script(asked.append)
    hooks = Hooks("hooks")
    hooks.guard(ModelCall)(lambda call: Deny("no"))
    with openai.OpenAI(base_url=provider.url, api_key="key", http_client=http_client(sync=True)) as client:
        extended: Any = client
        for own in (None, client.chat.completions):  # first without one: what is known of a class must not last
            extended.own = own
            with pytest.raises(RunStopped, match="no"), wrap(client, hooks=[hooks]) as run:
                completions = getattr(run.client, "own") or run.client.chat.completions  # noqa: B009
                completions.create(model="model", messages=[{"role": "user", "content": "go"}])
        assert client.chat.completions._client is client
    assert asked == []


class Answer(BaseModel):
    n: int


GO: Any = [{"role": "user", "content": "go"}]
ASK: Any = {"model": "model", "messages": GO}
JSON = '{"n": 1}'

HELPERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "chat.completions.parse": (
        says(JSON),
        lambda client: client.chat.completions.parse(response_format=Answer, **ASK).choices[0].message.parsed,
    ),
    "responses.parse": (
        responds(message_item(JSON)),
        lambda client: client.responses.parse(text_format=Answer, model="model", input="go").output_parsed,
    ),
    "with_raw_response": (
        says(JSON),
        lambda client: Answer.model_validate_json(
            client.with_raw_response.chat.completions.create(**ASK).parse().choices[0].message.content
        ),
    ),
    "with_options": (
        says(JSON),
        lambda client: client.with_options(timeout=9).chat.completions.parse(response_format=Answer, **ASK)
        .choices[0].message.parsed,
    ),
    "messages.parse": (
        writes(JSON),
        lambda client: client.messages.parse(output_format=Answer, max_tokens=5, **ASK).parsed_output,
    ),
    "beta.messages.parse": (
        writes(JSON),
        lambda client: client.beta.messages.parse(output_format=Answer, max_tokens=5, **ASK).parsed_output,
    ),
}  # fmt: skip


@pytest.fixture
def clients(provider: Provider) -> Iterator[tuple[openai.OpenAI, anthropic.Anthropic]]:
    with (
        openai.OpenAI(base_url=provider.url, api_key="key", http_client=http_client(sync=True)) as chat,
        anthropic.Anthropic(
            base_url=provider.url.removesuffix("/v1"), api_key="key", http_client=http_client(sync=True)
        ) as messages,
    ):
        yield chat, messages


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("name", HELPERS)
def test_helpers_parse_the_answer_that_hooks_left(clients: Any, provider: Provider, name: str, changed: bool) -> None:
    play, use = HELPERS[name]
    provider.script(play)
    hooks = Hooks("hooks")
    steps: list[str] = []
    hooks.on(AfterStep)(lambda event: steps.append(event.content))
    if changed:
        hooks.after(ModelCall)(lambda call, result: msgspec.structs.replace(result, content='{"n": 2}'))

    with wrap(clients["messages" in name], hooks=[hooks]) as run:
        assert use(run.client) == Answer(n=2 if changed else 1)
    assert steps == ['{"n": 2}' if changed else JSON]


def test_model_calls_that_hooks_cannot_see_are_refused(clients: Any, provider: Provider) -> None:
    with wrap(clients[0]) as run, pytest.raises(HookUsageError, match="/completions, so that they would pass by"):
        run.client.completions.create(model="model", prompt="go")


def test_tools_that_the_client_would_run_itself_are_refused(clients: Any, provider: Provider) -> None:
    @beta_tool
    def pay(amount: int) -> str:
        """Pay."""
        raise AssertionError

    provider.script(writes("hi"))

    with wrap(clients[1]) as run, pytest.raises(HookUsageError, match=r"run the tools with `run\.call_tools`"):
        run.client.beta.messages.tool_runner(max_tokens=5, tools=[pay], **ASK).until_done()


def test_a_thousand_runs_leave_no_thread_and_no_file_behind(clients: Any, provider: Provider) -> None:
    psutil = pytest.importorskip("psutil")
    provider.script(says("hi"))
    hooks = Hooks("hooks")
    hooks.on(AfterStep)(lambda event: None)

    def run_once(number: int = 1) -> None:
        with wrap(clients[0], hooks=[hooks]) as run:
            if number % 100 == 0:
                run.client.chat.completions.create(**ASK)

    def run_in_threads(count: int) -> None:
        threads = [threading.Thread(target=run_once) for _ in range(count)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    run_in_threads(50)
    run_once(0)
    before = psutil.Process().num_fds()
    for number in range(1000):
        run_once(number)
    run_in_threads(50)

    assert "hookline-portal" not in {each.name for each in threading.enumerate()}
    assert psutil.Process().num_fds() <= before + 12  # at most four idle event loops are kept, of three files each
