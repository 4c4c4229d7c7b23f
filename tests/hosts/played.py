"""Play scenes as coding agents do: send the frames of their events, and obey the answers in their words.

The frames are the recorded ones, with the tools of a scene as those of an MCP server. How an answer is read is what the
programs were seen to do, version by version (Cursor: what its documentation says), and not what hookline means by it.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import msgspec

from hookline import Approve, BeforeHumanIntervention, Hooks, Reject
from hookline.calls import ToolRequest
from hookline.evals.adapter_contract import Ran, Scene
from hookline.evals.verdicts import Form, Policy, policy_hooks
from hookline.hooks import AnyHook
from hookline.hosts import HOSTS, Moment
from hookline.hosts._sessions import capabilities_of
from hookline.store import SqlStore
from tests.hosts.in_process import LocalHost

__all__ = [
    "CodingAgentStage",
    "Played",
    "PlayedClaude",
    "PlayedCodex",
    "PlayedCopilot",
    "PlayedCursor",
    "PlayedGemini",
    "bundle_form",
    "definition_form",
]

SESSION = "s-1"
SERVER = "shop"
"""The MCP server whose tools are those of a scene."""
ASK_SECONDS = 30.0

HOOKS: ContextVar[Sequence[AnyHook]] = ContextVar("HOOKS")
OPTIONS: ContextVar[Mapping[str, Any]] = ContextVar("OPTIONS")
"""The options of the present installation."""


def policy() -> list[AnyHook]:
    """Return the hooks of the present scene; an installation names this function."""
    return list(HOOKS.get())


@asynccontextmanager
async def bundle_form(policy: Policy) -> AsyncIterator[list[AnyHook]]:
    """Yield a policy as hooks that an installation names by an import path."""
    async with policy_hooks(policy) as hooks:
        with installing(policy):
            yield hooks


def definition_form(write: Callable[[Path, Policy], object]) -> Form:
    """Return the form of policies as files of definitions, which an installation names.

    Args:
        write: Writes a policy into a folder, as `hooks.yaml` and a script.
    """

    @asynccontextmanager
    async def form(policy: Policy) -> AsyncIterator[list[AnyHook]]:
        with tempfile.TemporaryDirectory(prefix="hl-") as name:
            write(Path(name), policy)
            with installing(policy, files=[Path(name, "hooks.yaml")], scripts=Path(name)):
                yield []

    return form


@contextmanager
def installing(policy: Policy, **options: Any) -> Iterator[None]:
    """Give options to the installations of the block; they have a store if a person is to decide."""
    token = OPTIONS.set({"stored": policy.act == "ask", **options})
    try:
        yield
    finally:
        OPTIONS.reset(token)


class Reaction(msgspec.Struct, frozen=True, kw_only=True):
    """What a program does after the answer of its hook.

    Attributes:
        denied: Why a call does not run, as the model reads it; `None` if it runs.
        args: The arguments with which the tool runs, if they are others.
        result: What the model reads in place of the result.
        context: What the model reads besides.
        ends: Whether the turn ends, so that the model reads nothing more.
        goes_on: What an agent that would stop goes on with.
    """

    denied: str | None = None
    args: Mapping[str, Any] | None = None
    result: str | None = None
    context: str = ""
    ends: bool = False
    goes_on: str | None = None


class Conversation:
    """What one agent has read.

    Args:
        ids: The fields by which the agent's events name it.
        first: Its prompt.
        can_end: Whether a hook can end the agent's turn.
    """

    def __init__(self, ids: Mapping[str, Any], first: str, *, can_end: bool = True) -> None:
        self.ids, self.texts, self.can_end = ids, [first], can_end
        self.ended = False

    def end(self, *reactions: Reaction) -> None:
        """End the agent's turn, if a hook said so and can."""
        self.ended = self.ended or (self.can_end and any(each.ends for each in reactions))

    def read(self, *texts: str) -> None:
        self.texts += [text for text in texts if text]


