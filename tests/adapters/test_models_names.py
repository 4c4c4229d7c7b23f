"""Models by name: what is checked at once, what on first use, and when connections are closed."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from pydantic_ai.models.test import TestModel

from hookline import Agent, HooklineError, Message, ModelCall, TransientModelError, exec_agent, tool
from hookline.adapters.models import MissingProviderError, ModelNameError, PydanticModel, model_named
from hookline.errors import AgentDefinitionError, HookUsageError, ModelError, install_command
from tests.runtime.scenes import AT_ONCE, tool_texts
from tests.tables import for_each

from .provider import (
    KEY,
    Provider,
    call_item,
    function,
    message_item,
    reasoning_item,
    refuses,
    responds,
    says,
    user,
)

ignore_open_generators = pytest.mark.filterwarnings(
    "ignore:Async generator '(openai|httpx2|httpcore2|pydantic_ai):ResourceWarning"
)
both = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


@pytest.fixture(scope="module")
def server() -> Iterator[Provider]:
    with Provider() as running:
        yield running


@pytest.fixture
def provider(server: Provider, monkeypatch: pytest.MonkeyPatch) -> Provider:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.script()
    return server


@tool
async def search(query: str) -> str:
    """Search the web."""
    return f"3 results for {query}"


@both
@pytest.mark.anyio
@ignore_open_generators
async def test_an_agent_with_a_model_by_name_runs(provider: Provider, streamed: bool) -> None:
    provider.script(
        responds(reasoning_item("Hm.", "S1GNED"), call_item("search", '{"query": "hooks"}', "c1")),
        responds(message_item("Three of them."), pieces=["Three", " of them."]),
    )
    agent = Agent(id="a", model="openai:gpt-5", tools=[search], instructions="Be brief.")
    tokens: list[str] = []

    result = await exec_agent(agent, "How many?", on_token=tokens.append if streamed else None)

    assert (result.reason, result.output) == ("done", "Three of them.")
    assert (tool_texts(result), tokens) == (["3 results for hooks"], ["Three", " of them."] if streamed else [])
    assert [exchange.path for exchange in provider.exchanges] == ["/v1/responses"] * 2
    _, _, reasoning, call, result_item = provider.bodies[1]["input"]
    assert (reasoning["type"], reasoning["encrypted_content"]) == ("reasoning", "S1GNED")
    assert (call["type"], call["call_id"], result_item["call_id"]) == ("function_call", "c1", "c1")


@both
@pytest.mark.anyio
@ignore_open_generators
async def test_the_other_protocol_of_a_provider_has_a_name_too(provider: Provider, streamed: bool) -> None:
    provider.script(says(None, function("search", '{"query": "hooks"}', "c1")), says("Three."))
    agent = Agent(id="a", model="openai-chat:gpt-4o", tools=[search])

    result = await exec_agent(agent, "How many?", on_token=(lambda text: None) if streamed else None)

    assert (result.reason, result.output) == ("done", "Three.")
    assert [exchange.path for exchange in provider.exchanges] == ["/v1/chat/completions"] * 2


@pytest.mark.anyio
async def test_a_client_that_was_made_for_a_name_does_not_ask_again_by_itself(provider: Provider) -> None:
    provider.script(refuses(503))

    with pytest.raises(TransientModelError):
        await PydanticModel("openai-chat:gpt-4o").respond(user())

    assert len(provider.exchanges) == 1


@pytest.mark.anyio
async def test_models_of_one_name_share_their_connection(provider: Provider) -> None:
    provider.script(says("ok"))

    for _ in range(3):
        await exec_agent(Agent(id="a", model="openai-chat:gpt-4o", retry=AT_ONCE), "Hi")

    assert len({exchange.handler.client_address for exchange in provider.exchanges}) == 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_one_agent_works_on_one_event_loop_after_another(provider: Provider, backend: str) -> None:
    provider.script(says("ok"))
    agent = Agent(id="a", model="openai-chat:gpt-4o")

    outputs = [anyio.run(exec_agent, agent, "Hi", backend=backend).output for _ in range(3)]

    assert outputs == ["ok"] * 3
    assert len({exchange.handler.client_address for exchange in provider.exchanges}) == 3


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_end_of_an_event_loop_closes_its_connections(provider: Provider, backend: str) -> None:
    provider.script(says("ok"))

    anyio.run(exec_agent, Agent(id="a", model="openai-chat:gpt-4o"), "Hi", backend=backend)

    (exchange,) = provider.exchanges
    assert exchange.handler.done.wait(5)


@pytest.mark.parametrize("url", ["http://host:hunter22/v1", "http://me:hunter22@host:hunter22/v1"])
def test_an_address_with_a_key_in_the_wrong_place_does_not_tell_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-any-key")
    monkeypatch.setenv("OPENAI_BASE_URL", url)

    result = anyio.run(exec_agent, Agent(id="a", model="openai:gpt-5"), "Hi")

    assert result.reason == "error"
    assert "cannot be used" in str(result.error)
    assert "hunter22" not in str(result.error)


def test_an_agent_can_be_defined_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    agent = Agent(id="a", model="openai:gpt-5")

    result = anyio.run(exec_agent, agent, "Hi")

    assert result.reason == "error"
    assert isinstance(result.error, ModelError)
    assert not isinstance(result.error, TransientModelError)
    assert str(result.error) == (
        "Model 'openai:gpt-5' cannot be used. Set the `OPENAI_API_KEY` environment variable or pass it via "
        "`OpenAIProvider(api_key=...)` to use the OpenAI provider."
    )
    assert result.error.__context__ is None


@for_each(
    ("name", "problem"),
    [
        ("", "a name is `provider:model`"),
        ("gpt-5", "a name is `provider:model`"),
        (":gpt-5", "a name is `provider:model`"),
        ("openai:", "a name is `provider:model`"),
        ("openai: ", "a name is `provider:model`"),
        (" openai:gpt-5", "a name is `provider:model`"),
        ("opnai:gpt-5", "there is no provider 'opnai'. Did you mean 'openai:gpt-5"),
    ],
)
def test_a_name_that_is_none_is_refused_at_once(name: str, problem: str) -> None:
    with pytest.raises(ModelNameError) as caught:
        PydanticModel(name)

    assert str(caught.value).startswith(f"There is no model {name!r}: {problem}")
    assert isinstance(caught.value, HooklineError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_an_agent_whose_model_nobody_knows_is_refused_at_once() -> None:
    with pytest.raises(AgentDefinitionError, match="no adapter that is installed knows the model"):
        Agent(id="a", model="opnai:gpt-5")


def test_a_provider_that_is_not_installed_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "groq"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "pydantic_ai.providers.groq", raising=False)
    monkeypatch.setitem(sys.modules, "groq", None)

    with pytest.raises(MissingProviderError) as caught:
        PydanticModel("groq:llama")

    assert str(caught.value) == (
        "Model 'groq:llama' needs a package that is not installed: pip install 'pydantic-ai-slim[groq]'"
    )
    assert isinstance(caught.value, ImportError)
    with pytest.raises(MissingProviderError):
        Agent(id="a", model="groq:llama")


def test_without_pydantic_ai_the_extra_is_named() -> None:
    program = """
