"""The callbacks of the Claude Agent SDK for one task: tool calls and sub-agents run through hooks.

The SDK runs each callback in a task of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import Any

import anyio
import msgspec
from claude_agent_sdk import ClaudeAgentOptions, PermissionResultAllow

from hookline._readonly import writable
from hookline.adapters.claude_agent_sdk import _conversion as convert
from hookline.adapters.claude_agent_sdk._approvals import ApprovalQuestions
from hookline.adapters.claude_agent_sdk._background import BackgroundCall
from hookline.adapters.claude_agent_sdk._compaction import ClaudeCompaction
from hookline.calls import Message, ToolRequest, ToolResult
from hookline.runtime import AdapterRun, AgentDone, ToolDone

__all__ = ["ClaudeTask"]

ANNOUNCEMENT_SECONDS = 0.25
"""How long a tool call waits for the message that announces it; the CLI sends that message first."""


class ToolFailure(Exception):
    """A tool of Claude failed; its error text is all that Claude reports."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnnouncedCall:
    """A call of an in-process tool that `PreToolUse` announced and that has not arrived yet.

    Attributes:
        name: Claude's name for the tool.
        args: The arguments.
        call_id: The id of the call.
        run: The operation that makes the call.
        approved: Whether a person approved it.
    """

    name: str
    args: Mapping[str, Any]
    call_id: str
    run: AdapterRun
    approved: bool = False


