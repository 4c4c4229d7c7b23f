"""What is special about FastMCP: sessions, output schemas, clients of several tenants, and its own middleware."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("fastmcp")

from fastmcp import Client, Context, FastMCP
from fastmcp.exceptions import NotFoundError, ToolError
from fastmcp.server.middleware import Middleware
from fastmcp.tools.base import ToolResult as Answer
from mcp.types import ImageContent
from msgspec.structs import replace

from hookline import AfterStep, Ask, Deny, Hooks, ModelCall, ToolCall
from hookline.adapters.fastmcp import HooklineMiddleware
from hookline.errors import HookDefinitionError, UnsupportedHookError
from hookline.events import AfterToolCall, BeforeStep, BeforeToolCall, OnToolCallError

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


def server_with(*hooks: Hooks, **given: Any) -> FastMCP:
    server = FastMCP("sums")
    if hooks:
        server.add_middleware(HooklineMiddleware(hooks=list(hooks), **given))

    @server.tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    @server.tool
    def weather(city: str) -> dict[str, str]:
        """Say how the weather is."""
        return {"city": city, "weather": "rain"}

    @server.tool
    def greet(name: str) -> str:
        """Greet."""
        return f"Hello {name}"

    @server.tool
    def fail() -> str:
        """Fail."""
        raise ValueError("broken")

    return server


def watching(*kinds: type[Any]) -> tuple[Hooks, list[Any]]:
    hooks, events = Hooks("watch"), list[Any]()
    for kind in kinds:
        hooks.on(kind)(events.append)
    return hooks, events


async def ask(server: FastMCP, tool: str, /, mode: str = "auto", **args: Any) -> Any:
    async with Client(server, mode=mode) as client:
        return await client.call_tool(tool, args)


async def test_a_call_that_hooks_left_alone_gives_what_the_tool_gave() -> None:
    hooks, events = watching(BeforeToolCall, AfterToolCall)
    hooks.around(ToolCall)(lambda call, call_next: call_next(call))

    bare, hooked = [await ask(server, "weather", city="Oslo") for server in (server_with(), server_with(hooks))]

    assert (hooked.content, hooked.structured_content) == (bare.content, bare.structured_content)
    assert [(event.toolset, event.tool_name) for event in events] == [("sums", "weather")] * 2


@pytest.mark.parametrize(
    ("name", "args", "answer", "data"),
    [
        ("add", {"a": 1, "b": 2}, "42", 42),
        ("greet", {"name": "Ann"}, "42", "42"),
        ("weather", {"city": "Oslo"}, '{"city": "Oslo", "weather": "sun"}', {"city": "Oslo", "weather": "sun"}),
    ],
)
async def test_a_mock_fills_what_the_output_schema_demands(name: str, args: Any, answer: str, data: Any) -> None:
    hooks = Hooks("mocks")
    hooks.on(BeforeToolCall)(lambda event: event.mock(answer))

    assert (await ask(server_with(hooks), name, **args)).data == data


async def test_a_mock_that_does_not_fit_the_output_schema_is_told_to_the_client() -> None:
    hooks = Hooks("mocks")
    hooks.on(BeforeToolCall)(lambda event: event.mock("sunny"))

    with pytest.raises(ToolError, match="'sunny', which does not match the output schema of 'add'"):
        await ask(server_with(hooks), "add", a=1, b=2)


async def test_a_denied_call_is_an_error_with_the_reason() -> None:
    hooks = Hooks("guard")
    hooks.guard(ToolCall, tool="sums/add")(lambda call: Deny("no sums today"))

    with pytest.raises(ToolError, match="no sums today"):
        await ask(server_with(hooks), "add", a=1, b=2)


async def test_nobody_can_be_asked_so_that_an_ask_is_a_denial() -> None:
    hooks = Hooks("guard")
    hooks.guard(ToolCall)(lambda call: Ask("may I?"))

    with pytest.raises(ToolError, match=r"may I\?"):
        await ask(server_with(hooks), "add", a=1, b=2)


async def test_the_client_is_told_of_a_failing_tool_as_without_hooks_and_hooks_are_told_of_its_exception() -> None:
    hooks, events = watching(OnToolCallError)
    told = []

    for server in (server_with(), server_with(hooks)):
        with pytest.raises(ToolError) as raised:
            await ask(server, "fail")
        told.append(str(raised.value))

    assert told[0] == told[1]
    assert [(event.error_type, event.error) for event in events] == [("ValueError", "broken")]


async def test_calls_are_counted_for_each_session() -> None:
    hooks, events = watching(BeforeToolCall)
    server = server_with(hooks)

    for _ in range(2):
        async with Client(server, mode="legacy") as client:
            await asyncio.gather(*(client.call_tool("add", {"a": number, "b": 1}) for number in range(3)))

    assert [event.call_index for event in events] == [1, 2, 3, 1, 2, 3]
    assert len({event.operation_id for event in events}) == 2


async def test_calls_that_overlap_are_one_step_that_ends_after_them() -> None:
    hooks, events = watching(BeforeStep, AfterStep, BeforeToolCall, AfterToolCall, OnToolCallError)
    server = server_with(hooks, best_effort=True)

    @server.tool
    async def nested() -> str:
        await asyncio.gather(*(server.call_tool(name, {}) for name in ("fail", "fail")), return_exceptions=True)
        return "done"

    async with Client(server, mode="legacy") as client:
        await client.call_tool("nested")
        await client.call_tool("greet", {"name": "Ann"})

    alone = ["beforeStep", "beforeToolCall", "afterToolCall", "afterStep"]
    together = ["beforeToolCall"] * 2 + ["onToolCallError"] * 2
    assert [str(event.hook_type) for event in events] == [*alone[:2], *together, *alone[2:], *alone]


async def test_a_tool_that_does_not_exist_is_unknown_to_hooks_and_the_client_is_told_as_without_them() -> None:
    hooks, events = watching(OnToolCallError)
    told = []

    for server in (server_with(), server_with(hooks)):
        with pytest.raises(ToolError) as raised:
            await ask(server, "nothing")
        told.append(str(raised.value))

    assert told[0] == told[1]
    assert [(event.error_type, event.tool_name) for event in events] == [("UnknownToolError", "nothing")]
    assert "Tools: add, fail, greet, weather." in events[0].error


async def test_a_tool_that_finds_something_missing_is_not_itself_unknown() -> None:
    hooks, events = watching(OnToolCallError)
    server = server_with(hooks)

    @server.tool
    def find() -> str:
        raise NotFoundError("no such page")

    with pytest.raises(ToolError, match="no such page"):
        await ask(server, "find")
    assert [event.error_type for event in events] == ["NotFoundError"]


async def test_a_hook_that_changes_what_a_tool_said_leaves_nothing_of_its_structured_content() -> None:
    hooks = Hooks("redact")
    hooks.after(ToolCall)(lambda call, result: replace(result, content=result.content.replace("secret", "***")))
    server = server_with(hooks)

    @server.tool(output_schema=None)
    def told() -> Answer:
        return Answer(content="the secret", structured_content={"more": "secret"}, meta={"more": "secret"})

    result = await ask(server, "told")

    assert (result.content[0].text, result.structured_content) == ("the ***", None)
    assert "secret" not in str(result.meta)


async def test_a_tool_keeps_its_structured_content_and_what_is_not_text() -> None:
    hooks = Hooks("adding")
    hooks.before(ToolCall, id="hook")(lambda call: call.add_context("in EUR"))
    server = server_with(hooks)

    @server.tool(output_schema=None)
    def picture() -> Answer:
        image = ImageContent(type="image", data="AA==", mime_type="image/png")
        return Answer(content=[image], structured_content={"a": 1}, meta={"b": 2})

    added = "Context from hook 'hook': in EUR"
    result = await ask(server, "add", a=1, b=2)
    assert (result.data, result.content[0].text) == (3, f"3\n\n{added}")
    shown = await ask(server, "picture")
    assert [block.type for block in shown.content] == ["image", "text"]
    assert (shown.content[1].text, shown.structured_content) == (added, {"a": 1})


async def test_a_hook_may_say_that_a_call_has_failed_and_leave_what_was_said() -> None:
    hooks = Hooks("strict")
    hooks.after(ToolCall)(lambda call, result: replace(result, success=False))

    with pytest.raises(ToolError, match="Hello Ann"):
        await ask(server_with(hooks), "greet", name="Ann")


async def test_hooks_and_names_may_be_those_of_the_client() -> None:
    hooks = {name: Hooks(name) for name in ("acme", "other")}
    hooks["acme"].guard(ToolCall)(lambda call: Deny(f"not for {call.user_id} of {call.tenant_id}"))
    server = server_with()
    server.add_middleware(
        HooklineMiddleware(
            hooks=lambda context: [hooks[tenant_of(context)]],
            identify=lambda context: {"user_id": "ann", "tenant_id": tenant_of(context)},
        )
    )

    async def call(tenant: str) -> Any:
        async with Client(server) as client:
            result = await client.call_tool("add", {"a": 1, "b": 2}, meta={"tenant": tenant}, raise_on_error=False)
            return result.content[0].text

    assert await asyncio.gather(call("acme"), call("other")) == ["not for ann of acme", "3"]


def tenant_of(context: Context) -> str:
    return context.request_context.meta["tenant"]


async def test_other_middleware_sees_what_hooks_made_of_the_call() -> None:
    seen: list[Any] = []

    class Inner(Middleware):
        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            seen.append(context.message.arguments)
            return await call_next(context)

    hooks = Hooks("rewrites")
    hooks.before(ToolCall)(lambda call: call.with_args(a=40))
    server = server_with(hooks)
    server.add_middleware(Inner())

    assert (await ask(server, "add", a=1, b=2)).data == 42
    assert seen == [{"a": 40, "b": 2}]


async def test_the_server_s_own_calls_are_operations_of_their_own() -> None:
    hooks, events = watching(BeforeToolCall)
    server = server_with(hooks)

    for _ in range(2):
        await server.call_tool("add", {"a": 1, "b": 2})

    assert [event.call_index for event in events] == [1, 1]


@pytest.mark.parametrize("what", ["observer", "interceptor"])
def test_what_a_server_does_not_see_is_refused_when_it_is_attached(what: str, anyio_backend: str) -> None:
    hooks = Hooks("watch")
    if what == "observer":
        hooks.on(AfterStep)(lambda event: None)
    else:
        hooks.guard(ModelCall)(lambda call: None)

    with pytest.raises(UnsupportedHookError, match="FastMCP cannot drive"):
        HooklineMiddleware(hooks=[hooks])
    HooklineMiddleware(hooks=[hooks], best_effort=True)


async def test_a_bundle_that_is_in_no_list_is_told_how_to_be_given() -> None:
    with pytest.raises(HookDefinitionError, match="give a list of bundles"):
        HooklineMiddleware(hooks=Hooks("alone"))  # type: ignore[arg-type]
