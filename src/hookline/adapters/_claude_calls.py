"""Tool calls and sub-agents of Claude, led from the callbacks of the SDK, which come in tasks of their own."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import anyio
from claude_agent_sdk._internal._task_compat import spawn_detached

from hookline._frozen import writable
from hookline.adapters import _claude_words as words
from hookline.calls import Message, ToolCalling, ToolResult
from hookline.runtime import AgentDone, Drives, ForeignRun, ToolDone

__all__ = ["Task"]

SEEN_SECONDS = 0.25
"""How long a tool call waits for the message that asks for it, which the CLI sends first."""


class _Between:
    """Work that hookline leads in a task of its own, while Claude does it between two callbacks."""

    def __init__(self) -> None:
        self._turned, self._came = anyio.Event(), anyio.Event()
        self._value: Any = None
        self._error: Exception | None = None
        self._raised: BaseException | None = None
        self.given: Any = None
        self.done: Any = None

    async def work(self, given: Any, *_: object) -> Any:
        """Stand for the work: let it begin, and wait for what comes of it."""
        self.given = given
        self._turned.set()
        await self._came.wait()
        if self._error is not None:
            raise self._error
        return self._value

    async def begin(self, leading: Coroutine[Any, Any, Any]) -> bool:
        """Lead it to the work; False if it is over without."""

        async def lead() -> None:
            try:
                self.done = await leading
            except BaseException as error:
                self._raised = error
                if not isinstance(error, Exception):
                    raise
            finally:
                self._turned.set()

        self._led = spawn_detached(lead())
        await self._turned.wait()
        if self._raised is not None:
            raise self._raised
        return self.done is None

    async def end(self, value: Any = None, error: Exception | None = None) -> Any:
        """Claude has done the work; what hookline makes of it, `None` where that is the same error."""
        self._value, self._error = value, error
        self._came.set()
        await self._led.wait()
        return self.done


class ToolFailure(Exception):
    """A tool of Claude has failed; all that is known is what it said."""


class Task:
    """A task that Claude works on: the operation, those of its sub-agents, and the calls that are under way.

    Args:
        run: The operation.
        drives: What of hookline is driven.
    """

    def __init__(self, run: ForeignRun, drives: Drives) -> None:
        self._run, self._drives = run, drives
        self._message_ids: dict[str, str] = {}
        self._asked: dict[str, anyio.Event] = {}
        self._between: dict[str, _Between] = {}
        self._children: dict[str, ForeignRun] = {}
        self._names: dict[str, str] = {}
        self._own: dict[str, Any] = {}
        self._waiting: list[tuple[str, Mapping[str, Any], str, ForeignRun]] = []
        self.session_id = ""

    # The stream.

    def saw_answer(self, message: Any) -> None:
        """Take a message of a model into the steps; the CLI sends the parts of one answer one by one."""
        caller = message.parent_tool_use_id or ""
        run = self._children.get(caller) if caller else self._run
        if run is None:
            return
        if message.error is not None:  # the CLI's own words: the model was asked in vain
            run.begin_step()
            return
        response = words.model_response(message)
        if message.message_id is None or self._message_ids.get(caller) != message.message_id:
            self._message_ids[caller] = message.message_id or ""
            run.begin_step()
            run.answered(response)
            run.run.llm_calls += 1
        else:
            step = run.step
            step.calling = [*step.calling, *response.tool_calls]
            step.type = "call_tool" if step.calling else step.type
            step.content = run.run.last_content = step.content + response.content
            step.reasoning += response.reasoning
        for calling in response.tool_calls:
            self._asked.setdefault(calling.tool_call_id, anyio.Event()).set()

    async def saw_results(self, message: Any) -> None:
        """Take the results of calls that no callback has told of, because somebody else refused them."""
        for call_id, content, failed in words.results_in(message):
            self._waiting = [each for each in self._waiting if each[2] != call_id]
            between = self._between.pop(call_id, None)
            if between is not None:
                await between.end(ToolResult(content=content, success=not failed))

    async def close(self) -> None:
        """The stream is over: end what is under way."""
        for between in list(self._between.values()):
            await between.end(error=InterruptedError("The run ended before the call was over."))
        self._between.clear()

    # The callbacks.

    async def before_tool(self, given: Any, call_id: str | None, _: Any) -> dict[str, Any]:
        """`PreToolUse`: lead the call to the tool."""
        call_id = call_id or given["tool_use_id"]
        with anyio.move_on_after(SEEN_SECONDS):
            await self._asked.setdefault(call_id, anyio.Event()).wait()
        run = self._children.get(self._names.get(given.get("agent_id") or "", ""), self._run)
        if run.denied is not None or run.interrupted:
            return words.stopped("The run has been stopped.")
        name, args = given["tool_name"], given["tool_input"]
        identifier, api_name = words.split(name)
        if identifier in self._own:
            self._waiting.append((name, args, call_id, run))
            return {}
        between, calls_agent = _Between(), name in words.AGENT_TOOLS
        leading: Coroutine[Any, Any, Any]
        if calls_agent:
            leading = self._delegate(
                run, between, call_id, str(args.get("subagent_type", "agent")), words.asked_of(args)
            )
        else:
            calling = ToolCalling(identifier=identifier, api_name=api_name, args=args, tool_call_id=call_id)
            leading = run.call_tool(calling, between.work)
        if not await between.begin(leading):
            return words.refused(name, between.done)
        self._between[call_id] = between
        final = {**args, "prompt": between.given} if calls_agent else writable(between.given)
        return words.rewritten(final) if final != args else {}

    async def after_tool(self, given: Any, call_id: str | None, _: Any) -> dict[str, Any]:
        """`PostToolUse`: the tool has run."""
        between = self._between.pop(call_id or given["tool_use_id"], None)
        if between is None:
            return self._end()
        told = words.text_of(given["tool_response"])
        done = await between.end(told if given["tool_name"] in words.AGENT_TOOLS else ToolResult(content=told))
        return words.replaced(given["tool_name"], done) if done is not None and done.changed else {}

    async def after_failure(self, given: Any, call_id: str | None, _: Any) -> dict[str, Any]:
        """`PostToolUseFailure`: the tool has failed."""
        between = self._between.pop(call_id or given["tool_use_id"], None)
        if between is not None:
            await between.end(error=ToolFailure(given["error"]))
        return self._end()

    def _end(self) -> dict[str, Any]:
        denied = self._run.denied
        return {"continue_": False, "stopReason": denied.reason} if denied is not None else {}

    async def sub_agent_starts(self, given: Any, call_id: str | None, _: Any) -> dict[str, Any]:
        """`SubagentStart`: says under which id the sub-agent's own calls come."""
        taken = set(self._names.values())
        caller = next(
            (
                key
                for key, run in self._children.items()
                if run.run.agent.id == given["agent_type"] and key not in taken
            ),
            None,
        )
        if caller is not None:
            self._names[given["agent_id"]] = caller
        return {}

    async def _delegate(
        self, run: ForeignRun, between: _Between, call_id: str, callee: str, instruction: str
    ) -> AgentDone:
        async def work(final: str, operation_id: str) -> str:
            child = ForeignRun((), self._drives, agent_id=callee, operation_id=operation_id, parent=run)
            await child.open([Message(role="user", content=final)])
            self._children[call_id] = child
            try:
                said: str = await between.work(final)
            except BaseException as error:
                await child.close(error)
                raise
            finally:
                del self._children[call_id]
            await child.close()
            return said

        return await run.call_agent(callee, instruction, work)

    # Tools of this process.

    def server(self, name: str, server: Any) -> Any:
        """An in-process MCP server like this one, whose tool calls are led through the hooks; they can be answered.

        One of a version of `mcp` that cannot be copied so is left as it is, like a server of another process.
        """
        find: Callable[[str], Any] | None = getattr(server, "get_request_handler", None)
        entry = find("tools/call") if find is not None else None
        if entry is None:
            return server
        hooked = copy.copy(server)
        hooked._request_handlers = dict(server._request_handlers)

        async def handle(context: Any, params: Any) -> Any:
            return await self._call(name, context, params, entry.handler)

        hooked.add_request_handler("tools/call", entry.params_type, handle)
        self._own[name] = hooked
        return hooked

    async def _call(self, server: str, context: Any, params: Any, handler: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        args = params.arguments or {}
        call_id, run = self._taken(words.joined(server, params.name), args)
        calling = ToolCalling(identifier=server, api_name=params.name, args=args, tool_call_id=call_id)
        answers: list[Any] = []

        async def work(final: Mapping[str, Any]) -> ToolResult:
            final = writable(final)
            asked = params if final == args else params.model_copy(update={"arguments": final})
            answers.append(await handler(context, asked))
            return words.tool_result(answers[0])

        done: ToolDone = await run.call_tool(calling, work)
        if done.error is not None:
            raise done.error
        return answers[0] if answers and not done.changed else words.mcp_result(done)

    def _taken(self, name: str, args: Mapping[str, Any]) -> tuple[str, ForeignRun]:
        """Which call of the model it is: the one of that name and with these arguments that has waited longest."""
        for exact in (True, False):
            for waiting in self._waiting:
                if waiting[0] == name and (not exact or waiting[1] == args):
                    self._waiting.remove(waiting)
                    return waiting[2], waiting[3]
        return "", self._run
