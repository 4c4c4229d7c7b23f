"""The plugin through which Google ADK reports a run to hookline.

One plugin serves every run: it finds the present one in a context variable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from google.adk.events.event import Event
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.agent_tool import AgentTool
from google.genai import types

from hookline._readonly import writable
from hookline.adapters._conversion import rejection_text, to_pending_tool
from hookline.adapters.google_adk import _conversion as convert
from hookline.calls import (
    AgentCall,
    CompactCall,
    Message,
    ModelCall,
    ModelResponse,
    SubAgentCall,
    ToolCall,
    ToolRequest,
)
from hookline.errors import HookDenied, HookUsageError
from hookline.events import PendingTool
from hookline.execution import SteppedCall
from hookline.runtime import KINDS, AdapterRun, AgentDone, Capabilities, Reject, ToolDone

__all__ = ["DRIVES", "OPERATION_KEY", "AdkBinding", "HookPlugin", "current_binding", "current_call"]

DRIVES = Capabilities(
    framework="Google ADK",
    calls=dict.fromkeys((AgentCall, ModelCall, ToolCall, SubAgentCall, CompactCall), KINDS),
    asks=True,
    adds_context=frozenset({ToolCall, AgentCall}),
    guides=True,
)
"""The hooks that the Agent Development Kit supports."""

CONTEXT_KEY = "context"
"""Key under which the model reads, in a tool's result, the text that hooks have added for it."""

OPERATION_KEY = "hookline_operation_id"
"""Metadata key under which an event that asks a person names the operation that waits."""

current_binding: ContextVar[AdkBinding | None] = ContextVar("hookline_google_adk", default=None)
current_call: ContextVar[SteppedCall | None] = ContextVar("hookline_google_adk_tool", default=None)


class AdkBinding:
    """An operation, and the calls of it that are in progress.

    Args:
        run: The operation.
        agent: The agent.
        parent: The binding of the operation that called the agent.
        agent_call: The call between the agent's two callbacks, if it shares its parent's session.

    Attributes:
        questions: The questions put to a person, by tool call; shared with the parent.
        open_calls: The calls between two callbacks; shared with the parent.
    """

    def __init__(
        self, run: AdapterRun, agent: Any, parent: AdkBinding | None = None, agent_call: SteppedCall | None = None
    ) -> None:
        self.run, self.agent, self.parent, self.agent_call = run, agent, parent, agent_call
        self.questions: dict[str, tuple[AdkBinding, PendingTool]] = parent.questions if parent is not None else {}
        self.open_calls: set[SteppedCall] = parent.open_calls if parent is not None else set()
        self.model_call: SteppedCall | None = None
        self.observes_model = False
        """Whether a model call is open that only observers watch; then only its answer is converted."""
        self.last_part: Any = None
        self.judged_call: ModelCall | None = None
        """The present model call, if hooks judge its answer in parts."""
        self.reads_parts = False
        """Whether the answer of that call is read in parts, so that only judged parts come to the plugin."""
        self.note_piece: Callable[[], None] | None = None
        self.last_answer: tuple[Any, ModelResponse] | None = None
        """ADK's and hookline's form of the model's answer, if a hook had the model asked again."""
        self.instructions = ""
        self.answer: types.Content | None = None
        self.finished = self.step_begun = False

    def begin_step(self) -> None:
        """Begin the step of the next model call, unless it has begun or no model call will follow."""
        if not self.finished and not self.step_begun:
            self.run.begin_step()
            self.step_begun = True

    def note_part(self, response: Any) -> None:
        """Note a part of a streamed answer, as the model sent it."""
        self.last_part = response
        if self.note_piece is not None:
            self.note_piece()

    async def settle_model_call(self) -> None:
        """End a model call whose stream broke off before its last part; the part before counts as its answer."""
        call, self.model_call = self.model_call, None
        if call is not None:
            await call.end(convert.from_llm_response(self.last_part))
        elif self.observes_model:
            self.record_model_answer(self.last_part)

    def record_model_answer(self, response: Any) -> None:
        """Record the answer to a model call that only observers watch."""
        self.observes_model = False
        self.run.asked_model(convert.from_llm_response(response))

    async def delegate(self, call: SteppedCall, agent: Any, instruction: str, *, fixed: bool) -> AgentDone:
        """Run the hooks around a sub-agent, which is an operation of its own.

        Args:
            call: The call between the two callbacks of the sub-agent.
            agent: The sub-agent.
            instruction: Its instruction.
            fixed: Whether it reads the instruction in the session, where hooks cannot change it.
        """

        async def work(final: str, operation_id: str) -> str:
            if fixed and final != instruction:
                raise HookUsageError(
                    f"A hook changed the instruction of {agent.name!r}, but ADK transfers the conversation unchanged. "
                    "Make the sub-agent an AgentTool, or use hooks of its ModelCall."
                )
            named = convert.model_identity(agent)
            run = AdapterRun((), DRIVES, agent_id=agent.name, operation_id=operation_id, parent=self.run, **named)
            await run.open([Message(role="user", content=final)])
            binding = AdkBinding(run, agent, self, call if fixed else None)
            token = current_binding.set(binding)
            try:
                output: str | None = await call.work(final)
                await binding.settle_model_call()
            except BaseException as error:
                await run.close(error)
                raise
            finally:
                with suppress(ValueError):  # the framework may end the agent in another task than it began it in
                    current_binding.reset(token)
            await run.close()
            return run.run.last_content if output is None else output

        return await self.run.call_agent(agent.name, instruction, work)


