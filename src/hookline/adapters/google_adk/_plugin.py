"""The plugin through which Google's Agent Development Kit says what it does to the present run.

One plugin serves every run: it finds the present one in a context variable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from google.adk.events.event import Event
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.agent_tool import AgentTool
from google.genai import types

from hookline._readonly import writable
from hookline.adapters._stepping import SteppedCall
from hookline.adapters.google_adk import _words as words
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
from hookline.errors import HookUsageError
from hookline.events import PendingTool
from hookline.runtime import KINDS, AdapterRun, AgentDone, Capabilities, ToolDone

__all__ = ["DRIVES", "OPERATION", "Place", "Plugin", "here"]

DRIVES = Capabilities(
    framework="Google ADK",
    calls=dict.fromkeys((AgentCall, ModelCall, ToolCall, SubAgentCall, CompactCall), KINDS),
    asks=True,
)
"""What of hookline the Agent Development Kit can drive."""

OPERATION = "hookline_operation_id"
"""Under what an event that asks a person says which operation waits."""

here: ContextVar[Place | None] = ContextVar("hookline_google_adk", default=None)
_tool: ContextVar[SteppedCall | None] = ContextVar("hookline_google_adk_tool", default=None)


class Place:
    """An operation, and what of it is under way."""

    def __init__(
        self, run: AdapterRun, agent: Any, above: Place | None = None, entered: SteppedCall | None = None
    ) -> None:
        self.run, self.agent, self.above, self.entered = run, agent, above, entered
        self.asked: dict[str, tuple[Place, PendingTool]] = above.asked if above is not None else {}
        self.under_way: set[SteppedCall] = above.under_way if above is not None else set()
        self.asking: SteppedCall | None = None
        self.heeds = False
        """Whether a model is asked that no hook leads: then only its answer is translated."""
        self.part: Any = None
        self.instructions = ""
        self.answer: types.Content | None = None
        self.over = self.begun = False

    def step(self) -> None:
        """Begin the step of the next model call, unless that has happened, or none will follow."""
        if not self.over and not self.begun:
            self.run.begin_step()
            self.begun = True

    async def settle(self) -> None:
        """Take what came of a stream that broke off without its last part as the model's answer."""
        asking, self.asking = self.asking, None
        if asking is not None:
            await asking.end(words.model_response(self.part))
        elif self.heeds:
            self.heed(self.part)

    def heed(self, response: Any) -> None:
        """A model that no hook leads has answered."""
        self.heeds = False
        self.run.asked_model(words.model_response(response))

    async def delegate(self, between: SteppedCall, agent: Any, instruction: str, *, fixed: bool) -> AgentDone:
        """A sub-agent is called, as an operation of its own.

        Args:
            between: Stands for its run.
            agent: The sub-agent.
            instruction: What it is to do.
            fixed: Whether it reads that in the session, where nobody can change it.
        """

        async def work(final: str, operation_id: str) -> str:
            if fixed and final != instruction:
                raise HookUsageError(
                    f"ADK hands the conversation over to {agent.name!r} as it is; its instruction cannot be changed. "
                    "Make it an AgentTool, or change the sub-agent's own `ModelCall`s."
                )
            named = words.model_of(agent)
            run = AdapterRun((), DRIVES, agent_id=agent.name, operation_id=operation_id, parent=self.run, **named)
            await run.open([Message(role="user", content=final)])
            place = Place(run, agent, self, between if fixed else None)
            token = here.set(place)
            try:
                said: str | None = await between.work(final)
                await place.settle()
            except BaseException as error:
                await run.close(error)
                raise
            finally:
                with suppress(ValueError):  # the framework may end in another task what it began in one
                    here.reset(token)
            await run.close()
            return run.run.last_content if said is None else said

        return await self.run.call_agent(agent.name, instruction, work)