class Played:
    """Plays one scene as a coding agent.

    Args:
        host: Where hookline answers.
        asked: For each model call, the texts that the model reads.
    """

    name: ClassVar[str]
    title: ClassVar[str]

    def __init__(self, host: LocalHost, asked: list[str]) -> None:
        self.host, self.asked = host, asked
        self.calls = 0

    # What a program sends.

    async def send(self, moment: Moment, ids: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
        """Send the frame of an event, and return the answer; nothing is sent of events that are not installed."""
        found = [event for event in self.host.host.installed if self.host.host.events[event] is moment]
        if not found:
            return {}
        event, frame = self.host.frame(found[0], **fields)
        for key in [each for each in frame if each in ("transcript_path", "transcriptPath", "agent_transcript_path")]:
            del frame[key]
        return await self.host.ask(event, self.signed(frame, ids))

    def signed(self, frame: dict[str, Any], ids: Mapping[str, Any]) -> dict[str, Any]:
        """Return a frame of the session, or of one of its sub-agents."""
        return {**frame, "session_id": SESSION, **ids}

    def tool_fields(self, name: str, args: Mapping[str, Any], call_id: str) -> dict[str, Any]:
        """Return the fields that say which tool is called."""
        return {"tool_name": name, "tool_input": args, "tool_use_id": call_id}

    def tool_name(self, name: str) -> str:
        """Return the name of a tool of the scene."""
        return f"mcp__{SERVER}__{name}"

    def result_fields(self, text: str) -> dict[str, Any]:
        """Return the fields with the result of a tool."""
        return {"tool_response": text}

    def stop_fields(self, text: str) -> dict[str, Any]:
        """Return the fields with the last answer of an agent."""
        return {"last_assistant_message": text}

    # What a program does with an answer.

    def react(self, moment: Moment, answer: Mapping[str, Any]) -> Reaction:
        """Return what the program does after an answer."""
        raise NotImplementedError

    # How it runs.

    async def run(self, scene: Scene) -> str:
        """Run a session with one prompt, and return the last answer."""
        await self.send(Moment.SESSION_START, {})
        conversation = Conversation({}, scene.prompt)
        output = await self.prompt(conversation, scene)
        await self.send(Moment.SESSION_END, {})
        return output

    async def prompt(self, conversation: Conversation, scene: Scene) -> str:
        answer = await self.send(Moment.PROMPT, conversation.ids, prompt=conversation.texts[0])
        reaction = self.react(Moment.PROMPT, answer)
        if reaction.denied is not None:
            return ""
        conversation.read(reaction.context)
        output = await self.answer(conversation, scene)
        if not conversation.ended:
            await self.send(Moment.STOP, conversation.ids, **self.stop_fields(output))
        return output

    async def answer(self, conversation: Conversation, scene: Scene) -> str:
        """Have the model answer until it calls no more tools."""
        for turn in scene.turns:
            self.asked.append("\n".join(conversation.texts))
            if not turn.tool_calls:
                return turn.content
            for call in turn.tool_calls:
                work = self.spawn if call.toolset == "agent" else self.call
                await work(conversation, scene, call)
            if conversation.ended:
                return ""
        raise AssertionError("the script is over")

    async def call(self, conversation: Conversation, scene: Scene, call: ToolRequest) -> None:
        """Call a tool of the scene."""
        assert isinstance(call.args, dict)

        async def work(args: Mapping[str, Any]) -> str:
            return str(await scene.tools[call.tool_name](**args))

        await self.hooked(conversation, self.tool_name(call.tool_name), call.args, work, call.tool_call_id)

    async def hooked(
        self,
        conversation: Conversation,
        tool: str,
        args: Mapping[str, Any],
        work: Callable[[Mapping[str, Any]], Awaitable[str]],
        call_id: str = "",
    ) -> None:
        """Call a tool between its two events, and have the agent read its result."""
        self.calls += 1
        fields = self.tool_fields(tool, args, call_id or f"call-{self.calls}")
        before = self.react(Moment.BEFORE_TOOL, await self.send(Moment.BEFORE_TOOL, conversation.ids, **fields))
        if before.denied is not None:
            conversation.end(before)
            conversation.read(before.denied, before.context)
            return
        final = args if before.args is None else before.args
        text = await work(final)
        fields = self.tool_fields(tool, final, call_id or f"call-{self.calls}")
        answer = await self.send(Moment.AFTER_TOOL, conversation.ids, **fields, **self.result_fields(text))
        after = self.react(Moment.AFTER_TOOL, answer)
        conversation.read(text if after.result is None else after.result, before.context, after.context)
        conversation.end(before, after)

    async def spawn(self, conversation: Conversation, scene: Scene, call: ToolRequest) -> None:
        """Call a sub-agent of the scene."""
        raise NotImplementedError


def flat(answer: Mapping[str, Any], *keys: str) -> list[Any]:
    """Return the values of an answer that has no other keys.

    Raises:
        AssertionError: If it has one more: the program was not seen to know it.
    """
    assert set(answer) <= set(keys), f"an unknown key in {answer}"
    return [answer.get(key) for key in keys]


class PlayedClaude(Played):
    """Claude Code 2.1.330."""

    name, title = "claude", "Claude Code"

    def react(self, moment: Moment, answer: Mapping[str, Any]) -> Reaction:
        goes_on, _, decision, reason, own = flat(
            answer, "continue", "stopReason", "decision", "reason", "hookSpecificOutput"
        )
        assert decision in (None, "block")
        ends, own = goes_on is False, own or {}
        context = own.get("additionalContext", "")
        if moment is Moment.BEFORE_TOOL:
            word = own.get("permissionDecision")
            assert word in (None, "deny"), f"the person in front of Claude Code is not played: {answer}"
            denied = own.get("permissionDecisionReason", "") if word == "deny" else None
            return Reaction(denied=denied, args=own.get("updatedInput"), context=context, ends=ends)
        if moment is Moment.AFTER_TOOL:
            return Reaction(result=own.get("updatedToolOutput"), context=context or reason or "", ends=ends)
        if moment is Moment.PROMPT:
            return Reaction(denied=reason if decision else None, context=context)
        return Reaction(goes_on=reason if decision else None, context=context)

    async def spawn(self, conversation: Conversation, scene: Scene, call: ToolRequest) -> None:
        name, inner = call.tool_name, scene.agents[call.tool_name]
        ids = {"agent_id": f"id-{name}", "agent_type": name}

        async def work(args: Mapping[str, Any]) -> str:
            child = Conversation(ids, args["prompt"])
            answer = await self.send(Moment.AGENT_START, ids)
            child.read(self.react(Moment.AGENT_START, answer).context)
            output = await self.answer(child, inner)
            if not child.ended:
                await self.send(Moment.AGENT_STOP, ids, **self.stop_fields(output))
            return output

        args = {"description": "help", "prompt": call.args["instruction"], "subagent_type": name}
        await self.hooked(conversation, "Agent", args, work)

    def result_fields(self, text: str) -> dict[str, Any]:
        return {"tool_response": [{"type": "text", "text": text}]}


class PlayedCodex(Played):
    """Codex 0.169.0, which throws an answer away that has a key too many."""

    name, title = "codex", "Codex"

    def react(self, moment: Moment, answer: Mapping[str, Any]) -> Reaction:
        decision, reason, own = flat(answer, "decision", "reason", "hookSpecificOutput")
        own = own or {}
        if moment is Moment.BEFORE_TOOL:
            assert decision is None
            _, word, said, args, context = flat(
                own,
                *("hookEventName", "permissionDecision", "permissionDecisionReason", "updatedInput"),
                "additionalContext",
            )
            denied = word == "deny" and bool((said or "").strip())
            return Reaction(
                denied=f"Tool call blocked by PreToolUse hook: {said}" if denied else None,
                args=args if word == "allow" else None,
                context=context or "",
            )
        _, context = flat(own, "hookEventName", "additionalContext")
        said = reason if decision == "block" else None
        if moment is Moment.AFTER_TOOL:
            return Reaction(result=said, context=context or "")
        if moment is Moment.PROMPT:
            return Reaction(denied=said, context=context or "")
        return Reaction(goes_on=said, context=context or "")

    async def spawn(self, conversation: Conversation, scene: Scene, call: ToolRequest) -> None:
        name, inner = call.tool_name, scene.agents[call.tool_name]
        agent_id = f"id-{name}"
        ids = {"agent_id": agent_id, "agent_type": name, "turn_id": f"turn of {name}"}
        prompts: list[str] = []

        async def start(args: Mapping[str, Any]) -> str:
            prompts.append(args["message"])
            return json.dumps({"agent_id": agent_id, "nickname": "Leibniz"})

        async def work(_: Mapping[str, Any]) -> str:
            child = Conversation(ids, prompts[0])
            child.read(self.react(Moment.AGENT_START, await self.send(Moment.AGENT_START, ids)).context)
            answer = await self.send(Moment.PROMPT, ids, prompt=prompts[0])
            child.read(self.react(Moment.PROMPT, answer).context)
            output = await self.answer(child, inner)
            await self.send(Moment.AGENT_STOP, ids, **self.stop_fields(output))
            return json.dumps({"status": {agent_id: {"completed": output}}, "timed_out": False})

        task = {"message": call.args["instruction"], "agent_type": name}
        await self.hooked(conversation, "spawn_agent", task, start)
        if prompts:
            await self.hooked(
                conversation, "multi_agent_v1wait_agent", {"targets": [agent_id], "timeout_ms": 60000}, work
            )


class PlayedGemini(Played):
    """Gemini CLI 0.61.0, whose events name neither calls nor sub-agents."""

    name, title = "gemini", "Gemini CLI"

    def tool_fields(self, name: str, args: Mapping[str, Any], call_id: str) -> dict[str, Any]:
        fields: dict[str, Any] = {"tool_name": name, "tool_input": args}
        before = f"mcp_{SERVER}_"
        if name.startswith(before):
            fields["mcp_context"] = {"server_name": SERVER, "tool_name": name.removeprefix(before), "command": "shop"}
        return fields

    def tool_name(self, name: str) -> str:
        return f"mcp_{SERVER}_{name}"

    def result_fields(self, text: str) -> dict[str, Any]:
        return {"tool_response": {"llmContent": [{"text": text}], "returnDisplay": text}}

    def stop_fields(self, text: str) -> dict[str, Any]:
        return {"prompt_response": text}

    def react(self, moment: Moment, answer: Mapping[str, Any]) -> Reaction:
        goes_on, stop, decision, reason, own = flat(
            answer, "continue", "stopReason", "decision", "reason", "hookSpecificOutput"
        )
        assert decision != "ask", "Gemini CLI hangs"
        own, ends = own or {}, goes_on is False
        said = f"Tool execution blocked: {reason}" if decision in ("deny", "block") else None
        said = f"Agent execution stopped by hook: {stop}" if ends else said
        if moment is Moment.BEFORE_TOOL:
            # It reads no context here.
            return Reaction(denied=said, args=own.get("tool_input"), ends=ends)
        context = own.get("additionalContext", "")
        if moment is Moment.AFTER_TOOL:
            return Reaction(result=said, context=context, ends=ends)
        if moment is Moment.PROMPT:
            return Reaction(denied=said, context=context)
        return Reaction(goes_on=said)

    async def spawn(self, conversation: Conversation, scene: Scene, call: ToolRequest) -> None:
        name, inner = call.tool_name, scene.agents[call.tool_name]

        async def work(args: Mapping[str, Any]) -> str:
            child = Conversation({}, args["prompt"], can_end=False)
            output = await self.answer(child, inner)
            return f"Subagent '{name}' finished.\nTermination Reason: GOAL\nResult:\n{output}"

        await self.hooked(conversation, "invoke_agent", {"agent_name": name, "prompt": call.args["instruction"]}, work)


class PlayedCopilot(Played):
    """Copilot CLI 1.0.102, in its own events."""

    name, title = "copilot", "Copilot CLI"

    def signed(self, frame: dict[str, Any], ids: Mapping[str, Any]) -> dict[str, Any]:
        return {**frame, "sessionId": SESSION, **ids}

    def tool_name(self, name: str) -> str:
        return f"{SERVER}-{name}"

    def tool_fields(self, name: str, args: Mapping[str, Any], call_id: str) -> dict[str, Any]:
        return {"toolName": name, "toolArgs": args}

    def result_fields(self, text: str) -> dict[str, Any]:
        return {"toolResult": {"resultType": "success", "textResultForLlm": text}}

    def stop_fields(self, text: str) -> dict[str, Any]:
        return {}

    def react(self, moment: Moment, answer: Mapping[str, Any]) -> Reaction:
        word, said, args, result, context, decision, reason = flat(
            answer,
            *("permissionDecision", "permissionDecisionReason", "modifiedArgs", "modifiedResult"),
            *("additionalContext", "decision", "reason"),
        )
        context = context or ""
        if moment is Moment.BEFORE_TOOL:
            assert word in (None, "allow", "deny")
            denied = f"Denied by preToolUse hook: {said}" if word == "deny" else None
            return Reaction(denied=denied, args=args, context=context)
        if moment is Moment.AFTER_TOOL:
            return Reaction(result=result["textResultForLlm"] if result else None, context=context)
        said = reason if decision == "block" else None
        if moment is Moment.PROMPT:
            return Reaction(denied=said, context=context)
        return Reaction(goes_on=said)

    async def spawn(self, conversation: Conversation, scene: Scene, call: ToolRequest) -> None:
        name, inner = call.tool_name, scene.agents[call.tool_name]
        agent_id, parent = f"id-{name}", conversation.ids.get("agentId", SESSION)
        ids = {"sessionId": agent_id, "agentId": agent_id, "agentType": name, "parentAgentId": parent}

        async def work(args: Mapping[str, Any]) -> str:
            child = Conversation(ids, args["prompt"])
            answer = await self.send(Moment.PROMPT, ids, prompt=args["prompt"])
            child.read(self.react(Moment.PROMPT, answer).context)
            output = await self.answer(child, inner)
            await self.send(Moment.STOP, ids)
            own = {**ids, "sessionId": parent}
            await self.send(Moment.AGENT_STOP, own, agentName=name, response=output)
            return output

        args = {"description": "help", "prompt": call.args["instruction"], "agent_type": name, "name": name}
        await self.hooked(conversation, "task", args, work)


class PlayedCursor(Played):
    """Cursor, as its documentation says."""

    name, title = "cursor", "Cursor"

    def signed(self, frame: dict[str, Any], ids: Mapping[str, Any]) -> dict[str, Any]:
        return {**frame, "conversation_id": SESSION, **ids}

    def tool_name(self, name: str) -> str:
        return f"MCP:{name}"

    def result_fields(self, text: str) -> dict[str, Any]:
        return {"tool_output": json.dumps({"content": [{"type": "text", "text": text}]})}

    def stop_fields(self, text: str) -> dict[str, Any]:
        return {"status": "completed"}

    def react(self, moment: Moment, answer: Mapping[str, Any]) -> Reaction:
        if moment is Moment.BEFORE_TOOL:
            word, _, said, args = flat(answer, "permission", "user_message", "agent_message", "updated_input")
            return Reaction(denied=said if word == "deny" else None, args=args)
        if moment is Moment.AFTER_TOOL:
            context, result = flat(answer, "additional_context", "updated_mcp_tool_output")
            return Reaction(result=result, context=context or "")
        goes_on, said, followup, context = flat(
            answer, "continue", "user_message", "followup_message", "additional_context"
        )
        denied = said if goes_on is False else None
        return Reaction(denied=denied, goes_on=followup, context=context or "")


class CodingAgentStage:
    """Plays scenes as a coding agent, with a policy that is installed for it.

    Args:
        kind: The coding agent.
    """

    def __init__(self, kind: type[Played]) -> None:
        self.kind = kind
        self.capabilities = capabilities_of(HOSTS[kind.name])
        self.toolset = SERVER
        self.folder = tempfile.TemporaryDirectory(prefix="hl-")

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        asked: list[str] = []
        waits = asyncio.Event()
        watching = Hooks("watching", inherit=True)
        watching.on(BeforeHumanIntervention)(lambda event: waits.set())
        async with AsyncExitStack() as stack:
            host = await stack.enter_async_context(await self.new_host([*hooks, watching], **attach))
            playing = asyncio.create_task(self.kind(host, asked).run(scene))
            stack.push_async_callback(finish, playing)
            waiting = asyncio.create_task(waits.wait())
            await asyncio.wait({playing, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if playing.done():
                return Ran(output=playing.result(), asked=asked)
            pending = (await host.waiting()).pending
            left = stack.pop_all()

        async def resume(decisions: Sequence[Approve | Reject], hooks: Iterable[AnyHook]) -> Ran:
            async with left:
                state = await host.waiting()
                for decision in decisions:
                    await host.store.decide(state.operation_id, decision, by="key:ada")
                return Ran(output=await playing, asked=asked)

        return Ran(asked=asked, pending=[each.tool_call_id for each in pending], resume=resume)

    async def play_many(self, scene: Scene, bundles: Sequence[Iterable[AnyHook]]) -> Sequence[Ran]:
        return [await self.play(scene, hooks) for hooks in bundles]

    async def new_host(self, hooks: Sequence[AnyHook], *, user_id: str = "", tenant_id: str = "") -> LocalHost:
        """Return a host whose installation names the hooks, for an account of that name."""
        folder = Path(tempfile.mkdtemp(dir=self.folder.name))
        if OPTIONS.get()["stored"]:
            shutil.copyfile(await empty_database(), folder / "hookline.db")
        HOOKS.set(hooks)
        given = {"hooks": f"{__name__}:policy", "tenant_id": tenant_id, "ask_seconds": ASK_SECONDS, **OPTIONS.get()}
        with patch.dict(os.environ, {"LOGNAME": user_id} if user_id else {}):
            return LocalHost(folder, self.kind.name, **given)


@functools.cache
def template_folder() -> tempfile.TemporaryDirectory[str]:
    """Make the folder of the database that the hosts of all stages copy."""
    return tempfile.TemporaryDirectory(prefix="hl-")


async def empty_database() -> Path:
    """Return a database that is copied, since migrating takes longer."""
    empty = Path(template_folder().name) / "empty.db"
    if not empty.exists():
        async with SqlStore(f"sqlite:///{empty}"):
            pass
    return empty


async def finish(playing: asyncio.Task[str]) -> None:
    """End a play that nobody waits for any more."""
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
