"""What is special about Claude: tools of the CLI that nobody can answer for, its own hooks, and messages as a stream."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

pytest.importorskip("claude_agent_sdk")

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    HookMatcher,
    ResultMessage,
    create_sdk_mcp_server,
    tool,
)

from hookline import AgentCall, Ask, Deny, Hooks, ModelCall, ToolCall, interrupt
from hookline.adapters.claude_agent_sdk import query
from hookline.errors import RunStopped, UnsupportedHookError
from hookline.evals.adapter_contract import Scene
from hookline.evals.adapter_contract._scenes import DELEGATING, PLAIN, ask_for, tool_call
from hookline.events import AfterStep, AfterToolCall, BeforeToolCall, OnComplete, OnToolCallError

from .cli import FakeCli
from .played import BASH, READ, Heard, play
from .stage import ClaudeStage, options_of

pytestmark = pytest.mark.anyio


async def test_a_tool_of_the_cli_has_its_pair_of_events() -> None:
    heard = Heard()

    _, messages = await play(BASH, heard.hooks)

    (after,) = heard.of(AfterToolCall)
    assert (after.toolset, after.tool_name, after.args) == ("claude_code", "Bash", {"command": "ls"})
    assert "a b" in after.content
    assert isinstance(messages[-1], ResultMessage)


@pytest.mark.parametrize("scene", [BASH, READ], ids=["Bash", "Read"])
@pytest.mark.parametrize("fails", [False, True], ids=["", "fails"])
async def test_claude_reads_what_hooks_add_to_a_tool_of_the_cli_beside_its_output(scene: Scene, *, fails: bool) -> None:
    """The CLI takes no other output for most of its own tools, but a text beside it for each of them."""
    hooks = Hooks("adding")
    hooks.before(ToolCall, id="hook")(lambda call: call.add_context("mind the gap"))
    own = dict.fromkeys(("Bash", "Read"), OSError("broken")) if fails else {"Bash": {"stdout": "a b"}, "Read": "text"}

    cli, messages = await play(scene, hooks, own=own)

    (told,) = cli.told
    assert told.endswith("Context from hook 'hook': mind the gap")
    assert ("broken" in told) is fails
    assert isinstance(messages[-1], ResultMessage)


async def test_half_a_character_in_what_a_tool_gave_breaks_nothing() -> None:
    heard = Heard()

    _, messages = await play(BASH, heard.hooks, own={"Bash": {"stdout": "cut \ud83d", "stderr": ""}})

    assert [event.content for event in heard.of(AfterToolCall)] == ['{"stdout": "cut \\ud83d", "stderr": ""}']
    assert isinstance(messages[-1], ResultMessage)


async def test_a_tool_of_the_cli_that_fails_tells_so() -> None:
    heard = Heard()

    await play(BASH, heard.hooks, own={"Bash": OSError("no such command")})

    assert [event.error for event in heard.of(OnToolCallError)] == ["no such command"]


@pytest.mark.parametrize("kind", ["mock", "respond"])
async def test_an_answer_in_the_place_of_a_tool_of_the_cli_is_a_denial_that_says_why(kind: str) -> None:
    hooks = Hooks("answers")
    if kind == "mock":
        hooks.on(BeforeToolCall)(lambda event: event.mock("canned"))
    else:
        hooks.around(ToolCall)(_answer)

    cli, _ = await play(BASH, hooks)

    assert cli.told == [
        "Bash was not called, because a hook answered in its place, and Claude accepts such an answer only for tools "
        "of an MCP server of this process. The answer was: canned"
    ]


async def _answer(call: ToolCall, call_next: Any) -> Any:
    from hookline import ToolResult

    return ToolResult(content="canned")


async def test_a_tool_of_the_cli_can_be_denied_and_rewritten() -> None:
    denying, rewriting, heard = Hooks("denies"), Hooks("rewrites"), Heard()
    denying.guard(ToolCall, tool="claude_code/Bash")(lambda call: Deny("not that"))
    rewriting.before(ToolCall)(lambda call: call.with_args(command="pwd"))

    denied, _ = await play(BASH, denying)
    await play(BASH, rewriting, heard.hooks)

    assert denied.told == ["not that"]
    assert heard.of(AfterToolCall)[0].args == {"command": "pwd"}


async def test_what_bash_gave_is_replaced_in_its_own_form() -> None:
    hooks = Hooks("hides")
    hooks.after(ToolCall)(lambda call, result: Deny("secret"))

    cli, _ = await play(BASH, hooks)

    assert "a b" not in cli.told[0]
    assert "withheld" in cli.told[0]


async def test_a_changed_result_that_claude_cannot_take_ends_the_task() -> None:
    hooks = Hooks("hides")
    hooks.after(ToolCall)(lambda call, result: Deny("secret"))

    cli, _ = await play(READ, hooks)

    assert cli.stopped == "A hook changed the result of Read, and Claude does not support that for this tool."
    assert len(cli.asked) == 1


async def test_tools_made_with_the_decorator_of_the_sdk_can_be_mocked() -> None:
    ran: list[Any] = []

    @tool("add", "Add.", {"a": int, "b": int})
    async def add(args: dict[str, Any]) -> dict[str, Any]:
        ran.append(args)
        return {"content": [{"type": "text", "text": str(args["a"] + args["b"])}]}

    server, hooks = create_sdk_mcp_server("stage", tools=[add]), Hooks("mocks")
    hooks.on(BeforeToolCall, tool="stage/add")(lambda event: event.mock("42"))
    options = ClaudeAgentOptions(mcp_servers={"stage": server})

    mocked, _ = await play(PLAIN, hooks, options=options)
    bare, _ = await play(PLAIN, options=options)

    assert (mocked.told, bare.told) == (["42"], ["3"])
    assert len(ran) == 1


async def test_hooks_of_the_options_are_called_as_ever() -> None:
    seen: list[str] = []

    async def look(given: Any, call_id: str | None, context: Any) -> dict[str, Any]:
        seen.append(given["tool_name"])
        return {}

    options = ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[look])]})
    await play(BASH, Heard().hooks, options=options)

    assert seen == ["Bash"]
    assert len(options.hooks["PreToolUse"]) == 1


async def test_the_parts_of_one_answer_are_one_step() -> None:
    heard = Heard()

    await play(PLAIN, heard.hooks)

    first, last = heard.of(AfterStep)
    assert (first.content, [each.tool_name for each in first.tools_calling]) == ("let me see", ["add"])
    assert (last.content, last.total_output_tokens) == ("done", 10)


async def test_nobody_reads_the_answer_before_hooks_have_judged_it() -> None:
    hooks = Hooks("judges")
    hooks.after(AgentCall)(lambda call, result: Deny("not for you"))
    read: list[Any] = []

    async def reads() -> None:
        async for message in query(prompt="go", options=options_of(PLAIN), transport=FakeCli(PLAIN), hooks=[hooks]):
            read.append(message)  # noqa: PERF401

    with pytest.raises(RunStopped, match="not for you"):
        await reads()

    assert not any(isinstance(message, ResultMessage) for message in read)
    assert "done" not in str([message for message in read if isinstance(message, AssistantMessage)])


async def test_a_stream_that_is_broken_off_ends_the_task() -> None:
    heard = Heard()

    messages = query(prompt="go", options=options_of(PLAIN), transport=FakeCli(PLAIN), hooks=[heard.hooks])
    async for _ in messages:
        break
    await messages.aclose()

    assert heard.names().count("onComplete") == 1


async def test_an_interrupt_ends_the_task_at_once() -> None:
    heard, begun = Heard(), anyio.Event()

    async def hang() -> str:
        """Hang."""
        begun.set()
        await anyio.sleep_forever()
        return "never"

    scene = Scene(turns=[ask_for(tool_call("hang"))], tools={"hang": hang})
    async with anyio.create_task_group() as group:

        async def run() -> None:
            with pytest.raises(RunStopped, match="interrupted"):
                await play(scene, heard.hooks, operation_id="claude-interrupted")

        group.start_soon(run)
        await begun.wait()
        assert interrupt("claude-interrupted")

    assert heard.of(OnComplete)[0].reason == "interrupted"


async def test_an_ask_is_a_denial() -> None:
    hooks = Hooks("asks")
    hooks.guard(ToolCall)(lambda call: Ask("may I?"))

    for scene in (PLAIN, BASH):
        cli, _ = await play(scene, hooks)
        assert "may I?" in cli.told[0]


async def test_what_claude_does_in_its_own_process_is_refused() -> None:
    hooks = Hooks("guard")
    hooks.guard(ModelCall)(lambda call: None)

    with pytest.raises(UnsupportedHookError, match="Claude Agent SDK cannot drive guard"):
        await ClaudeStage().play(DELEGATING, [hooks])
