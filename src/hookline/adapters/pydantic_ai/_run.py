"""One run of Pydantic AI under hooks: what happens at each seam of the framework."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai import CallToolsNode, ModelRequestNode, UserPromptNode
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import DeferredToolRequests, RunContext, ToolApproved, ToolDenied

from hookline.adapters.pydantic_ai import _words as words
from hookline.adapters.pydantic_ai._calls import Calls, Scope, UnderWay, present_caller
from hookline.adapters.pydantic_ai._people import RunRejected, Stop
from hookline.calls import AgentCall, Message
from hookline.errors import HookDenied, HookUsageError, UnknownToolError
from hookline.events import PendingTool
from hookline.hooks import AnyHook
from hookline.runtime import AdapterRun, Approve, Capabilities, Reject

__all__ = ["Led"]

logger = logging.getLogger("hookline")


class Led(Calls):
    """The hooks of one run.

    Args:
        hooks: The hooks.
        capabilities: What the framework can drive.
        options: What else a `AdapterRun` takes.
    """

    def __init__(self, hooks: Sequence[AnyHook], capabilities: Capabilities, options: Mapping[str, Any]) -> None:
        self.hooks, self.capabilities, self.options = hooks, capabilities, options
        super().__init__()
        self._node: object = None
        self._handed_out = False
        self._prompt: str | None = None

    async def run(self, ctx: RunContext[Any], handler: Callable[[], Awaitable[Any]]) -> Any:
        """The whole run."""
        caller = present_caller.get()
        if caller is None or caller.scope.over:
            return await self._lead(ctx, handler, None, self.options.get("operation_id"))
        child, caller.child = caller.child, None
        if child is not None or self.options.get("operation_id") is not None:
            return await self._lead(ctx, handler, caller.run, child or self.options.get("operation_id"))
        results: list[Any] = []

        async def work(instruction: str, child: str) -> str:
            self._prompt = instruction if instruction != words.text_of(ctx.prompt) else None
            results.append(await self._lead(ctx, handler, caller.run, child))
            return words.text_of(results[0].output)

        done = await caller.run.call_agent(_name(ctx), words.text_of(ctx.prompt), work)
        if done.denied is not None:
            raise HookDenied(done.denied.hook_id, done.denied.reason)
        return _result(results, done.output, changed=done.changed)

    async def _lead(
        self, ctx: RunContext[Any], handler: Callable[[], Awaitable[Any]], parent: AdapterRun | None, name: str | None
    ) -> Any:
        run = self._run = AdapterRun(
            self.hooks,
            self.capabilities,
            agent_id=_name(ctx),
            model=ctx.model.model_name,
            provider=ctx.model.system,
            parent=parent,
            **{"conversation_id": ctx.conversation_id, **self.options, "operation_id": name},
        )
        await run.open()
        self._scope = run.run.scope = Scope(ctx)  # type: ignore[assignment]  # the run is in tasks of the framework
        try:
            result = await self._result_of(ctx, handler, run)
        except BaseException as error:
            # A cancelled run of the framework ends its calls after its hooks have ended.
            await UnderWay.unwind(self._calls)
            await run.close(error)
            raise
        else:
            await run.close()
        finally:
            self._scope.over = True
        return result

    async def _result_of(self, ctx: RunContext[Any], handler: Callable[[], Awaitable[Any]], run: AdapterRun) -> Any:
        if not run.leads(AgentCall):
            result = await handler()
            self._ended(run, result.output)
            return result
        results: list[Any] = []
        given = [Message(role="user", content=words.text_of(ctx.prompt) if self._prompt is None else self._prompt)]

        async def work(call: AgentCall) -> str:
            if list(call.input) != given:
                self._prompt = "\n\n".join(message.content for message in call.input)
            results.append(await handler())
            return self._ended(run, results[0].output)

        done = await run.lead_run(given, work)
        if done.denied is not None:
            raise HookDenied(done.denied.hook_id, done.denied.reason)
        if done.continues:
            logger.warning("A run of Pydantic AI cannot go on after its end: %r is not asked.", done.continues)
        if done.changed and self._handed_out:
            raise HookUsageError(
                "A hook of AgentCall changed the output of a run that `run_stream` had handed out already. Change the "
                "model's answer with a hook of ModelCall, or use `run` or `run_stream_events`."
            )
        return _result(results, done.output, changed=done.changed)

    def _ended(self, run: AdapterRun, output: Any) -> str:
        """The framework's run has ended, or waits for a person; the text of its output."""
        if isinstance(output, str):
            return output
        if isinstance(output, DeferredToolRequests):
            waiting = [part for part in (*output.approvals, *output.calls) if part.tool_call_id not in run.step.asked]
            run.pause([self._pending(part) for part in waiting])
            run.end_step(should_continue=False)
            return ""
        text = words.text_of(output)
        run.finish("done", text)
        return text

    async def node(self, ctx: RunContext[Any], node: Any) -> Any:
        """A node of the framework's graph is about to run."""
        if node is self._node:  # the capability was given twice
            return node
        self._node = node
        self._handed_out = not isinstance(node, UserPromptNode | ModelRequestNode | CallToolsNode)
        if isinstance(node, UserPromptNode) and self._prompt is not None:
            return replace(node, user_prompt=self._prompt)
        if isinstance(node, CallToolsNode):
            self._look(ctx)
            unknown = [part for part in node.model_response.tool_calls if part.tool_name not in self._tools]
            if node.tool_call_results is not None:
                self._decide(node.tool_call_results)
            elif self._tools:
                for part in unknown:  # the framework tells the model, and nobody else
                    await self._failed(part, UnknownToolError(part.tool_name, sorted(self._tools)))
        return node

    def _decide(self, results: Mapping[str, Any]) -> None:
        """A run goes on after a person has decided."""
        decided: list[Approve | Reject] = []
        for name, result in results.items():
            if isinstance(result, ToolApproved):
                decided.append(Approve(name))
            elif isinstance(result, ToolDenied):
                decided.append(Reject(name, reason=result.message, and_continue=not isinstance(result, Stop)))
        self._run.begin_step()
        self._run.decided(decided)
        self._run.step.type = "call_tool"
        for each in decided:
            if isinstance(each, Reject) and not each.and_continue:
                self._run.finish("interrupted")
                raise RunRejected(each.tool_call_id, each.reason)

    def _pending(self, part: ToolCallPart) -> PendingTool:
        calling = words.calling_of(part, self._source)
        return PendingTool(
            toolset=calling.toolset,
            tool_name=calling.tool_name,
            tool_call_id=calling.tool_call_id,
            args=part.args_as_dict(),
        )


def _name(ctx: RunContext[Any]) -> str:
    return (ctx.agent.name if ctx.agent is not None else None) or "agent"


def _result(results: list[Any], output: str, *, changed: bool) -> Any:
    """What the framework's run gave, with the text that hooks have put in its place; or what a hook answered."""
    if not results:
        return AgentRunResult(output=output)
    if not changed:
        return results[0]
    if not isinstance(results[0].output, str):
        raise HookUsageError(
            f"A hook changed the output of a run that gave a {type(results[0].output).__name__}, and only text can be "
            "changed. Change the model's answer with a hook of ModelCall."
        )
    return replace(results[0], output=output)
