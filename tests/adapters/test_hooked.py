"""`hooked(thing, hooks=[...])`: what it takes, what it refuses, and what it says then."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from hookline import Agent, Approve, Deny, Hooks, Reject, ScriptedModel, StepCall, ToolCall
from hookline.adapters import hooked
from hookline.adapters._attaching import decisions_by_call
from hookline.errors import HookDefinitionError, HookUsageError, UnsupportedHookError


def pydantic_agent() -> Any:
    return pytest.importorskip("pydantic_ai").Agent("test", name="a")


def openai_agent() -> Any:
    return pytest.importorskip("agents").Agent(name="a")


def langchain_agent() -> Any:
    create_agent = pytest.importorskip("langchain.agents").create_agent
    from langchain_core.language_models.fake_chat_models import FakeListChatModel

    from hookline.adapters.langchain import HooklineMiddleware

    return create_agent(FakeListChatModel(responses=["hi"]), [], middleware=[HooklineMiddleware()])


def strands_agent() -> Any:
    return pytest.importorskip("strands").Agent(callback_handler=None)


def framework_agent() -> Any:
    framework = pytest.importorskip("agent_framework")

    class Client(framework.BaseChatClient):  # type: ignore[misc,name-defined]
        def _inner_get_response(self, **given: Any) -> Any:
            raise NotImplementedError

    return framework.Agent(client=Client(), name="a")


def adk_runner() -> Any:
    runners = pytest.importorskip("google.adk.runners")
    from google.adk.agents.llm_agent import LlmAgent

    return runners.InMemoryRunner(LlmAgent(name="a", model="m"), app_name="stage")


def mcp_server() -> Any:
    return pytest.importorskip("fastmcp").FastMCP("a")


def claude_options() -> Any:
    return pytest.importorskip("claude_agent_sdk").ClaudeAgentOptions()


THINGS: dict[str, Callable[[], Any]] = {
    "Pydantic AI": pydantic_agent,
    "OpenAI Agents": openai_agent,
    "LangChain": langchain_agent,
    "Strands": strands_agent,
    "Agent Framework": framework_agent,
    "Google ADK": adk_runner,
    "FastMCP": mcp_server,
    "Claude Agent SDK": claude_options,
}
each_thing = pytest.mark.parametrize("make", THINGS.values(), ids=list(THINGS))


@each_thing
def test_hooks_are_given_by_position_or_by_name_and_may_be_left_out(make: Callable[[], Any]) -> None:
    hooks = Hooks("guard")
    hooks.guard(ToolCall)(lambda call: Deny("no"))

    made = [hooked(make(), [hooks]), hooked(make(), hooks=[hooks], user_id="ann"), hooked(make())]

    assert len({type(each) for each in made}) == 1


@pytest.mark.parametrize(
    "make", [pydantic_agent, openai_agent, strands_agent, framework_agent, adk_runner, claude_options]
)
def test_what_is_returned_shows_its_hooks(make: Callable[[], Any]) -> None:
    shown = repr(hooked(make(), [Hooks("safety")]))

    assert shown.startswith("Hooked")
    assert "Hooks('safety'" in shown


@each_thing
def test_a_bundle_in_place_of_a_list_is_refused_in_the_same_words(make: Callable[[], Any]) -> None:
    with pytest.raises(HookDefinitionError, match="hooks: give a list of bundles and single hooks; got"):
        hooked(make(), hooks=Hooks("alone"))  # type: ignore[arg-type]  # the mistake under test


@each_thing
def test_a_hook_that_is_never_called_is_refused_before_anything_runs(make: Callable[[], Any]) -> None:
    hooks = Hooks("steps")
    hooks.before(StepCall)(lambda call: None)

    with pytest.raises(UnsupportedHookError, match=r"before\(StepCall\)"):
        hooked(make(), [hooks])
    assert hooked(make(), [hooks], best_effort=True) is not None


@each_thing
def test_an_option_that_does_not_exist_is_refused_with_the_nearest_one(make: Callable[[], Any]) -> None:
    with pytest.raises(HookUsageError, match=r"has no option 'userid'\. Did you mean 'user_id'"):
        hooked(make(), [], userid="ann")


@each_thing
def test_a_class_in_place_of_an_object_is_refused(make: Callable[[], Any]) -> None:
    kind = type(make())

    with pytest.raises(HookUsageError, match=rf"Create an object of it first: hooked\({kind.__name__}\(\.\.\.\)"):
        hooked(kind, [])


async def run_of_an_agent() -> None: ...


@pytest.mark.parametrize(
    ("thing", "hint"),
    [
        ([1, 2], "Attach hooks to one agent at a time"),
        ("gpt", "Create the agent with your framework first"),
        (int, "Pass an object, not a class"),
        (print, "It is a function"),
        (Agent(id="a", model=ScriptedModel(["hi"])), r"exec_agent\(agent, prompt, hooks=\[\.\.\.\]\)"),
        (3, "an object of class int. It takes an `Agent` of Pydantic AI;"),
        (None, "an object of class NoneType. It takes"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_it_does_not_understand_is_refused_with_what_was_meant(thing: Any, hint: str) -> None:
    with pytest.raises(HookUsageError, match=hint):
        hooked(thing, [])


def test_a_coroutine_is_refused_with_what_was_forgotten() -> None:
    run = run_of_an_agent()

    with pytest.raises(HookUsageError, match="a coroutine that was not awaited"):
        hooked(run, [])
    run.close()


def test_the_runner_of_openai_agents_is_refused_with_the_agent_to_give() -> None:
    agents = pytest.importorskip("agents")

    with pytest.raises(HookUsageError, match="Pass the agent that you run with it"):
        hooked(agents.Runner, [])


def test_an_agent_that_has_hooks_already_is_refused_with_what_to_do() -> None:
    agents = pytest.importorskip("agents")

    with pytest.raises(HookUsageError, match="It already has hooks: pass the original agent"):
        hooked(hooked(agents.Agent(name="a"), []), [])


def test_hooks_of_a_server_may_come_from_a_generator() -> None:
    fastmcp, hooks = pytest.importorskip("fastmcp"), Hooks("guard")
    hooks.guard(ToolCall)(lambda call: Deny("not today"))
    server = fastmcp.FastMCP("shop")
    server.tool(lambda: "sold", name="buy")

    async def buy() -> Any:
        async with fastmcp.Client(server) as client:
            return await client.call_tool("buy", raise_on_error=False)

    assert hooked(server, (each for each in [hooks])) is server
    result = asyncio.run(buy())
    assert (result.is_error, result.content[0].text) == (True, "not today")


def test_a_client_is_attached_as_the_loop_around_it() -> None:
    loop, openai = pytest.importorskip("hookline.loop"), pytest.importorskip("openai")
    client = openai.AsyncOpenAI(api_key="none")

    assert type(hooked(client, [])) is type(loop.wrap(client, hooks=[]))


def test_another_object_of_a_framework_is_refused_with_the_one_to_give() -> None:
    pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.test import TestModel

    with pytest.raises(HookUsageError, match="From this package, pass an `Agent` of Pydantic AI"):
        hooked(TestModel(), [])


def test_a_class_of_the_users_own_that_has_the_name_of_a_framework_is_not_taken_for_it() -> None:
    class Agent:
        """Not of any framework."""

    with pytest.raises(HookUsageError, match="cannot attach hooks"):
        hooked(Agent(), [])


def test_a_subclass_of_a_frameworks_agent_is_taken_for_one() -> None:
    agents = pytest.importorskip("agents")

    class Mine(agents.Agent):  # type: ignore[misc,name-defined]
        """An agent of the user's own class."""

    assert hooked(Mine(name="a"), []).agent.name == "a"


