"""Bind one run of Pydantic AI to hookline's `AdapterRun`: its start, its nodes and its end."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai import CallToolsNode, ModelRequestNode, UserPromptNode
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import DeferredToolRequests, RunContext, ToolApproved, ToolDenied

from hookline.adapters._conversion import split_input, to_pending_tool
from hookline.adapters.pydantic_ai import _conversion as convert
from hookline.adapters.pydantic_ai._approvals import ToolDeniedAndStopped, mark_paused
from hookline.adapters.pydantic_ai._calls import CallHooks, RunScope, current_caller, unwind
from hookline.calls import AgentCall, Message, join_texts
from hookline.errors import HookUsageError, RunStopped, UnknownToolError
from hookline.hooks import AnyHook
from hookline.runtime import AdapterRun, Approve, Capabilities, Reject

__all__ = ["PydanticAIBinding"]

NODES = (CallToolsNode, ModelRequestNode, UserPromptNode)
"""The nodes of the framework's graph that come before the end of a run."""

logger = logging.getLogger("hookline")


class PydanticAIBinding(CallHooks):
    """One run of an agent, with the hooks around it and around its calls.

    Args:
        hooks: The hooks.
        capabilities: The hooks that the framework supports.
        options: Other options of `AdapterRun`.

    Attributes:
        unknown_calls: Calls of tools that do not exist, until they are reported.
    """

    def __init__(self, hooks: Sequence[AnyHook], capabilities: Capabilities, options: Mapping[str, Any]) -> None:
        self.hooks, self.capabilities, self.options = hooks, capabilities, options
        super().__init__()
        self.unknown_calls: Sequence[ToolCallPart] = ()
        self._node: object = None
        self._output_delivered = False
        self._prompt: str | None = None
        self._added = ""
        self._started: AdapterRun | None = None

    def run(self, ctx: RunContext[Any], handler: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
        """Run the agent as an operation."""
        caller = current_caller.get()
        if caller is None or caller.scope.ended:
            return self._run_operation(ctx, handler, None, self.options.get("operation_id"))
        child, caller.child = caller.child, None
        if child is not None or self.options.get("operation_id") is not None:
            return self._run_operation(ctx, handler, caller.run, child or self.options.get("operation_id"))
        return self._run_as_sub_agent(ctx, handler, caller.run)

    async def _run_as_sub_agent(
        self, ctx: RunContext[Any], handler: Callable[[], Awaitable[Any]], parent: AdapterRun
    ) -> Any:
        """Run the agent, which a tool of another run calls, through the hooks of `SubAgentCall`."""
        results: list[Any] = []

        async def work(instruction: str, child: str) -> str:
            self._prompt = instruction if instruction != convert.text_of(ctx.prompt) else None
            results.append(await self._run_operation(ctx, handler, parent, child))
            return convert.text_of(results[0].output)

        done = await parent.call_agent(_agent_name(ctx), convert.text_of(ctx.prompt), work)
        if done.denied is not None:
            raise RunStopped(done.denied.reason, done.denied.hook_id)
        return _final_result(results, done.output, changed=done.changed)

    async def _run_operation(
        self, ctx: RunContext[Any], handler: Callable[[], Awaitable[Any]], parent: AdapterRun | None, name: str | None
    ) -> Any:
        run = self._run = AdapterRun(
            self.hooks,
            self.capabilities,
            agent_id=_agent_name(ctx),
            model=ctx.model.model_name,
            provider=ctx.model.system,
            parent=parent,
            **{"conversation_id": ctx.conversation_id, **self.options, "operation_id": name},
        )
        await run.open()
        self._scope = run.run.scope = RunScope(ctx)  # type: ignore[assignment]  # the run's tasks belong to the framework
        self._started = run
        try:
            if run.leads(AgentCall):
                result = await self._run_with_hooks(ctx, handler, run)
            else:
                result = await handler()
                self._record_end(run, result)
        except BaseException as error:
            # If a run is cancelled, the framework ends its calls only after the hooks of the run have ended.
            await unwind(self._open_calls)
            await run.close(error)
            raise
        else:
            await run.close()
        finally:
            self._scope.ended = True
        return result

    async def _run_with_hooks(
        self, ctx: RunContext[Any], handler: Callable[[], Awaitable[Any]], run: AdapterRun
    ) -> Any:
        """Run the agent through the hooks of `AgentCall`."""
        results: list[Any] = []
        given = [Message(role="user", content=convert.text_of(ctx.prompt) if self._prompt is None else self._prompt)]

        async def work(call: AgentCall) -> str:
            asked, self._added = split_input(call.input)
            if asked != given:
                self._prompt = "\n\n".join(message.content for message in asked)
            results.append(await handler())
            return self._record_end(run, results[0])

        done = await run.lead_run(given, work)
        if done.denied is not None:
            raise RunStopped(done.denied.reason, done.denied.hook_id)
        if done.continues:
            logger.warning(
                "A hook returned Continue, but a run of Pydantic AI cannot continue after its end. Ignored input: %r",
                done.continues,
            )
        if done.changed and self._output_delivered:
            raise HookUsageError(
                "A hook of AgentCall changed the output after `run_stream` had delivered it. Change the model's answer "
                "with a hook of ModelCall, or use `run` or `run_stream_events`."
            )
        return _final_result(results, done.output, changed=done.changed)

    @property
    def interrupted(self) -> bool:
        """Whether `interrupt` ended the run; `False` if the application cancelled it in the framework's way."""
        return self._started is not None and self._scope.interrupted

    def _record_end(self, run: AdapterRun, result: AgentRunResult[Any]) -> str:
        """Record how the framework's run ended, or that it waits for a person; return its output as text."""
        output = result.output
        if isinstance(output, str):
            return output
        if isinstance(output, DeferredToolRequests):
            waiting = [part for part in (*output.approvals, *output.calls) if part.tool_call_id not in run.step.asked]
            run.pause([to_pending_tool(self._to_tool_request(part)) for part in waiting])
            run.end_step(should_continue=False)
            mark_paused(result.all_messages(), run.operation_id)
            return ""
        text = convert.text_of(output)
        run.finish("done", text)
        return text

    def enter_node(self, ctx: RunContext[Any], node: Any) -> Any:
        """Return the node of the framework's graph that runs next in place of the given one, with a changed prompt.

        It finds `unknown_calls`, which are to be reported before the node runs.
        """
        if node is self._node:  # the capability is installed twice
            return node
        self._node = node
        # For a node of another class, `isinstance` takes the slow way of abstract classes.
        kind = node.__class__
        if kind not in NODES:
            kind = next((each for each in NODES if isinstance(node, each)), kind)
        if kind is CallToolsNode:
            self._output_delivered = False
            self._record_tools(ctx)
            if node.tool_call_results is not None:
                self._report_decisions(node.tool_call_results)
            elif self._tools:
                self.unknown_calls = [
                    part
                    for part in node.model_response.parts
                    if isinstance(part, ToolCallPart) and part.tool_name not in self._tools
                ]
        elif kind is ModelRequestNode:
            self._output_delivered = False
        elif kind is UserPromptNode:
            self._output_delivered = False
            if self._prompt is None and not self._added:
                return node
            prompt = node.user_prompt if self._prompt is None else self._prompt
            return replace(node, user_prompt=_join_prompt(prompt, self._added) if self._added else prompt)
        else:
            self._output_delivered = True
        return node

    async def report_unknown_calls(self) -> None:
        """Report the calls of tools that do not exist, of which the framework tells the model only."""
        unknown, self.unknown_calls = self.unknown_calls, ()
        for part in unknown:
            await self._report_failed_call(part, UnknownToolError(part.tool_name, sorted(self._tools)))

    def _report_decisions(self, results: Mapping[str, Any]) -> None:
        """Report a person's decisions to hooks; one of them may end the run."""
        decisions: list[Approve | Reject] = []
        for name, result in results.items():
            if isinstance(result, ToolApproved):
                decisions.append(Approve(name))
            elif isinstance(result, ToolDenied):
                decisions.append(
                    Reject(name, reason=result.message, and_continue=not isinstance(result, ToolDeniedAndStopped))
                )
        self._run.begin_step()
        self._run.decided(decisions)
        self._run.step.type = "call_tool"
        if any(isinstance(each, Reject) and not each.and_continue for each in decisions):
            self._run.finish("interrupted")
            self._run.raise_if_stopped()


def _join_prompt(prompt: Any, added: str) -> Any:
    """Return a prompt with the text that hooks have added for the model, and everything in it that is not text."""
    if isinstance(prompt, str):
        return join_texts(prompt, added)
    return [*(prompt or ()), added]


def _agent_name(ctx: RunContext[Any]) -> str:
    return (ctx.agent.name if ctx.agent is not None else None) or "agent"


def _final_result(results: list[Any], output: str, *, changed: bool) -> Any:
    """Return the framework's result with the output that hooks left, or a new result if a hook answered."""
    if not results:
        return AgentRunResult(output=output)
    if not changed:
        return results[0]
    if not isinstance(results[0].output, str):
        raise HookUsageError(
            f"A hook changed the output of a run whose output is a {type(results[0].output).__name__}, and only text "
            "can be changed. Change the model's answer with a hook of ModelCall."
        )
    return replace(results[0], output=output)
