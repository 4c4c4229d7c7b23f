"""`HookedClient`: each turn of a conversation is an operation, and what ends one does not end the next."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from typing import Any

import anyio
import pytest

pytest.importorskip("claude_agent_sdk")

from claude_agent_sdk import AssistantMessage, CLIConnectionError, PermissionResultAllow, ResultMessage

from hookline import AgentCall, AgentResult, Deny, Hooks, Respond, ToolCall, interrupt
from hookline.adapters.claude_agent_sdk import HookedClient
from hookline.calls import ModelCall, ToolResult
from hookline.errors import RunStopped, UnsupportedHookError
from hookline.evals.adapter_contract import Scene
from hookline.evals.adapter_contract._scenes import COMPACTING, PLAIN, ask_for, tool_call
from hookline.events import AfterHumanIntervention, AfterStep, AfterToolCall, BeforeToolCall, OnComplete

from .cli import FakeCli
from .played import OWN, Heard
from .stage import options_of

pytestmark = pytest.mark.anyio


def client_of(scene: Scene, *hooks: Hooks, **given: Any) -> tuple[FakeCli, HookedClient]:
    cli = FakeCli(scene, own=OWN)
    return cli, HookedClient(**{"options": options_of(scene), "transport": cli, "hooks": hooks, **given})


async def turn(client: HookedClient, prompt: str = "go", **attach: Any) -> list[Any]:
    await client.query(prompt, **attach)
    return [message async for message in client.receive_response()]


async def test_each_turn_is_an_operation_of_one_conversation() -> None:
    heard = Heard()
    cli, client = client_of(PLAIN, heard.hooks, user_id="ann")

    async with client:
        first, second = await turn(client, "one"), await turn(client, "two", operation_id="claude-second")

    ends = heard.of(OnComplete)
    assert [(event.reason, event.steps, event.llm_calls, event.tool_calls) for event in ends] == [("done", 2, 2, 1)] * 2
    assert len({event.operation_id for event in ends}) == 2
    assert ends[1].operation_id == "claude-second"
    assert {event.user_id for event in ends} == {"ann"}
    assert [event.step_index for event in heard.of(AfterStep)] == [0, 1, 0, 1]
    assert cli.told == ["3", "3"]
    assert [each.partition("\n")[0] for each in cli.asked] == ["one", "one", "two", "two"]
    for messages in (first, second):
        assert [isinstance(message, ResultMessage) for message in messages].index(True) == len(messages) - 1


async def test_a_prompt_given_to_connect_is_the_first_turn() -> None:
    heard = Heard()
    _, client = client_of(PLAIN, heard.hooks)

    await client.connect("go")
    messages = [message async for message in client.receive_response()]
    await client.disconnect()

    assert isinstance(messages[-1], ResultMessage)
    assert [event.reason for event in heard.of(OnComplete)] == ["done"]


async def test_tools_are_mocked_and_calls_denied_in_every_turn() -> None:
    mocks, answers = Hooks("mocks"), iter(["42", "43"])
    mocks.on(BeforeToolCall)(lambda event: event.mock(next(answers)))
    cli, client = client_of(PLAIN, mocks)

    async with client:
        await turn(client)
        await turn(client)

    assert cli.told == ["42", "43"]


async def test_a_turn_that_is_denied_raises_and_the_next_one_goes_on() -> None:
    heard, hooks, denials = Heard(), Hooks("guard"), iter([Deny("not that"), None])
    hooks.guard(AgentCall)(lambda call: next(denials))
    cli, client = client_of(PLAIN, hooks, heard.hooks)

    async with client:
        with pytest.raises(RunStopped, match="not that"):
            await turn(client)
        messages = await turn(client)

    assert isinstance(messages[-1], ResultMessage)
    assert [event.reason for event in heard.of(OnComplete)] == ["interrupted", "done"]
    assert len(cli.asked) == 2


async def test_a_turn_that_a_hook_answers_is_not_asked_of_claude() -> None:
    hooks = Hooks("answers")
    hooks.before(AgentCall)(lambda call: Respond(AgentResult(output="canned")))
    cli, client = client_of(PLAIN, hooks)

    async with client:
        answer, result = await turn(client)

    assert isinstance(answer, AssistantMessage)
    assert result.result == "canned"
    assert cli.asked == []


async def hang() -> str:
    """Hang."""
    await anyio.sleep_forever()
    return "never"


HANGING = Scene(turns=[ask_for(tool_call("hang"))], tools={"hang": hang})


@pytest.mark.parametrize("by", ["client", "hookline"])
async def test_an_interrupt_ends_the_turn_and_claude_stops(by: str) -> None:
    heard, begun = Heard(), anyio.Event()
    heard.hooks.on(BeforeToolCall)(lambda event: begun.set())
    cli, client = client_of(HANGING, heard.hooks)

    async with client:
        for number in (1, 2):
            begun = anyio.Event()
            await client.query("go", operation_id=f"claude-turn-{number}")
            await begun.wait()
            if by == "client":
                await client.interrupt()
            else:
                assert interrupt(f"claude-turn-{number}")
            messages: list[Any] = []
            with nullcontext() if by == "client" else pytest.raises(RunStopped, match="interrupted"):
                messages += [message async for message in client.receive_response()]
            assert any(isinstance(message, ResultMessage) for message in messages) == (by == "client")
            assert cli.interrupted

    assert [event.reason for event in heard.of(OnComplete)] == ["interrupted", "interrupted"]


async def test_to_disconnect_ends_the_turn_and_those_who_receive() -> None:
    heard, begun = Heard(), anyio.Event()
    heard.hooks.on(BeforeToolCall)(lambda event: begun.set())
    _, client = client_of(HANGING, heard.hooks)
    received: list[Any] = []

    async def receive() -> None:
        received.extend([message async for message in client.receive_messages()])

    await client.connect()
    async with anyio.create_task_group() as group:
        group.start_soon(receive)
        await client.query("go")
        await begun.wait()
        await client.disconnect()

    assert [event.reason for event in heard.of(OnComplete)] == ["interrupted"]
    assert not any(isinstance(message, ResultMessage) for message in received)


async def test_a_second_prompt_waits_for_the_turn_under_way() -> None:
    heard = Heard()
    _, client = client_of(PLAIN, heard.hooks)

    async with client:
        await client.query("one")
        await client.query("two")
        turns = [[message async for message in client.receive_response()] for _ in range(2)]

    assert [isinstance(messages[-1], ResultMessage) for messages in turns] == [True, True]
    operations = [event.operation_id for event in heard.events]
    assert operations == sorted(operations, key=operations.index)
    assert len(heard.of(OnComplete)) == 2


async def test_a_person_is_asked_and_a_conversation_compacted_in_a_turn() -> None:
    heard, asked = Heard(), list[str]()

    async def person(name: str, args: Any, context: Any) -> PermissionResultAllow:
        asked.append(name)
        return PermissionResultAllow()

    cli = FakeCli(COMPACTING, permissions=frozenset({"mcp__stage__add"}))
    options = dataclasses.replace(options_of(COMPACTING), can_use_tool=person)
    async with HookedClient(options, cli, hooks=[heard.hooks]) as client:
        await turn(client)

    assert asked == ["mcp__stage__add"]
    assert [event.action for event in heard.of(AfterHumanIntervention)] == ["approve"]
    assert [name for name in heard.names() if "Compact" in name] == ["beforeCompact", "afterCompact"]


async def test_what_a_hook_withholds_is_not_read() -> None:
    hooks, heard = Hooks("hides"), Heard()
    hooks.after(ToolCall)(lambda call, result: ToolResult(content="hidden"))
    cli, client = client_of(PLAIN, hooks, heard.hooks)

    async with client:
        await turn(client)

    assert cli.told == ["hidden"]
    assert [event.content for event in heard.of(AfterToolCall)] == ["3"]


async def test_hooks_that_would_never_be_called_are_refused_before_the_client_connects() -> None:
    hooks = Hooks("guard")
    hooks.guard(ModelCall)(lambda call: None)

    with pytest.raises(UnsupportedHookError, match="Claude Agent SDK cannot drive guard"):
        client_of(PLAIN, hooks)


async def test_a_client_that_is_not_connected_says_so() -> None:
    _, client = client_of(PLAIN)

    with pytest.raises(CLIConnectionError, match="Not connected"):
        await client.query("go")
    with pytest.raises(CLIConnectionError, match="Not connected"):
        await anext(client.receive_messages())
