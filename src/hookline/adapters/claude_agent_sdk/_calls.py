"""Tool calls and sub-agents of Claude, led from the callbacks of the SDK, which come in tasks of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import Any

import anyio
import msgspec
from claude_agent_sdk import ClaudeAgentOptions, PermissionResultAllow

from hookline._readonly import writable
from hookline.adapters.claude_agent_sdk import _words as words
from hookline.adapters.claude_agent_sdk._compaction import Compacting
from hookline.adapters.claude_agent_sdk._people import People
from hookline.adapters.claude_agent_sdk._tasks import Between
from hookline.calls import Message, ToolRequest, ToolResult
from hookline.runtime import AdapterRun, AgentDone, ToolDone

__all__ = ["Task"]

SEEN_SECONDS = 0.25
"""How long a tool call waits for the message that asks for it, which the CLI sends first."""


class ToolFailure(Exception):
    """A tool of Claude has failed; all that is known is what it said."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Waiting:
    """A call of a tool of this process that Claude has announced.

    Attributes:
        name: The tool, as Claude calls it.
        args: Its arguments.
        call_id: The call.
        run: Whose call it is.
        approved: Whether a person has let it through.
    """

    name: str
    args: Mapping[str, Any]
    call_id: str
    run: AdapterRun
    approved: bool = False


