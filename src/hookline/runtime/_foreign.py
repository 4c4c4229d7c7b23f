"""`ForeignRun`: a run of another framework as an operation of hookline.

The framework owns the loop. Its adapter tells a `ForeignRun` what is about to happen, and does what comes back; events,
interceptors, mocks, counting and telemetry are those of `exec_agent`.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from hookline.calls import (
    AgentCall,
    AgentResult,
    Call,
    CompactCall,
    CompactResult,
    Message,
    ModelCall,
    ModelResponse,
    SubAgentCall,
    ToolCall,
    ToolCalling,
    ToolResult,
    ToolSpec,
)
from hookline.errors import StaleStateError, message_of
from hookline.events import (
    AfterCallAgent,
    AfterCompact,
    BeforeCallAgent,
    BeforeCompact,
    OnCallAgentError,
    OnCompactError,
)
from hookline.runtime._calls import answer, call_of, intercepted_job
from hookline.runtime._control import RunControl, lead
from hookline.runtime._enclosing import enclosed
from hookline.runtime._foreign_keeping import storable_messages
from hookline.runtime._foreign_life import ForeignLife
from hookline.runtime._foreign_results import AgentDone, ToolDone
from hookline.runtime._foreign_segment import stand_in
from hookline.runtime._given import new_operation_id
from hookline.runtime._letting_go import LOST_HERE
from hookline.runtime._result import Step
from hookline.runtime._tools import Tool, as_result

__all__ = ["ForeignRun"]


class ForeignRun(ForeignLife):
    """One run of another framework, or the segment of one that goes on after a person was asked.

    `async with` it around the framework's own run; or, where the framework calls back from tasks of its own, say `open`
    and `close`. It ends by `finish`, else as the block was left: done, interrupted by a cancellation, or in error.

    Args:
        hooks: Hooks of this run; those of a `parent` with `inherit=True` come first.
        drives: What the framework can drive.
        agent_id: The agent's name.
        model: The model's name.
        provider: Who runs it.
        operation_id: Id of the run; a fresh one unless given. One that waits for a person goes on.
        user_id: The user for whom it runs.
        tenant_id: The tenant for whom it runs.
        parent: The run that called this one as a sub-agent.
        conversation_id: The session that it belongs to.
        dispatcher: An open dispatcher to share; that of the parent, else one of its own unless given.
        store: Where it is kept while it waits for a person.
        drain_timeout: Seconds that queued observers may take at the end.
        best_effort: Whether hooks that the framework cannot drive are only told of in the log.
        allow_missing_hooks: Whether one that waits for a person may go on without interceptors that it was given
            before, with a warning in the log.

    Attributes:
        operation_id: The run.
        drives: What the framework can drive.

    Raises:
        UnsupportedHookError: If a hook would never be called.
        HookDefinitionError: If a hook cannot work.
    """

    def leads(self, call: type[Call]) -> bool:
        """Whether such calls must be led; else the framework may make them alone, and nothing be translated for them.

        Args:
            call: The class of the calls.
        """
        run = self._opened
        return call in run.intercepted or call in run.enclosing

    def begin_model_call(self) -> None:
        """Count a model call that the framework is about to make alone, which it may where such calls are not led.

        A call that fails counts too. One that is tried again in the same step counts once.
        """
        self._opened.begin_model_call(self.step)

    def asked_model(self, response: ModelResponse) -> None:
        """Take the answer of a model that the framework has asked alone.

        The call is counted here, unless `begin_model_call` has counted it.

        Args:
            response: What the model answered.
        """
        self.begin_model_call()
        self.answered(response)

    async def ask_model(
        self,
        messages: Sequence[Message],
        ask: Callable[[ModelCall], Awaitable[ModelResponse]],
        *,
        tools: Sequence[ToolSpec] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> ModelResponse | None:
        """A model is asked, led through the hooks of `ModelCall`.

        Args:
            messages: The conversation.
            ask: Asks it. Of a call that no hook has changed the messages are equal to those given.
            tools: What it is offered.
            settings: What its adapter was told to set.

        Returns:
            Its answer, or that of a hook; `None` if a hook denied it, which is to end the run.
        """
        run, step = self._opened, self.step
        run.messages = list(messages) if run.journal is None else storable_messages(messages)
        run.given_specs = list(tools)
        model = run.agent.model
        call = ModelCall(
            messages=list(messages),
            tools=list(tools),
            model=getattr(model, "name", ""),
            settings=dict(settings or {}),
            step_index=step.index,
            **run.call_ids,
        )

        async def terminal(final: ModelCall) -> ModelResponse:
            run.begin_model_call(step)
            work = ask(final)
            response = await (enclosed(run, final, work) if ModelCall in run.enclosing else work)
            step.asking = False
            return response

        if ModelCall not in run.intercepted:
            response = await terminal(call)
        else:
            passage = await lead(run, call, terminal)
            if passage.denied is not None:
                run.denied = passage.denied
                return None
            response = passage.result
        self.answered(response)
        return response

    def name_model(self, name: str) -> None:
        """Name the model that is asked, where that was not known at the beginning."""
        run = self._opened
        run.agent = stand_in(run.agent.id, name, getattr(run.agent.model, "provider", ""))

    # Tools.

    async def call_tool(
        self,
        calling: ToolCalling,
        work: Callable[[Mapping[str, Any]], Awaitable[ToolResult]],
        *,
        approved: bool = False,
    ) -> ToolDone:
        """A tool is called, led through the hooks of `ToolCall`, with its pair of events.

        Args:
            calling: The call as the model asked for it; `identifier` is where the tool comes from.
            work: Runs it with its final arguments. Any `Exception` that it raises is its result.
            approved: Whether a person has let it through.
        """
        run, step = self._opened, self.step
        given: list[ToolResult] = []
        raised: list[Exception] = []

        async def run_it(args: Mapping[str, Any]) -> ToolResult:
            try:
                given.append(as_result(calling.api_name, await work(args)))
            except Exception as error:
                raised.append(error)
                raise
            return given[0]

        tool = Tool(identifier=calling.identifier, name=calling.api_name, run=run_it)
        calling = self._named(calling, step)
        run.at_hand[calling.tool_call_id] = tool
        try:
            call, problem = call_of(run, step, calling, tool)
            if ToolCall in run.intercepted:
                waiting = run.waiting.get(calling.tool_call_id)
                asked_by = waiting.asked_by if waiting is not None else None
                await intercepted_job(
                    run, step, calling, call, problem, approved=approved, asked_by=asked_by if approved else None
                )()
            else:
                run.count_call(call)
                await answer(run, step, calling, call, tool, problem)
        except (*LOST_HERE, StaleStateError) as error:
            self._lost = error
            raise
        finally:
            del run.at_hand[calling.tool_call_id]
        return self._tool_done(step, calling, given, raised)

    def _named(self, calling: ToolCalling, step: Step) -> ToolCalling:
        """The call with an id that no other call under way has, noted among those of the step."""
        name, at_hand = calling.tool_call_id or f"call_{len(step.calling)}", self._opened.at_hand
        while name in at_hand or name in step.outcomes:
            name = f"{name}_again"
        if name != calling.tool_call_id:
            calling = msgspec.structs.replace(calling, tool_call_id=name)
        step.type = "call_tool"
        if name not in [known.tool_call_id for known in step.calling]:
            step.calling.append(calling)
        return calling

    def _tool_done(
        self, step: Step, calling: ToolCalling, given: list[ToolResult], raised: list[Exception]
    ) -> ToolDone:
        run = self._opened
        asked = step.asked.get(calling.tool_call_id)
        if asked is not None:
            empty = ToolResult(content=asked.prompt, success=False)
            return ToolDone(result=empty, ran=False, asked=asked)
        outcome = step.outcomes[calling.tool_call_id]
        result = ToolResult(content=outcome.content, success=outcome.success)
        error = raised[0] if raised else None
        told = given[0].content if given else None
        if error is not None:
            told = f"{type(error).__name__}: {message_of(error)}"
        changed = told != outcome.content
        return ToolDone(
            result=result,
            ran=bool(given or raised),
            changed=changed,
            error=None if changed else error,
            stop=run.denied,
        )

    # Compaction, sub-agents, the whole run.

    async def compact(
        self, messages: Sequence[Message], token_count: int, summarize: Callable[[list[Message]], Awaitable[str]]
    ) -> str | None:
        """A conversation is compacted, led through the hooks of `CompactCall`, with its events.

        Args:
            messages: What the summary will replace.
            token_count: The input tokens that made it necessary.
            summarize: Writes the summary.

        Returns:
            The summary; `None` if it failed or a hook denied it.
        """
        run, index = self._opened, self.step.index
        ids: dict[str, Any] = {**run.ids, "step_index": index}
        if run.hooked(BeforeCompact):
            run.tell(BeforeCompact(**ids, message_count=len(messages), token_count=token_count))

        async def terminal(final: CompactCall) -> CompactResult:
            work = _summary(summarize, final)
            return await (enclosed(run, final, work) if CompactCall in run.enclosing else work)

        call = CompactCall(messages=list(messages), token_count=token_count, **run.call_ids)
        try:
            if CompactCall not in run.intercepted:
                result = await terminal(call)
            else:
                passage = await lead(run, call, terminal)
                if passage.refusal is not None:
                    raise passage.refusal
                result = passage.result
        except BaseException as error:
            if run.hooked(OnCompactError):
                told = message_of(error) if isinstance(error, Exception) else "The run was interrupted."
                run.tell(OnCompactError(**ids, token_count=token_count, error=told))
            if isinstance(error, Exception):
                return None
            raise
        if run.hooked(AfterCompact):
            run.tell(
                AfterCompact(
                    **ids,
                    group_id=f"compact_{os.urandom(16).hex()}",
                    messages_before=len(messages),
                    messages_after=1,
                    summary=result.summary,
                )
            )
        return result.summary

    async def call_agent(
        self, callee_id: str, instruction: str, work: Callable[[str, str], Awaitable[str]]
    ) -> AgentDone:
        """A sub-agent is called, led through the hooks of `SubAgentCall`, with its events.

        Args:
            callee_id: The sub-agent.
            instruction: What it is asked to do.
            work: Runs it, with the final instruction and the operation id that its own run is to have. What it raises
                is told to the hooks, and raised again.
        """
        run, child = self._opened, new_operation_id()
        call = SubAgentCall(callee_id=callee_id, instruction=instruction, **run.call_ids)
        said: list[str] = []

        async def terminal(final: SubAgentCall) -> AgentResult:
            if run.hooked(BeforeCallAgent):
                run.tell(BeforeCallAgent(**run.ids, callee_id=callee_id, instruction=final.instruction))
            inner = _agent_result(work, final.instruction, child)
            try:
                result = await (enclosed(run, final, inner) if SubAgentCall in run.enclosing else inner)
            except BaseException as error:
                if run.hooked(OnCallAgentError):
                    told = message_of(error) if isinstance(error, Exception) else "The run was interrupted."
                    run.tell(OnCallAgentError(**run.ids, callee_id=callee_id, error=told))
                raise
            said.append(result.output)
            self._called(callee_id, child, success=result.reason == "done")
            return result

        if SubAgentCall not in run.intercepted:
            result = await terminal(call)
            return AgentDone(output=result.output, ran=True)
        passage = await lead(run, call, terminal)
        if passage.denied is not None and passage.stop:
            run.denied = passage.denied
        if not passage.reached:
            if run.hooked(BeforeCallAgent):
                run.tell(BeforeCallAgent(**run.ids, callee_id=callee_id, instruction=passage.call.instruction))
            if passage.denied is None:
                self._called(callee_id, "", success=passage.result.reason == "done")
                return AgentDone(output=passage.result.output, ran=False, changed=True)
            if run.hooked(OnCallAgentError):
                run.tell(OnCallAgentError(**run.ids, callee_id=callee_id, error=passage.denied.reason))
            return AgentDone(output=passage.denied.reason, ran=False, changed=True, denied=passage.denied)
        if passage.denied is not None:
            return AgentDone(output=passage.denied.reason, ran=True, changed=True, denied=passage.denied)
        output = passage.result.output
        return AgentDone(output=output, ran=True, changed=said != [output])

    def _called(self, callee_id: str, child: str, *, success: bool) -> None:
        run = self._opened
        if run.hooked(AfterCallAgent):
            run.tell(
                AfterCallAgent(**run.ids, callee_id=callee_id, sub_operation_id=child, thread_id=child, success=success)
            )

    async def lead_run(
        self,
        prompt: Sequence[Message],
        work: Callable[[AgentCall], Awaitable[str]],
        *,
        instructions: str = "",
        tools: Sequence[ToolSpec] = (),
    ) -> AgentDone:
        """The whole run, led through the hooks of `AgentCall`.

        Args:
            prompt: What it is to work on.
            work: Runs it, as the hooks left the call; what it returns was said last.
            instructions: The system message.
            tools: What the model may call.
        """
        run = self._opened
        call = AgentCall(
            input=list(prompt), instructions=instructions, tools=list(tools), metadata=run.metadata, **run.call_ids
        )
        said: list[str] = []

        async def terminal(final: AgentCall) -> AgentResult:
            said.append(await work(final))
            reason = self._ended[0] if self._ended is not None else "done"
            control.suspended = reason == "waiting_for_human"
            return AgentResult(output=said[0], reason=reason)

        control = RunControl(run, pinned=self._resumed)
        if AgentCall not in run.intercepted:
            await terminal(call)
            return AgentDone(output=said[0], ran=True)
        passage = await lead(run, call, terminal, control)
        if passage.denied is not None:
            run.denied = passage.denied
            self.finish("interrupted", "")
            return AgentDone(output="", ran=passage.reached, changed=True, denied=passage.denied)
        output = run.last_content = passage.result.output
        return AgentDone(
            output=output, ran=passage.reached, changed=said != [output], continues=tuple(passage.continues)
        )


async def _summary(summarize: Callable[[list[Message]], Awaitable[str]], call: CompactCall) -> CompactResult:
    return CompactResult(summary=await summarize(list(call.messages)))


async def _agent_result(work: Callable[[str, str], Awaitable[str]], instruction: str, child: str) -> AgentResult:
    return AgentResult(output=await work(instruction, child))