def test_no_framework_is_imported_to_look_at_an_object() -> None:
    program = (
        "import sys\n"
        "from hookline.adapters import hooked\n"
        "try:\n    hooked(object(), [])\nexcept Exception as error:\n    print(type(error).__name__)\n"
        "names = {'agents', 'pydantic_ai', 'langgraph', 'fastmcp', 'agent_framework', 'openai', 'anthropic'}\n"
        "print(sorted(names & set(sys.modules)))\n"
    )

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ran.stdout.split("\n")[:2] == ["HookUsageError", "[]"]


@pytest.mark.parametrize(
    ("decisions", "problem"),
    [
        (Approve("t1"), "Pass a list of decisions"),
        (["t1"], r"A decision must be an Approve\(...\) or a Reject\(...\); got 't1'"),
        ([Approve("t9")], "No tool call 't9' waits for a person. Waiting calls: 't1', 't2'"),
        ([Approve("t1"), Reject("t1")], "Tool call 't1' has two decisions"),
    ],
)
def test_decisions_that_make_no_sense_are_refused(decisions: Any, problem: str) -> None:
    with pytest.raises(HookUsageError, match=problem):
        decisions_by_call(decisions, ["t1", "t2"])


def test_an_adapter_without_its_framework_says_what_to_install() -> None:
    packages = [
        *("pydantic_ai", "agents", "langchain", "strands", "agent_framework", "google.adk", "fastmcp"),
        "claude_agent_sdk",
    ]
    adapters = ["openai_agents" if each == "agents" else each.replace(".", "_") for each in packages]
    program = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({packages}))\n"
        f"for name in {adapters}:\n"
        "    try:\n        importlib.import_module(f'hookline.adapters.{name}')\n"
        "    except Exception as error:\n        print(name, type(error).__name__)\n"
    )

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ran.stdout.splitlines() == [f"{name} MissingExtraError" for name in adapters]
