"""A stand-in for the Claude Code CLI: plays a scene over the SDK's own control protocol."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import anyio
from claude_agent_sdk import Transport

from hookline import ToolRequest
from hookline.adapters.claude_agent_sdk._background import BackgroundTask
from hookline.calls import ModelResponse
from hookline.evals.adapter_contract import Scene
from tests.adapters.suspending import suspend

COMMON = {"session_id": "session", "transcript_path": "", "cwd": "/"}
SUMMARY = {"type": "result", "duration_ms": 1, "duration_api_ms": 1, "session_id": "session", "is_error": False}

STRICT = ("", "allow", "ask", "defer", "deny")


class Lines:
    """The lines that the CLI has written; reading one waits."""

    def __init__(self, lines: AsyncIterator[dict[str, Any]]) -> None:
        self._lines = lines

    def __aiter__(self) -> Lines:
        return self

    async def __anext__(self) -> dict[str, Any]:
        line = await anext(self._lines)
        await suspend()
        return line


class FakeCli(Transport):
    """Plays a scene for each prompt.

    Args:
        scene: What is played.
        own: Names of tools that the CLI itself brings, with what they give.
        permissions: Names of tools for which it asks for permission.
        requests: Whether hooks on `PermissionRequest` hear of that too.
        resumed: Whether it takes up the call of the first turn, which was deferred.
        summary: What `PostCompact` gives; `None` if that is not called.
    """

    def __init__(
        self,
        scene: Scene,
        *,
        own: Mapping[str, Any] | None = None,
        permissions: frozenset[str] = frozenset(),
        requests: bool = False,
        resumed: bool = False,
        summary: str | None = "summary",
    ) -> None:
        self.scene, self.own = scene, own or {}
        self.permissions, self.requests, self.resumed, self.summary = permissions, requests, resumed, summary
        self.asked: list[str] = []
        self.told: list[str] = []
        self.stopped = ""
        self.deferred: ToolRequest | None = None
        self.interrupted = False
        self._answers: dict[str, Any] = {}
        self._ids = itertools.count()
        self._hooks: dict[str, list[str]] = {}
        self._shaken: set[str] = set()
        self._scope: anyio.CancelScope

    async def connect(self) -> None:
        self._send, self._lines = anyio.create_memory_object_stream[dict[str, Any]](math.inf)
        self._prompts, self._to_play = anyio.create_memory_object_stream[str](math.inf)
        self._starting = anyio.Lock()
        self._playing = BackgroundTask(self._play_all())

    async def write(self, data: str) -> None:
        await suspend()
        line = json.loads(data)
        if line["type"] == "control_request":
            request = line["request"]
            for event, matchers in (request.get("hooks") or {}).items():
                self._hooks[event] = [name for matcher in matchers for name in matcher["hookCallbackIds"]]
            response = {
                "subtype": "success",
                "request_id": line["request_id"],
                "response": {"hook_on_failure_supported": True},
            }
            self._send.send_nowait({"type": "control_response", "response": response})
            if request["subtype"] == "interrupt":
                self.interrupted = True
                self._scope.cancel()
        elif line["type"] == "control_response":
            box, event = self._answers[line["response"]["request_id"]]
            box.append(line["response"])
            event.set()
        elif line["type"] == "user":
            self._prompts.send_nowait(line["message"]["content"])

    def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        return Lines(self._lines)

    async def close(self) -> None:
        self._playing.cancel()
        with anyio.CancelScope(shield=True):
            await self._playing.wait()
        for stream in (self._send, self._lines, self._prompts, self._to_play):
            stream.close()

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None:
        self._prompts.close()

    async def _play_all(self) -> None:
        async for prompt in self._to_play:
            self.stopped, self.deferred = "", None
            with anyio.CancelScope() as self._scope:
                await self._play(prompt)
            if self._scope.cancelled_caught:
                self._send.send_nowait({**SUMMARY, "subtype": "error_during_execution", "num_turns": 1})
        self._send.close()

    async def _play(self, prompt: str) -> None:
        said = await self._turns(self.scene, prompt, None)
        if self.deferred is not None:
            call = self.deferred
            deferred = {"id": call.tool_call_id, "name": name_of(call, self.own), "input": args_of(call)}
            result = {**SUMMARY, "subtype": "success", "result": "", "deferred_tool_use": deferred}
        elif not self.stopped and self.scene.turns[-1].tool_calls:
            error = {
                "role": "assistant",
                "model": "<synthetic>",
                "id": "error",
                "content": [{"type": "text", "text": "API Error"}],
            }
            self._send.send_nowait(
                {"type": "assistant", "message": error, "parent_tool_use_id": None, "error": "unknown"}
            )
            result = {**SUMMARY, "subtype": "error_during_execution", "is_error": True, "errors": ["API Error"]}
        else:
            result = {**SUMMARY, "subtype": "success", "result": said}
        self._send.send_nowait({**result, "num_turns": 1})

    async def _turns(self, scene: Scene, prompt: str, parent: str | None) -> str:
        said, conversation = "", [prompt]
        for number, turn in enumerate(scene.turns):
            said = turn.content
            if scene.compact and turn is scene.turns[-1]:
                await self._compact(scene)
            if not (self.resumed and number == 0):
                self._say(turn, f"{parent}-{number}", "\n".join(conversation), parent)
            results: dict[str, str] = {}
            answers = [await self._before(call, parent) for call in turn.tool_calls]
            if self.deferred is not None:
                return ""
            async with anyio.create_task_group() as group:
                for call, answer in zip(turn.tool_calls, answers, strict=True):
                    await group.start(self._call, scene, call, answer, parent, results)
            conversation += results.values()
            if parent is None:
                self.told += [results[call.tool_call_id] for call in turn.tool_calls]
            if self.stopped:
                return ""
        return said

    def _say(self, turn: ModelResponse, name: str, prompt: str, parent: str | None) -> None:
        self.asked.append(prompt)
        blocks: list[dict[str, Any]] = [{"type": "text", "text": turn.content}] if turn.content else []
        blocks += [
            {"type": "tool_use", "id": call.tool_call_id, "name": name_of(call, self.own), "input": args_of(call)}
            for call in turn.tool_calls
        ]
        for block in blocks:  # the CLI sends the parts of an answer one by one
            message = {"role": "assistant", "model": "scripted", "id": name, "content": [block]}
            message["usage"] = {"input_tokens": 10, "output_tokens": 5}
            self._send.send_nowait({"type": "assistant", "message": message, "parent_tool_use_id": parent})

    async def _compact(self, scene: Scene) -> None:
        self._system("status", status="compacting")
        await self._hook("PreCompact", None, {"trigger": "auto", "custom_instructions": None})
        if scene.summary_fails:
            return
        if self.summary is not None:
            await self._hook("PostCompact", None, {"trigger": "auto", "compact_summary": self.summary})
        self._system("status", status=None, compact_result="success")
        self._system("compact_boundary", compact_metadata={"trigger": "auto", "pre_tokens": 10})

    def _system(self, subtype: str, **data: Any) -> None:
        self._send.send_nowait({"type": "system", "subtype": subtype, "session_id": "session", **data})

    def _given(self, call: ToolRequest, parent: str | None) -> dict[str, Any]:
        given = {"tool_name": name_of(call, self.own), "tool_input": args_of(call), "tool_use_id": call.tool_call_id}
        return given if parent is None else {**given, "agent_id": f"agent-{parent}", "agent_type": "child"}

    async def _before(self, call: ToolRequest, parent: str | None) -> dict[str, Any]:
        answer = await self._hook("PreToolUse", call.tool_call_id, self._given(call, parent))
        if answer.get("permissionDecision") == "defer":
            self.deferred = call
        return answer

    async def _permitted(self, call: ToolRequest, answer: dict[str, Any], parent: str | None) -> dict[str, Any]:
        """What becomes of a call for which the CLI needs a permission."""
        given = self._given(call, parent)
        if self.requests:
            told = await self._hook("PermissionRequest", None, given)
            if "decision" in told:
                return {"message": "", **told["decision"]}
        request = {"subtype": "can_use_tool", "tool_name": given["tool_name"], "tool_use_id": call.tool_call_id}
        request |= {"input": answer.get("updatedInput", given["tool_input"]), "agent_id": given.get("agent_id")}
        return await self._ask({**request, "decision_reason": answer.get("permissionDecisionReason")})

    async def _call(
        self,
        scene: Scene,
        call: ToolRequest,
        answer: dict[str, Any],
        parent: str | None,
        results: dict[str, str],
        *,
        task_status: Any,
    ) -> None:
        task_status.started()  # in the model's order
        given, name, args = self._given(call, parent), name_of(call, self.own), args_of(call)
        if answer.get("permissionDecision") == "deny":
            self._result(call, results, answer["permissionDecisionReason"], failed=True)
            return
        args = answer.get("updatedInput", args)
        if answer.get("permissionDecision") == "ask" or name in self.permissions:
            permission = await self._permitted(call, answer, parent)
            if permission["behavior"] == "deny":
                if permission.get("interrupt"):
                    self.stopped = permission["message"]
                self._result(call, results, permission["message"], failed=True)
                return
            args = permission.get("updatedInput", args)
        told, failed = await self._run(scene, call, name, args)
        given["tool_input"] = args
        if failed:
            answer = await self._hook("PostToolUseFailure", call.tool_call_id, {**given, "error": told})
        else:
            answer = await self._hook("PostToolUse", call.tool_call_id, {**given, "tool_response": told})
            told = answer.get("updatedToolOutput", told)
        if "additionalContext" in answer:
            told = f"{told if isinstance(told, str) else json.dumps(told)}\n{answer['additionalContext']}"
        self._result(call, results, told, failed=failed)

    async def _run(self, scene: Scene, call: ToolRequest, name: str, args: Any) -> tuple[Any, bool]:
        if name == "Task":
            started = {"agent_id": f"agent-{call.tool_call_id}", "agent_type": call.tool_name}
            await self._hook("SubagentStart", None, started)
            return await self._turns(scene.agents[call.tool_name], args["prompt"], call.tool_call_id), False
        if name in self.own:
            own = self.own[name]
            return (str(own), True) if isinstance(own, Exception) else (own, False)
        server = name.split("__")[1]
        async with self._starting:
            await self._shake(server)
        answer = await self._mcp(server, "tools/call", {"name": call.tool_name, "arguments": args})
        if "error" in answer:
            return answer["error"]["message"], True
        return "\n".join(block["text"] for block in answer["result"]["content"]), answer["result"].get("isError", False)

    async def _shake(self, server: str) -> None:
        if server in self._shaken:
            return
        self._shaken.add(server)
        client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "cli", "version": "1"}}
        await self._mcp(server, "initialize", client)
        await self._mcp(server, "notifications/initialized", None)

    def _result(self, call: ToolRequest, results: dict[str, str], told: Any, *, failed: bool) -> None:
        results[call.tool_call_id] = told if isinstance(told, str) else json.dumps(told)
        block = {"type": "tool_result", "tool_use_id": call.tool_call_id, "content": results[call.tool_call_id]}
        message = {"role": "user", "content": [{**block, "is_error": failed}]}
        self._send.send_nowait({"type": "user", "message": message, "parent_tool_use_id": None})

    async def _hook(self, event: str, call_id: str | None, given: dict[str, Any]) -> dict[str, Any]:
        """Ask all hooks at once, in their order; of what they decide the strictest counts."""
        answers: list[dict[str, Any]] = []

        async def ask(callback: str, *, task_status: Any) -> None:
            request = {"subtype": "hook_callback", "callback_id": callback, "tool_use_id": call_id}
            asked = {**request, "input": {**COMMON, "hook_event_name": event, **given}}
            answers.append(await self._ask(asked, task_status.started))

        async with anyio.create_task_group() as group:
            for callback in self._hooks.get(event, []):
                await group.start(ask, callback)
        found: dict[str, Any] = {}
        for answer in sorted(answers, key=lambda each: STRICT.index(decision_in(each))):
            self.stopped = self.stopped or ("" if answer.get("continue", True) else answer["stopReason"])
            found |= answer.get("hookSpecificOutput", {})
        return found

    async def _mcp(self, server: str, method: str, params: Any) -> dict[str, Any]:
        message = {"jsonrpc": "2.0", "method": method, **({"params": params} if params is not None else {})}
        if not method.startswith("notifications/"):
            message["id"] = next(self._ids)
        answer = await self._ask({"subtype": "mcp_message", "server_name": server, "message": message})
        return answer["mcp_response"]

    async def _ask(self, request: dict[str, Any], sent: Callable[[], None] = lambda: None) -> dict[str, Any]:
        name, box, event = f"cli-{next(self._ids)}", list[Any](), anyio.Event()
        self._answers[name] = box, event
        self._send.send_nowait({"type": "control_request", "request_id": name, "request": request})
        sent()
        await event.wait()
        assert box[0]["subtype"] == "success", box[0]
        return box[0]["response"]


def decision_in(answer: dict[str, Any]) -> str:
    """What a hook decides about a tool call."""
    return str(answer.get("hookSpecificOutput", {}).get("permissionDecision", ""))


def name_of(call: ToolRequest, own: Mapping[str, Any]) -> str:
    if call.toolset == "agent":
        return "Task"
    return call.tool_name if call.tool_name in own else f"mcp__stage__{call.tool_name}"


def args_of(call: ToolRequest) -> dict[str, Any]:
    if call.toolset == "agent":
        return {"subagent_type": call.tool_name, "prompt": call.args["instruction"], "description": "help"}
    return dict(call.args)