class HookPlugin(BasePlugin):
    """Reports each callback of ADK to the present run, and changes calls and results as its hooks decide."""

    def __init__(self) -> None:
        super().__init__(name="hookline")

    async def before_run_callback(self, **_: Any) -> types.Content | None:
        binding = current_binding.get()
        return binding.answer if binding is not None else None

    async def after_run_callback(self, **_: Any) -> None:
        binding = current_binding.get()
        if binding is not None:
            binding.finished = True

    async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> types.Content | None:
        binding = current_binding.get()
        # ADK calls no `after_agent_callback` for an agent whose own `before_agent_callback` answered in its place.
        while binding is not None and binding.agent_call is not None and agent.parent_agent is not None:
            if binding.agent.find_agent(agent.name) is not None:
                break
            await binding.agent_call.end()
            binding = binding.parent
        if binding is None or agent.name == binding.agent.name:
            return None
        call = SteppedCall(binding.open_calls)
        instruction = convert.text_of(callback_context.user_content)
        if await call.begin(binding.delegate(call, agent, instruction, fixed=True)):
            return None
        return convert.text_content("model", call.result.output)

    async def after_agent_callback(self, *, agent: Any, callback_context: Any) -> types.Content | None:
        binding = current_binding.get()
        if binding is None or binding.agent_call is None or binding.agent.name != agent.name:
            return None
        task = asyncio.current_task()
        cancelled = asyncio.CancelledError() if task is not None and task.cancelling() else None
        done = await binding.agent_call.end(error=cancelled)
        return convert.text_content("model", done.output) if done is not None and done.changed else None

    async def on_agent_error_callback(self, *, agent: Any, callback_context: Any, error: Exception) -> None:
        binding = current_binding.get()
        if binding is not None and binding.agent_call is not None and binding.agent.name == agent.name:
            await binding.agent_call.fail(error)

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> Any:
        binding = current_binding.get()
        if binding is None:
            return None
        if binding.run.interrupted or binding.run.denied is not None:
            return convert.denied_response("The run has been stopped.")
        await binding.settle_model_call()
        binding.begin_step()
        binding.step_begun, binding.last_part, binding.note_piece = False, None, None
        binding.judged_call, binding.reads_parts = None, False
        if binding.instructions:
            llm_request.append_instructions([binding.instructions])
        if not binding.run.leads(ModelCall):
            binding.observes_model = True
            binding.run.begin_model_call()
            return None
        request, call = convert.AdkModelRequest(llm_request), SteppedCall(binding.open_calls)
        binding.last_answer = None
        asked = False

        async def ask(final: ModelCall) -> ModelResponse:
            nonlocal asked
            if not asked:  # ADK makes the call between its two callbacks, once
                asked = True
                first: ModelResponse = await call.work(final)
                return first
            request.change(final)
            response = await convert.ask_again(binding.agent, callback_context.agent_name, llm_request)
            binding.last_answer = response, convert.from_llm_response(response)
            return binding.last_answer[1]

        hooked_call = binding.run.ask_model(request.messages, ask, tools=request.tools, settings=request.settings)
        if not await call.begin(hooked_call):
            return convert.to_llm_response(call.result, binding.run.denied)
        request.change(call.given)
        binding.judged_call = call.given if binding.run.judges_parts() else None
        binding.model_call, binding.note_piece = call, binding.run.begin_stream(known_to_stream=False)
        return None

    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> Any:
        binding = current_binding.get()
        if binding is None or not (binding.model_call or binding.observes_model):
            return None
        if llm_response.partial:
            if binding.reads_parts:
                return None
            binding.note_part(llm_response)
            if binding.model_call is None or not binding.run.may_change_result(ModelCall):
                return None
            return llm_response.model_copy(update={"content": None})  # ADK emits no event without content
        if binding.model_call is None:
            binding.record_model_answer(llm_response)
            return None
        call, binding.model_call = binding.model_call, None
        given = convert.from_llm_response(llm_response)
        answer: ModelResponse | None = await call.end(given)
        if binding.last_answer is not None:  # a hook has discarded the answer of ADK's own call
            llm_response, given = binding.last_answer
            return (
                llm_response
                if answer is given
                else convert.to_llm_response(answer, binding.run.denied, given=llm_response)
            )
        return None if answer is given else convert.to_llm_response(answer, binding.run.denied, given=llm_response)

    async def on_model_error_callback(self, *, callback_context: Any, llm_request: Any, error: Exception) -> Any:
        binding = current_binding.get()
        if binding is not None:
            binding.observes_model = False
        if binding is None or binding.model_call is None:
            return None
        call, binding.model_call = binding.model_call, None
        answer = await call.fail(error)
        if isinstance(error, HookDenied) and binding.reads_parts:
            return convert.to_llm_response(None, binding.run.denied)
        return convert.to_llm_response(answer, None) if answer is not None else None

    async def before_tool_callback(self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any) -> Any:
        binding = current_binding.get()
        confirmation, call_id = tool_context.tool_confirmation, tool_context.function_call_id
        current_call.set(None)
        if binding is None:
            return None
        decision = convert.to_decision(call_id, confirmation) if confirmation is not None else None
        if isinstance(decision, Reject):
            return {"error": rejection_text(decision)}
        request = ToolRequest(
            toolset=convert.toolset_of(tool), tool_name=tool.name, args=tool_args, tool_call_id=call_id
        )
        if confirmation is None and await tool.check_require_confirmation(tool_args, tool_context) is True:
            binding.questions[call_id] = binding, to_pending_tool(request)
            return None
        call, is_agent = SteppedCall(binding.open_calls), isinstance(tool, AgentTool)
        hooked_call: Coroutine[Any, Any, Any]
        if is_agent:
            hooked_call = binding.delegate(call, tool.agent, convert.instruction_of(tool_args), fixed=False)
        else:
            hooked_call = binding.run.call_tool(request, call.work, approved=confirmation is not None)
        if not await call.begin(hooked_call):
            return _answer_for_model(binding, call.result, tool_context)
        if is_agent and call.given != convert.instruction_of(tool_args):
            convert.replace_args(tool_args, {"request": call.given})
        elif not is_agent and call.given != tool_args:
            convert.replace_args(tool_args, writable(call.given))
        current_call.set(call)
        return None

    async def after_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any, result: Any) -> Any:
        binding, call = current_binding.get(), current_call.get()
        if binding is None or call is None:
            return None
        current_call.set(None)
        given = (
            convert.result_text(result) if isinstance(tool, AgentTool) else convert.to_tool_result(tool.name, result)
        )
        done = await call.end(given)
        if isinstance(done, ToolDone) and done.added and isinstance(result, dict) and CONTEXT_KEY not in result:
            return {**result, CONTEXT_KEY: done.added}
        return _answer_for_model(binding, done, tool_context) if done.changed else None

    async def on_tool_error_callback(self, *, tool: Any, tool_args: Any, tool_context: Any, error: Any) -> Any:
        binding, call = current_binding.get(), current_call.get()
        if binding is None or call is None:
            return None
        current_call.set(None)
        done = await call.fail(error)
        return _answer_for_model(binding, done, tool_context) if done is not None and done.changed else None

    async def on_event_callback(self, *, invocation_context: Any, event: Event) -> None:
        binding = current_binding.get()
        waiting = convert.call_ids_to_confirm(event) if binding is not None else ()
        if binding is None or not waiting:
            return
        known = [binding.questions.pop(call_id) for call_id in waiting if call_id in binding.questions]
        for asker, _ in known:
            asker.run.finish("waiting_for_human")
        binding.run.pause([pending for _, pending in known])
        event.custom_metadata = {**(event.custom_metadata or {}), OPERATION_KEY: binding.run.operation_id}


def _answer_for_model(binding: AdkBinding, done: ToolDone | AgentDone, tool_context: Any) -> dict[str, Any]:
    """Return the tool result for the model, for a call that hooks answered, denied, changed or ask about."""
    if isinstance(done, AgentDone):
        return {"error" if done.denied is not None else "result": done.output}
    if done.asked is not None:
        tool_context.request_confirmation(hint=done.asked.prompt)
        binding.questions[tool_context.function_call_id] = binding, done.asked
    if done.asked is not None or done.stop is not None:
        tool_context.actions.skip_summarization = True
    return {"result" if done.result.success else "error": done.result.content}