class Task:
    """A task that Claude works on: the operation, those of its sub-agents, and the calls that are under way.

    Args:
        run: The operation.
        options: The options of the caller.
        own: Names of the MCP servers of this process whose calls are led where they arrive.

    Attributes:
        people: Those who are asked.
        compacting: The compaction of the conversation.
    """

    def __init__(self, run: AdapterRun, options: ClaudeAgentOptions, own: Collection[str]) -> None:
        self.run = run
        self.people, self.compacting = People(options), Compacting(run)
        self._own = own
        self._message_ids: dict[str, str] = {}
        self._asked: dict[str, anyio.Event] = {}
        self._between: dict[str, Between] = {}
        self._children: dict[str, AdapterRun] = {}
        self._names: dict[str, str] = {}
        self._waiting: list[Waiting] = []

    def run_of(self, agent_id: str | None) -> AdapterRun:
        """The operation of a sub-agent, by the name that Claude gives it; that of the task for none."""
        return self._children.get(self._names.get(agent_id or "", ""), self.run)

    # The stream.

    async def saw_answer(self, message: Any) -> None:
        """Take a message of a model into the steps; the CLI sends the parts of one answer one by one."""
        caller = message.parent_tool_use_id or ""
        run = self._children.get(caller) if caller else self.run
        if run is None:
            return
        if run is self.run:
            await self.compacting.settle()
        if message.error is not None:  # the CLI's own words: the model was asked in vain
            self._begin_step(run)
            run.begin_model_call()
            return
        response = words.model_response(message)
        goes_on = message.message_id is not None and self._message_ids.get(caller) == message.message_id
        if not goes_on:
            self._message_ids[caller] = message.message_id or ""
            self._begin_step(run)
            run.asked_model(response)
        else:
            step = run.step
            step.calling = [*step.calling, *response.tool_calls]
            step.type = "call_tool" if step.calling else step.type
            step.content = run.run.last_content = step.content + response.content
            step.reasoning += response.reasoning
        if run is self.run:
            said = Message(role="assistant", content=run.step.content, tool_calls=list(run.step.calling))
            self.compacting.heard(said, goes_on=goes_on)
        for calling in response.tool_calls:
            self._asked.setdefault(calling.tool_call_id, anyio.Event()).set()

    def _begin_step(self, run: AdapterRun) -> None:
        if run is not self.run or not self.compacting.opened_step():
            run.begin_step()

    async def saw_results(self, message: Any) -> None:
        """Take the results of calls that no callback has told of, because somebody else refused them."""
        for call_id, content, failed in words.results_in(message):
            if message.parent_tool_use_id is None:
                self.compacting.heard(Message(role="tool", content=content, tool_call_id=call_id))
            self._waiting = [each for each in self._waiting if each.call_id != call_id]
            between = self._between.pop(call_id, None)
            if between is not None:
                await between.end(ToolResult(content=content, success=not failed))

    async def close(self) -> None:
        """The stream is over: end what is under way."""
        with anyio.CancelScope(shield=True):  # else it would be told after the end of the run
            for between in list(self._between.values()):
                await between.end(error=InterruptedError("The run ended before the call was over."))
            self._between.clear()
            await self.compacting.settle("The run ended before the conversation was compacted.")

    # The callbacks.

    async def before_tool(self, given: Any, call_id: str | None, _: Any) -> dict[str, Any]:
        """`PreToolUse`: lead the call to the tool."""
        call_id = call_id or given["tool_use_id"]
        waited = self.people.waits(self.run, call_id)
        if not waited:
            with anyio.move_on_after(SEEN_SECONDS):
                await self._asked.setdefault(call_id, anyio.Event()).wait()
        run = self.run_of(given.get("agent_id"))
        if run.denied is not None or run.interrupted or self.people.stopped:
            return words.stopped("The run has been stopped.")
        decided = await self.people.heard(call_id)
        if decided.get("decision") == "defer":
            return {}
        name, args = given["tool_name"], given["tool_input"]
        toolset, tool_name = words.split(name)
        calling = ToolRequest(toolset=toolset, tool_name=tool_name, args=args, tool_call_id=call_id)
        approved = waited and bool(decided)
        if approved and not self.people.resumes(run, calling, decided):
            return {}
        if toolset in self._own:
            self._waiting.append(Waiting(name=name, args=args, call_id=call_id, run=run, approved=approved))
            return {}
        between = await self._begin(run, calling, name, approved=approved)
        if between.done is None:
            final = words.final_args(name, args, between.given)
            return words.rewritten(final) if final != args else {}
        asked = getattr(between.done, "asked", None)
        if asked is None:
            return words.refused(name, between.done)
        run.step.asked.pop(call_id, None)
        self.people.will_ask(call_id, asked, partial(self._approved, run, calling, name))
        return words.asks(asked, args)

    async def _begin(self, run: AdapterRun, calling: ToolRequest, name: str, *, approved: bool) -> Between:
        """Lead a call to its tool, which Claude runs; it is over where hooks have answered or refused it."""
        between, args = Between(), calling.args
        if name in words.AGENT_TOOLS and isinstance(args, Mapping):
            callee = str(args.get("subagent_type", "agent"))
            leading: Coroutine[Any, Any, Any] = self._delegate(
                run, between, calling.tool_call_id, callee, words.asked_of(args)
            )
        else:
            leading = run.call_tool(calling, between.work, approved=approved)
        if await between.begin(leading):
            self._between[calling.tool_call_id] = between
        return between

    async def _approved(
        self, run: AdapterRun, calling: ToolRequest, name: str, args: dict[str, Any]
    ) -> dict[str, Any] | str:
        """A person has let through what a hook had asked about: lead it on; text where hooks refuse it after all."""
        calling = msgspec.structs.replace(calling, args=args)
        between = await self._begin(run, calling, name, approved=True)
        if between.done is None:
            return words.final_args(name, args, between.given)
        return words.reason_of(words.refused(name, between.done))

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
        denied = self.run.denied
        if denied is None and not self.people.stopped:
            return {}
        return {"continue_": False, "stopReason": "A person ended the task." if denied is None else denied.reason}

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
        self, run: AdapterRun, between: Between, call_id: str, callee: str, instruction: str
    ) -> AgentDone:
        async def work(final: str, operation_id: str) -> str:
            child = AdapterRun((), self.run.capabilities, agent_id=callee, operation_id=operation_id, parent=run)
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

    async def call(self, server: str, context: Any, params: Any, handler: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        """A tool of an MCP server of this process is called."""
        args, name = params.arguments or {}, words.joined(server, params.name)
        waiting = self._taken(name, args)
        run = waiting.run
        calling = ToolRequest(toolset=server, tool_name=params.name, args=args, tool_call_id=waiting.call_id)
        answers: list[Any] = []

        async def work(final: Mapping[str, Any]) -> ToolResult:
            final = writable(final)
            asked = params if final == args else params.model_copy(update={"arguments": final})
            answers.append(await handler(context, asked))
            return words.tool_result(answers[0])

        done: ToolDone = await run.call_tool(calling, work, approved=waiting.approved)
        if done.asked is not None:
            run.step.asked.pop(done.asked.tool_call_id, None)
            shown = writable(done.asked.args)
            answer = await self.people.ask_for(run, name, shown, done.asked)
            if not isinstance(answer, PermissionResultAllow):
                return words.mcp_result(answer.message, failed=True)
            final = shown if answer.updated_input is None else answer.updated_input
            calling = msgspec.structs.replace(calling, args=final, tool_call_id=done.asked.tool_call_id)
            done = await run.call_tool(calling, work, approved=True)
        if done.error is not None:
            raise done.error
        if answers and not done.changed:
            return answers[0]
        return words.mcp_result(done.result.content, failed=not done.result.success)

    def _taken(self, name: str, args: Mapping[str, Any]) -> Waiting:
        """Which call of the model it is: the one of that name and with these arguments that has waited longest."""
        for exact in (True, False):
            for waiting in self._waiting:
                if waiting.name == name and (not exact or waiting.args == args):
                    self._waiting.remove(waiting)
                    return waiting
        return Waiting(name=name, args=args, call_id="", run=self.run)