import sys
sys.modules["pydantic_ai"] = None
from hookline import Agent, MissingExtraError
for use in (lambda: __import__("hookline.adapters.models"), lambda: Agent(id="a", model="openai:gpt-5")):
    try:
        use()
    except MissingExtraError as error:
        print(error)
"""

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.count(install_command("models")) == 2


@pytest.mark.parametrize(
    ("name", "provider", "own"),
    [
        ("openai:gpt-5", "openai", "gpt-5"),
        ("openai-chat:gpt-4o", "openai", "gpt-4o"),
        ("ollama:llama3.2:1b", "ollama", "llama3.2:1b"),
        ("test", "test", "test"),
    ],
)
def test_a_model_tells_its_name_and_who_runs_it(name: str, provider: str, own: str) -> None:
    model = PydanticModel(name)

    assert (model.provider, model.name) == (provider, own)
    assert PydanticModel(name, name="mine").name == "mine"


def test_the_entry_point_gives_a_model_or_leaves_it_to_others() -> None:
    known = model_named("openai:gpt-5")

    assert isinstance(known, PydanticModel)
    assert model_named("mycompany:gpt-5") is None


def test_an_instance_tells_its_name_and_who_runs_it() -> None:
    model = PydanticModel(TestModel(model_name="mine"))

    assert (model.provider, model.name, repr(model)) == ("test", "mine", "PydanticModel(test:mine)")


@pytest.mark.parametrize("given", [None, 5, TestModel, object()])
def test_anything_else_is_no_model(given: Any) -> None:
    with pytest.raises(HookUsageError, match="PydanticModel takes a name or a model of Pydantic AI"):
        PydanticModel(given)


def test_settings_are_a_mapping() -> None:
    with pytest.raises(HookUsageError, match="`settings` of a PydanticModel must be a mapping"):
        PydanticModel("test", settings=[("temperature", 1)])  # type: ignore[arg-type]


def test_the_test_model_needs_no_provider() -> None:
    response = anyio.run(PydanticModel("test").respond, ModelCall(messages=[Message(role="user", content="Hi")]))

    assert response.content == "success (no tool calls)"