class ClaudeTask:
    """One task of Claude: its operation, those of its sub-agents, and the calls in progress.

    Args:
        run: The operation.
        options: The options of the caller.
        own: Names of the in-process MCP servers whose calls pass through the hooks where they arrive.

    Attributes:
        approvals: The questions put to people.
        compacting: The compaction of the conversation.
    """

    def __init__(self, run: AdapterRun, options: ClaudeAgentOptions, own: Collection[str]) -> None:
        self.run = run
        self.approvals, self.compacting = ApprovalQuestions(options), ClaudeCompaction(run)
        self._own_servers = own
        self._message_ids: dict[str, str] = {}
        self._announced: dict[str, anyio.Event] = {}
        self._open_calls: dict[str, BackgroundCall] = {}
        self._children: dict[str, AdapterRun] = {}
        self._sub_agent_calls: dict[str, str] = {}
        self._unclaimed: list[AnnouncedCall] = []

    def run_of(self, agent_id: str | None) -> AdapterRun:
        """Return the operation of a sub-agent, by Claude's id for it; the task's own for none."""
        return self._children.get(self._sub_agent_calls.get(agent_id or "", ""), self.run)

    # The stream.

    async def record_answer(self, message: Any) -> None:
        """Record a message of the model in its step; the CLI sends an answer in several parts."""
        caller = message.parent_tool_use_id or ""
        run = self._children.get(caller) if caller else self.run
        if run is None:
            return
        if run is self.run:
            await self.compacting.settle()
        if message.error is not None:  # the CLI wrote this message: the model call failed
            self._begin_step(run)
            run.begin_model_call()
            return
        response = convert.to_model_response(message)
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
            message_so_far = Message(role="assistant", content=run.step.content, tool_calls=list(run.step.calling))
            self.compacting.record_message(message_so_far, goes_on=goes_on)
        for calling in response.tool_calls:
            self._announced.setdefault(calling.tool_call_id, anyio.Event()).set()

    def _begin_step(self, run: AdapterRun) -> None:
        if run is not self.run or not self.compacting.pop_opened_step():
            run.begin_step()

    async def record_results(self, message: Any) -> None:
        """End calls for which no callback came, because something else refused them."""
        for call_id, content, failed in convert.tool_results(message):
            if message.parent_tool_use_id is None:
                self.compacting.record_message(Message(role="tool", content=content, tool_call_id=call_id))
            self._unclaimed = [each for each in self._unclaimed if each.call_id != call_id]
            call = self._open_calls.pop(call_id, None)
            if call is not None:
                await call.end(ToolResult(content=content, success=not failed))

    async def close(self) -> None:
        """End the calls that are still open when the stream is over."""
        with anyio.CancelScope(shield=True):  # otherwise their events would come after the end of the run
            for call in list(self._open_calls.values()):
                await call.end(error=InterruptedError("The run ended before the tool call did."))
            self._open_calls.clear()
            await self.compacting.settle("The run ended before the conversation was compacted.")

    # The callbacks.

    async def before_tool(self, given: Any, call_id: str | None, _: Any) -> dict[str, Any]:
        """`PreToolUse`: run the hooks up to the tool."""
        call_id = call_id or given["tool_use_id"]
        resumed = self.approvals.is_waiting(self.run, call_id)
        if not resumed:
            with anyio.move_on_after(ANNOUNCEMENT_SECONDS):
                await self._announced.setdefault(call_id, anyio.Event()).wait()
        run = self.run_of(given.get("agent_id"))
        if run.denied is not None or run.interrupted or self.approvals.stopped:
            return convert.stop_output("The run has been stopped.")
        decision = await self.approvals.strictest_decision(call_id)
        if decision.get("decision") == "defer":
            return {}
        name, args = given["tool_name"], given["tool_input"]
        toolset, tool_name = convert.split_tool_name(name)
        request = ToolRequest(toolset=toolset, tool_name=tool_name, args=args, tool_call_id=call_id)
        approved = resumed and bool(decision)
        if approved and not self.approvals.apply_decision(run, request, decision):
            return {}
        if toolset in self._own_servers:
            self._unclaimed.append(AnnouncedCall(name=name, args=args, call_id=call_id, run=run, approved=approved))
            return {}
        call = await self._begin_call(run, request, name, approved=approved)
        if call.result is None:
            final = convert.final_args(name, args, call.given)
            return convert.rewrite_output(final) if final != args else {}
        asked = getattr(call.result, "asked", None)
        if asked is None:
            return convert.refusal_output(name, call.result)
        run.step.asked.pop(call_id, None)
        self.approvals.register_question(call_id, asked, partial(self._resume_approved, run, request, name))
        return convert.ask_output(asked, args)

    async def _begin_call(self, run: AdapterRun, request: ToolRequest, name: str, *, approved: bool) -> BackgroundCall:
        """Run the hooks of a call up to the tool; the call is over if they answer or refuse it."""
        call, args = BackgroundCall(), request.args
        if name in convert.AGENT_TOOLS and isinstance(args, Mapping):
            callee = str(args.get("subagent_type", "agent"))
            hooked_call: Coroutine[Any, Any, Any] = self._delegate(
                run, call, request.tool_call_id, callee, convert.instruction_of(args)
            )
        else:
            hooked_call = run.call_tool(request, call.work, approved=approved)
        if await call.begin(hooked_call):
            self._open_calls[request.tool_call_id] = call
        return call

    async def _resume_approved(
        self, run: AdapterRun, request: ToolRequest, name: str, args: dict[str, Any]
    ) -> dict[str, Any] | str:
        """Run the hooks of a call that a person approved; return its arguments, or the reason if they refuse it."""
        request = msgspec.structs.replace(request, args=args)
        call = await self._begin_call(run, request, name, approved=True)
        if call.result is None:
            return convert.final_args(name, args, call.given)
        return convert.reason_of(convert.refusal_output(name, call.result))

    async def after_tool(self, given: Any, call_id: str | None, _: Any) -> dict[str, Any]:
        """`PostToolUse`: run the hooks after the tool."""
        call = self._open_calls.pop(call_id or given["tool_use_id"], None)
        if call is None:
            return self._stop_if_ended()
        output = convert.text_of(given["tool_response"])
        done = await call.end(output if given["tool_name"] in convert.AGENT_TOOLS else ToolResult(content=output))
        if done is None or not done.changed:
            return {}
        if isinstance(done, ToolDone) and done.added and done.stop is None:
            return convert.context_output("PostToolUse", done.added)
        return convert.replacement_output(given["tool_name"], done)

    async def after_failure(self, given: Any, call_id: str | None, _: Any) -> dict[str, Any]:
        """`PostToolUseFailure`: run the hooks after a tool that failed."""
        call = self._open_calls.pop(call_id or given["tool_use_id"], None)
        done = await call.end(error=ToolFailure(given["error"])) if call is not None else None
        ended = self._stop_if_ended()
        if isinstance(done, ToolDone) and done.added:
            return convert.context_output("PostToolUseFailure", done.added) | ended
        return ended

    def _stop_if_ended(self) -> dict[str, Any]:
        denied = self.run.denied
        if denied is None and not self.approvals.stopped:
            return {}
        return {"continue_": False, "stopReason": "A person ended the task." if denied is None else denied.reason}

    async def sub_agent_starts(self, given: Any, call_id: str | None, _: Any) -> dict[str, Any]:
        """`SubagentStart`: remember which call started the sub-agent with this id."""
        matched = set(self._sub_agent_calls.values())
        caller = next(
            (
                key
                for key, run in self._children.items()
                if run.run.agent.id == given["agent_type"] and key not in matched
            ),
            None,
        )
        if caller is not None:
            self._sub_agent_calls[given["agent_id"]] = caller
        return {}

    async def _delegate(
        self, run: AdapterRun, call: BackgroundCall, call_id: str, callee: str, instruction: str
    ) -> AgentDone:
        async def work(final: str, operation_id: str) -> str:
            child = AdapterRun((), self.run.capabilities, agent_id=callee, operation_id=operation_id, parent=run)
            await child.open([Message(role="user", content=final)])
            self._children[call_id] = child
            try:
                output: str = await call.work(final)
            except BaseException as error:
                await child.close(error)
                raise
            finally:
                del self._children[call_id]
            await child.close()
            return output

        return await run.call_agent(callee, instruction, work)

    # In-process tools.

    async def call_own_tool(
        self, server: str, context: Any, params: Any, handler: Callable[[Any, Any], Awaitable[Any]]
    ) -> Any:
        """Run a call of an in-process MCP tool through the hooks."""
        args, name = params.arguments or {}, convert.join_tool_name(server, params.name)
        announced = self._claim_announced(name, args)
        run = announced.run
        request = ToolRequest(toolset=server, tool_name=params.name, args=args, tool_call_id=announced.call_id)
        answers: list[Any] = []

        async def work(final: Mapping[str, Any]) -> ToolResult:
            final = writable(final)
            asked = params if final == args else params.model_copy(update={"arguments": final})
            answers.append(await handler(context, asked))
            return convert.from_mcp_result(answers[0])

        done: ToolDone = await run.call_tool(request, work, approved=announced.approved)
        if done.asked is not None:
            run.step.asked.pop(done.asked.tool_call_id, None)
            shown = writable(done.asked.args)
            answer = await self.approvals.ask_for(run, name, shown, done.asked)
            if not isinstance(answer, PermissionResultAllow):
                return convert.to_mcp_result(answer.message, failed=True)
            final = shown if answer.updated_input is None else answer.updated_input
            request = msgspec.structs.replace(request, args=final, tool_call_id=done.asked.tool_call_id)
            done = await run.call_tool(request, work, approved=True)
        if done.error is not None:
            raise done.error
        if answers and not done.changed:
            return answers[0]
        if answers and done.added:
            return convert.add_text(answers[0], done.added)
        return convert.to_mcp_result(done.result.content, failed=not done.result.success)

    def _claim_announced(self, name: str, args: Mapping[str, Any]) -> AnnouncedCall:
        """Return the announced call that this is: the oldest with this name and, if possible, these arguments."""
        for exact in (True, False):
            for announced in self._unclaimed:
                if announced.name == name and (not exact or announced.args == args):
                    self._unclaimed.remove(announced)
                    return announced
        return AnnouncedCall(name=name, args=args, call_id="", run=self.run)