class Plugin(BasePlugin):
    """The seam: says to the present run what the framework is about to do, and has done."""

    def __init__(self) -> None:
        super().__init__(name="hookline")

    async def before_run_callback(self, **_: Any) -> types.Content | None:
        place = here.get()
        return place.answer if place is not None else None

    async def after_run_callback(self, **_: Any) -> None:
        place = here.get()
        if place is not None:
            place.over = True

    async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> types.Content | None:
        place = here.get()
        # An agent whose own callback has answered for it is left without a word.
        while place is not None and place.entered is not None and agent.parent_agent is not None:
            if place.agent.find_agent(agent.name) is not None:
                break
            await place.entered.end()
            place = place.above
        if place is None or agent.name == place.agent.name:
            return None
        between = SteppedCall(place.under_way)
        instruction = words.text_of(callback_context.user_content)
        if await between.begin(place.delegate(between, agent, instruction, fixed=True)):
            return None
        return words.content("model", between.result.output)

    async def after_agent_callback(self, *, agent: Any, callback_context: Any) -> types.Content | None:
        place = here.get()
        if place is None or place.entered is None or place.agent.name != agent.name:
            return None
        task = asyncio.current_task()
        cancelled = asyncio.CancelledError() if task is not None and task.cancelling() else None
        done = await place.entered.end(error=cancelled)
        return words.content("model", done.output) if done is not None and done.changed else None

    async def on_agent_error_callback(self, *, agent: Any, callback_context: Any, error: Exception) -> None:
        place = here.get()
        if place is not None and place.entered is not None and place.agent.name == agent.name:
            await place.entered.fail(error)

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> Any:
        place = here.get()
        if place is None:
            return None
        if place.run.interrupted or place.run.denied is not None:
            return words.refused("The run has been stopped.")
        await place.settle()
        place.step()
        place.begun, place.part = False, None
        if place.instructions:
            llm_request.append_instructions([place.instructions])
        if not place.run.leads(ModelCall):
            place.heeds = True
            place.run.begin_model_call()
            return None
        request, between = words.Request(llm_request), SteppedCall(place.under_way)
        leading = place.run.ask_model(request.messages, between.work, tools=request.tools, settings=request.settings)
        if not await between.begin(leading):
            return words.llm_response(between.result, place.run.denied)
        request.change(between.given)
        place.asking = between
        return None

    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> Any:
        place = here.get()
        if place is None or not (place.asking or place.heeds):
            return None
        if llm_response.partial:
            place.part = llm_response
            return None
        if place.asking is None:
            place.heed(llm_response)
            return None
        asking, place.asking = place.asking, None
        given = words.model_response(llm_response)
        answer: ModelResponse | None = await asking.end(given)
        return None if answer is given else words.llm_response(answer, place.run.denied, given=llm_response)

    async def on_model_error_callback(self, *, callback_context: Any, llm_request: Any, error: Exception) -> Any:
        place = here.get()
        if place is not None:
            place.heeds = False
        if place is None or place.asking is None:
            return None
        asking, place.asking = place.asking, None
        answer = await asking.fail(error)
        return words.llm_response(answer, None) if answer is not None else None

    async def before_tool_callback(self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any) -> Any:
        place, person, call_id = here.get(), tool_context.tool_confirmation, tool_context.function_call_id
        _tool.set(None)
        if place is None:
            return None
        if person is not None and not person.confirmed:
            return {"error": words.rejection(person)}
        calling = ToolRequest(toolset=words.origin(tool), tool_name=tool.name, args=tool_args, tool_call_id=call_id)
        if person is None and await tool.check_require_confirmation(tool_args, tool_context) is True:
            place.asked[call_id] = place, words.pending(calling)
            return None
        between, delegating = SteppedCall(place.under_way), isinstance(tool, AgentTool)
        leading: Coroutine[Any, Any, Any]
        if delegating:
            leading = place.delegate(between, tool.agent, words.instruction(tool_args), fixed=False)
        else:
            leading = place.run.call_tool(calling, between.work, approved=person is not None)
        if not await between.begin(leading):
            return _told(place, between.result, tool_context)
        if delegating and between.given != words.instruction(tool_args):
            words.replace_args(tool_args, {"request": between.given})
        elif not delegating and between.given != tool_args:
            words.replace_args(tool_args, writable(between.given))
        _tool.set(between)
        return None

    async def after_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any, result: Any) -> Any:
        place, between = here.get(), _tool.get()
        if place is None or between is None:
            return None
        _tool.set(None)
        given = words.text_of_result(result) if isinstance(tool, AgentTool) else words.tool_result(tool.name, result)
        done = await between.end(given)
        return _told(place, done, tool_context) if done.changed else None

    async def on_tool_error_callback(self, *, tool: Any, tool_args: Any, tool_context: Any, error: Any) -> Any:
        place, between = here.get(), _tool.get()
        if place is None or between is None:
            return None
        _tool.set(None)
        done = await between.fail(error)
        return _told(place, done, tool_context) if done is not None and done.changed else None

    async def on_event_callback(self, *, invocation_context: Any, event: Event) -> None:
        place = here.get()
        waiting = words.asked_in(event) if place is not None else ()
        if place is None or not waiting:
            return
        known = [place.asked.pop(call_id) for call_id in waiting if call_id in place.asked]
        for asker, _ in known:
            asker.run.finish("waiting_for_human")
        place.run.pause([pending for _, pending in known])
        event.custom_metadata = {**(event.custom_metadata or {}), OPERATION: place.run.operation_id}


def _told(place: Place, done: ToolDone | AgentDone, tool_context: Any) -> dict[str, Any]:
    """What the model is told of a call that hooks have answered, denied or changed, or about which they ask."""
    if isinstance(done, AgentDone):
        return {"error" if done.denied is not None else "result": done.output}
    if done.asked is not None:
        tool_context.request_confirmation(hint=done.asked.prompt)
        place.asked[tool_context.function_call_id] = place, done.asked
    if done.asked is not None or done.stop is not None:
        tool_context.actions.skip_summarization = True
    return {"result" if done.result.success else "error": done.result.content}
