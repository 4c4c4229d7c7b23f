"""For each framework a run of one tool call, with its fake model, and hooks of its own that do nothing.

Frameworks are imported where they are measured, since not all are installed everywhere.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hookline.hooks import AnyHook
from hookline.runtime import Capabilities

Run = Callable[[], Awaitable[Any]]

ARGS = {"a": 1, "b": 2}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A run in three ways.

    Attributes:
        capabilities: The events that can be observed.
        bare: Without hooks.
        hooked: From hooks to the run that has them.
        own: With hooks of the framework's, at the same points as far as it has them.
        closing: What is closed at the end.
    """

    capabilities: Capabilities
    bare: Run
    hooked: Callable[[Sequence[AnyHook]], Run]
    own: Run
    closing: AsyncExitStack = field(default_factory=AsyncExitStack)


@dataclass(frozen=True, kw_only=True)
class Goals:
    """What hookline may cost, as ratios.

    Attributes:
        zero: An attached run without hooks, to a bare one.
        against_bare: A run with observers of all events, to a bare one.
        against_own: The same run, to one with hooks of the framework's own.
    """

    zero: float | None = None
    against_bare: float | None = None
    against_own: float | None = None


def version_of(distribution: str) -> str | None:
    """Of what is installed; `None` if it is not."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def pydantic_ai(*, per_run: bool = False) -> Workload:
    from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.models.function import FunctionModel

    from hookline.adapters.pydantic_ai import DRIVES, Hookline

    async def scripted(messages: Any, info: Any) -> ModelResponse:
        asks = ToolCallPart("add", ARGS, tool_call_id="c1")
        return ModelResponse(parts=[asks if len(messages) == 1 else TextPart("done")])

    class Own(AbstractCapability):
        async def wrap_run(self, ctx, *, handler):
            return await handler()

        async def before_node_run(self, ctx, *, node):
            return node

        async def wrap_model_request(self, ctx, *, request_context, handler):
            return await handler(request_context)

        async def wrap_tool_execute(self, ctx, *, call, tool_def, args, handler):
            return await handler(args)

    def agent(*capabilities: AbstractCapability) -> Agent:
        return Agent(FunctionModel(scripted, model_name="scripted"), tools=[add], capabilities=capabilities)

    def hooked(hooks: Sequence[AnyHook]) -> Run:
        attached = agent(Hookline(hooks))
        return lambda: attached.run("go")

    plain, own = agent(), agent(Own())
    if per_run:
        return Workload(
            capabilities=DRIVES,
            bare=lambda: plain.run("go"),
            hooked=lambda hooks: lambda: plain.run("go", capabilities=[Hookline(hooks)]),
            own=lambda: plain.run("go", capabilities=[Own()]),
        )
    return Workload(capabilities=DRIVES, bare=lambda: plain.run("go"), hooked=hooked, own=lambda: own.run("go"))


def openai_agents() -> Workload:
    from agents import Agent, Model, ModelResponse, RunConfig, RunHooks, Usage, function_tool
    from agents.run import AgentRunner
    from agents.testing import assistant_message, function_call

    from hookline.adapters.openai_agents import DRIVES, HooklineRunner

    class Scripted(Model):
        async def get_response(self, system_instructions, input, *given, **options):  # noqa: A002
            asked = isinstance(input, list) and input[-1].get("type") == "function_call_output"
            item = assistant_message("done") if asked else function_call("add", ARGS, call_id="c1")
            return ModelResponse(output=[item], usage=Usage(requests=1), response_id="r1")

        def stream_response(self, *given, **options):
            raise NotImplementedError

    class Own(RunHooks):
        async def on_agent_start(self, context, agent): ...
        async def on_agent_end(self, context, agent, output): ...
        async def on_llm_start(self, context, agent, system_prompt, input_items): ...
        async def on_llm_end(self, context, agent, response): ...
        async def on_tool_start(self, context, agent, tool): ...
        async def on_tool_end(self, context, agent, tool, result): ...
        async def on_handoff(self, context, from_agent, to_agent): ...

    agent = Agent(name="adder", model=Scripted(), tools=[function_tool(add)])
    offline = RunConfig(tracing_disabled=True)
    runner = AgentRunner()

    def hooked(hooks: Sequence[AnyHook]) -> Run:
        return lambda: HooklineRunner(hooks).run(agent, "go", run_config=offline)

    return Workload(
        capabilities=DRIVES,
        bare=lambda: runner.run(agent, "go", run_config=offline),
        hooked=hooked,
        own=lambda: runner.run(agent, "go", run_config=offline, hooks=Own()),
    )


def langchain() -> Workload:
    from langchain.agents import create_agent
    from langchain.agents.middleware import AgentMiddleware
    from langchain_core.language_models.chat_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langchain_core.tools import tool

    from hookline.adapters.langchain import DRIVES, HooklineMiddleware, hooked

    class Scripted(BaseChatModel):
        _llm_type = "scripted"

        def bind_tools(self, tools, **given):
            return self

        def _generate(self, messages, stop=None, run_manager=None, **given):
            asks = AIMessage("", tool_calls=[{"name": "add", "args": ARGS, "id": "c1"}])
            said = AIMessage("done") if messages[-1].type == "tool" else asks
            return ChatResult(generations=[ChatGeneration(message=said)])

        async def _agenerate(self, messages, stop=None, run_manager=None, **given):
            return self._generate(messages)

    class Own(AgentMiddleware):
        async def awrap_model_call(self, request, handler):
            return await handler(request)

        async def awrap_tool_call(self, request, handler):
            return await handler(request)

    task = {"messages": [("user", "go")]}
    plain, own, ours = (
        create_agent(Scripted(), [tool(add)], middleware=given) for given in ([], [Own()], [HooklineMiddleware()])
    )
    return Workload(
        capabilities=DRIVES,
        bare=lambda: plain.ainvoke(task),
        hooked=lambda hooks: lambda: hooked(ours, hooks=hooks).ainvoke(task),
        own=lambda: own.ainvoke(task),
    )


def strands() -> Workload:
    from strands import Agent, hooks, tool
    from strands.models.model import Model

    from hookline.adapters.strands import DRIVES, hooked

    class Scripted(Model):
        def update_config(self, **config): ...

        def get_config(self):
            return {"model_id": "scripted"}

        async def structured_output(self, *args, **given):
            yield {}

        async def stream(self, messages, tool_specs=None, system_prompt=None, **given):
            asked = any("toolResult" in block for block in messages[-1]["content"])
            yield {"messageStart": {"role": "assistant"}}
            if not asked:
                yield {"contentBlockStart": {"start": {"toolUse": {"name": "add", "toolUseId": "c1"}}}}
            said = {"text": "done"} if asked else {"toolUse": {"input": json.dumps(ARGS)}}
            yield {"contentBlockDelta": {"delta": said}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn" if asked else "tool_use"}}

    points = (
        hooks.BeforeInvocationEvent,
        hooks.AfterInvocationEvent,
        hooks.BeforeModelCallEvent,
        hooks.AfterModelCallEvent,
        hooks.BeforeToolCallEvent,
        hooks.AfterToolCallEvent,
        hooks.AfterToolsEvent,
    )

    def agent() -> Agent:
        # One for each way to run it: an agent keeps what was ever registered with it.
        return Agent(model=Scripted(), tools=[tool(add)], callback_handler=None)

    def run(agent: Agent, of: Any) -> Run:
        async def once() -> Any:
            agent.messages.clear()
            return await of().invoke_async("go")

        return once

    def with_hooks(given: Sequence[AnyHook]) -> Run:
        one = agent()
        return run(one, lambda: hooked(one, hooks=given))

    plain, own = agent(), agent()
    for point in points:
        own.add_hook(lambda event: None, point)
    return Workload(capabilities=DRIVES, bare=run(plain, lambda: plain), hooked=with_hooks, own=run(own, lambda: own))


def agent_framework() -> Workload:
    from agent_framework import (
        Agent,
        AgentMiddleware,
        BaseChatClient,
        ChatMiddleware,
        ChatMiddlewareLayer,
        ChatResponse,
        Content,
        FunctionInvocationLayer,
        FunctionMiddleware,
        Message,
        tool,
    )

    from hookline.adapters.agent_framework import DRIVES, HooklineMiddleware

    class Scripted(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
        async def _inner_get_response(self, *, messages, stream, options, **given):
            asked = any(content.type == "function_result" for content in messages[-1].contents)
            asks = Content.from_function_call(call_id="c1", name="add", arguments=json.dumps(ARGS))
            return ChatResponse(messages=[Message("assistant", ["done" if asked else asks])])

    class OfRun(AgentMiddleware):
        async def process(self, context, call_next):
            await call_next()

    class OfModel(ChatMiddleware):
        async def process(self, context, call_next):
            await call_next()

    class OfTool(FunctionMiddleware):
        async def process(self, context, call_next):
            await call_next()

    agent = Agent(client=Scripted(), tools=[tool(add, approval_mode="never_require")])
    return Workload(
        capabilities=DRIVES,
        bare=lambda: agent.run("go"),
        hooked=lambda hooks: lambda: agent.run("go", middleware=[HooklineMiddleware(hooks)]),
        own=lambda: agent.run("go", middleware=[OfRun(), OfModel(), OfTool()]),
    )


def google_adk() -> Workload:
    from google.adk.agents import LlmAgent
    from google.adk.apps.app import App
    from google.adk.models.base_llm import BaseLlm
    from google.adk.models.llm_response import LlmResponse
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.runners import Runner
    from google.adk.sessions import InMemorySessionService
    from google.genai import types

    from hookline.adapters.google_adk import DRIVES, hooked

    class Scripted(BaseLlm):
        async def generate_content_async(self, llm_request, stream=False):
            asked = any(part.function_response for part in llm_request.contents[-1].parts)
            asks = types.Part(function_call=types.FunctionCall(id="c1", name="add", args=ARGS))
            said = types.Content(role="model", parts=[types.Part(text="done") if asked else asks])
            usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=10, candidates_token_count=5)
            yield LlmResponse(content=said, usage_metadata=usage)

    async def nothing(self: BasePlugin, **given: Any) -> None: ...

    points = [name for name in vars(BasePlugin) if name.startswith(("before_", "after_", "on_"))]
    own = type("Own", (BasePlugin,), dict.fromkeys(points, nothing))(name="own")
    sessions = itertools.count()

    def runner(*plugins: BasePlugin) -> Runner:
        agent = LlmAgent(name="adder", model=Scripted(model="scripted"), tools=[add])
        app = App(name="bench", root_agent=agent, plugins=list(plugins))
        return Runner(app=app, session_service=InMemorySessionService(), auto_create_session=True)

    def run(of: Callable[[], Runner]) -> Run:
        async def once() -> None:
            task = types.Content(role="user", parts=[types.Part(text="go")])
            async for _ in of().run_async(user_id="you", session_id=str(next(sessions)), new_message=task):
                pass

        return once

    plain, with_own = runner(), runner(own)
    return Workload(
        capabilities=DRIVES,
        bare=run(lambda: plain),
        hooked=lambda hooks: run(lambda: hooked(plain, hooks=hooks)),
        own=run(lambda: with_own),
    )


def fastmcp_call() -> Workload:
    from fastmcp import Client, FastMCP
    from fastmcp.server.middleware import Middleware

    from hookline.adapters.fastmcp import DRIVES, HooklineMiddleware

    class Own(Middleware):
        async def on_call_tool(self, context, call_next):
            return await call_next(context)

    closing = AsyncExitStack()

    def run(*middleware: Middleware) -> Run:
        server = FastMCP("bench", tools=[add])
        for each in middleware:
            server.add_middleware(each)
        client = Client(server, mode="legacy")

        async def once() -> Any:
            if not client.is_connected():
                await closing.enter_async_context(client)
            return await client.call_tool("add", ARGS)

        return once

    return Workload(
        capabilities=DRIVES,
        bare=run(),
        hooked=lambda hooks: run(HooklineMiddleware(hooks=hooks)),
        own=run(Own()),
        closing=closing,
    )


def claude_agent_sdk() -> Workload:
    import claude_agent_sdk as sdk

    from hookline import ModelResponse, ToolRequest
    from hookline.adapters.claude_agent_sdk import DRIVES, query
    from hookline.evals.adapter_contract import Scene
    from tests.adapters.claude_agent_sdk.cli import FakeCli

    asks = ToolRequest(tool_name="add", args=ARGS, tool_call_id="c1")
    scene = Scene(turns=[ModelResponse(tool_calls=[asks]), ModelResponse(content="done")])

    @sdk.tool("add", "Add two numbers.", {"a": int, "b": int})
    async def served(args):
        return {"content": [{"type": "text", "text": str(await add(**args))}]}

    async def nothing(given, tool_use_id, context):
        return {}

    server = sdk.create_sdk_mcp_server("stage", tools=[served])
    options = sdk.ClaudeAgentOptions(mcp_servers={"stage": server})
    points = ("PreToolUse", "PostToolUse", "PostToolUseFailure", "SubagentStart")
    own = {point: [sdk.HookMatcher(hooks=[nothing])] for point in points}
    with_own = sdk.ClaudeAgentOptions(mcp_servers={"stage": server}, hooks=own)

    def run(ask: Any, **given: Any) -> Run:
        async def once() -> None:
            async for _ in ask(prompt="go", transport=FakeCli(scene), **given):
                pass

        return once

    return Workload(
        capabilities=DRIVES,
        bare=run(sdk.query, options=options),
        hooked=lambda hooks: run(query, options=options, hooks=hooks),
        own=run(sdk.query, options=with_own),
    )


FRAMEWORKS: dict[str, tuple[str, Callable[[], Workload]]] = {
    "Pydantic AI": ("pydantic-ai-slim", pydantic_ai),
    "Pydantic AI, per run": ("pydantic-ai-slim", partial(pydantic_ai, per_run=True)),
    "OpenAI Agents": ("openai-agents", openai_agents),
    "LangChain": ("langchain", langchain),
    "Strands": ("strands-agents", strands),
    "Agent Framework": ("agent-framework-core", agent_framework),
    "Google ADK": ("google-adk", google_adk),
    "FastMCP, a call": ("fastmcp", fastmcp_call),
    "Claude Agent SDK": ("claude-agent-sdk", claude_agent_sdk),
}
"""The distribution of each, and what is measured of it."""
