"""Callbacks and middleware of a Strands agent: its steps, its tool calls, its sub-agents and its graph nodes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any
from weakref import WeakSet

from strands import Agent
from strands import hooks as strands_hooks
from strands.hooks import AfterNodeCallEvent, BeforeNodeCallEvent
from strands.interrupt import InterruptException
from strands.middleware import ExecuteToolStage, InvokeModelStage, ToolResultEvent, TypedEvent

from hookline.adapters._conversion import rejection_text, to_pending_tool
from hookline.adapters.strands import _conversion as convert
from hookline.adapters.strands._compaction import hook_compactions
from hookline.adapters.strands._conversion import text_of
from hookline.adapters.strands._models import after_model, hook_middleware, model_middleware
from hookline.adapters.strands._run_binding import (
    StrandsBinding,
    binding_of,
    current_binding,
    new_sub_agent_run,
    running_tool,
    waiting_operations,
)
from hookline.calls import AgentCall, Message, ToolResult
from hookline.execution import GeneratorBridge, emit
from hookline.runtime import Reject

__all__ = ["attach"]


async def before_node(event: BeforeNodeCallEvent) -> None:
    """Begin a graph node as a sub-agent call; its instruction is the task of the whole graph."""
    source: Any = event.source
    binding = binding_of(source)
    if binding is None:
        return
    agent = source.nodes[event.node_id].executor

    async def work(instruction: str, operation_id: str) -> str:
        # Not an `async with`: Strands begins and ends a node in two callbacks.
        run, failed = new_sub_agent_run(binding, agent, operation_id), None
        await run.open()
        inner = StrandsBinding(run, agent, binding)
        current_binding.set(inner)
        try:
            return str(await emit(None))
        except BaseException as error:
            failed = error
            if inner.pending:  # the graph ends without the node: a person must decide about its calls
                run.pause([each for each in inner.pending if each.tool_call_id not in run.step.asked])
            raise
        finally:
            current_binding.set(binding)
            await run.close(failed)

    task = source.state.task
    instruction = task if isinstance(task, str) else text_of(task)
    bridge = GeneratorBridge(binding.run.call_agent(event.node_id, instruction, work))
    async for _ in bridge:
        binding.node_bridges[event.node_id] = bridge
        return
    event.cancel_node = bridge.result.output or True


async def after_node(event: AfterNodeCallEvent) -> None:
    """End the sub-agent call of a graph node."""
    binding = binding_of(event.source)
    bridge = binding.node_bridges.pop(event.node_id, None) if binding is not None else None
    if bridge is not None:
        source: Any = event.source
        found = source.state.results.get(event.node_id)  # none if it was cancelled or timed out
        outcome = found.result if found is not None else asyncio.CancelledError()
        await bridge.end(outcome if isinstance(outcome, BaseException) else str(outcome).strip())


Next = Callable[[Any], AsyncGenerator[Any, None]]
_with_resume_callback: WeakSet[Any] = WeakSet()
_with_model_middleware: WeakSet[Any] = WeakSet()
"""Agents with the middleware of model calls."""


# Steps.


def before_model(event: strands_hooks.BeforeModelCallEvent) -> None:
    """Begin a step; a retry of the model call belongs to the same step."""
    binding = binding_of(event.agent)
    if binding is not None:
        if not binding.model_pending:
            binding.run.begin_step()
            binding.model_pending = binding.resumption_reported = True
        if not binding.hooks_model_calls:
            binding.run.begin_model_call()
        binding.projected_tokens = event.projected_input_tokens or 0


def before_tools(event: strands_hooks.BeforeToolsEvent) -> None:
    """Resume a paused run with its tool calls, in a step of its own."""
    binding = binding_of(event.agent)
    if binding is None or binding.resumption_reported:
        return
    binding.resumption_reported = True
    binding.run.begin_step()
    binding.run.step.type = "call_tool"
    decisions = list(binding.decisions.values())
    binding.run.decided(decisions)
    stops = [each for each in decisions if isinstance(each, Reject) and not each.and_continue]
    if stops:
        event.cancel = binding.stop_reason = rejection_text(stops[0])
        binding.run.finish("interrupted")


def after_tools(event: strands_hooks.AfterToolsEvent) -> None:
    """End the step, unless some of its calls wait for a person."""
    binding = binding_of(event.agent)
    if binding is None:
        return
    results = {block["toolResult"]["toolUseId"] for block in event.message["content"]}
    uses = [block["toolUse"] for block in event.agent.messages[-1]["content"] if "toolUse" in block]
    asked = [convert.to_tool_request(event.agent, use) for use in uses if use["toolUseId"] not in results]
    binding.pending = [to_pending_tool(each) for each in asked]
    if asked:
        return
    denied = binding.run.denied
    reason = denied.reason if denied is not None else binding.stop_reason
    if reason:
        event.end_turn = reason
    binding.run.end_step(should_continue=not event.end_turn)


async def after_tool(event: strands_hooks.AfterToolCallEvent[Any]) -> None:
    """Report a call that something else cancelled, so that it has both events too."""
    binding = binding_of(event.agent)
    if binding is None or event.cancel_message is None:
        return
    request = convert.to_tool_request(event.agent, event.tool_use)
    has_decision = request.tool_call_id not in binding.unreported
    decision = binding.decision_for(request, cancelled=event.cancel_message)
    if isinstance(decision, Reject):
        content = binding.record_refusal(request, decision, None if has_decision else event.cancel_message)
        if has_decision:
            event.result = convert.tool_result_event(event.tool_use, content, success=False).tool_result
        return

    async def cancelled(args: Mapping[str, Any]) -> ToolResult:
        return ToolResult(content=event.cancel_message or "", success=False)

    await binding.run.call_tool(request, cancelled, approved=True)


# Calls.


async def _call_tool(binding: StrandsBinding, context: Any, call_next: Next) -> TypedEvent:
    """Pass a tool or sub-agent call through the hooks."""
    if convert.is_agent(context.tool):
        return await _call_agent(binding, context, call_next)
    use, run, own = context.tool_use, binding.run, list[TypedEvent]()
    request = convert.to_tool_request(context.agent, use)
    decision = binding.decision_for(request)
    if isinstance(decision, Reject):
        return convert.tool_result_event(use, binding.record_refusal(request, decision), success=False)
    if decision is not None:
        request = binding.approved_request(request)

    async def work(args: Mapping[str, Any]) -> ToolResult:
        token = running_tool.set(asyncio.get_running_loop())
        try:
            return await _run_tool(context, call_next, args, own)
        finally:
            running_tool.reset(token)

    done = await run.call_tool(request, work, approved=decision is not None)
    if done.asked is not None:
        # Raises, unless this runs in a sub-agent and a person has answered the question in the outer agent's run.
        answer = context.interrupt(convert.INTERRUPT_NAME, reason=done.asked.prompt)
        binding.decisions[request.tool_call_id] = convert.to_decision(request.tool_call_id, answer.response)
        del run.step.asked[request.tool_call_id]
        run.decided([binding.decisions[request.tool_call_id]])
        return await _call_tool(binding, context, call_next)
    if done.error is not None and not own:
        raise done.error  # an interrupt, or a failure of middleware: Strands handles both
    if own and not done.changed:
        return own[-1]
    if own and done.added and isinstance(last := own[-1], ToolResultEvent):
        result = last.tool_result
        return ToolResultEvent({**result, "content": [*result["content"], {"text": done.added}]})
    return convert.tool_result_event(use, done.result.content, success=done.result.success)


async def _run_tool(context: Any, call_next: Next, args: Mapping[str, Any], own: list[TypedEvent]) -> ToolResult:
    """Run the tool itself; all events but the last, which holds the result, are emitted at once."""
    use = context.tool_use
    if args != use["input"]:
        context = context.replace(tool_use={**use, "input": deepcopy(dict(args))})
    async for event in call_next(context):
        if isinstance(event, ToolResultEvent) or "tool_interrupt_event" in event:
            own.append(event)
        else:
            await emit(event)
    last = own[-1]
    if not isinstance(last, ToolResultEvent):
        raise InterruptException(last["tool_interrupt_event"]["interrupts"][0])
    if last.exception is not None:
        raise last.exception
    result = last.tool_result
    return ToolResult(content=convert.text_of(result["content"]), success=result["status"] != "error")


async def _call_agent(binding: StrandsBinding, context: Any, call_next: Next) -> TypedEvent:
    """Run a sub-agent as an operation under its parent's."""
    use, agent, own = context.tool_use, context.tool.agent, list[TypedEvent]()
    attach(agent, models=binding.hooks_model_calls)
    given = use["input"] if isinstance(use["input"], dict) else {"input": str(use["input"])}

    async def work(instruction: str, operation_id: str) -> str:
        async with new_sub_agent_run(binding, agent, operation_id) as run:
            # A sub-agent resumes as a new operation; of the responses only rejections do not belong to its own tools.
            answers = convert.responses_for_sub_agent(binding.answers.given, use["toolUseId"])
            rejected = {call: each for call, each in answers.decisions.items() if isinstance(each, Reject)}
            inner = StrandsBinding(run, agent, binding, answers._replace(decisions=rejected), by_call=True)
            current_binding.set(inner)
            try:
                with hook_compactions(agent):
                    done = await run.lead_run(
                        [Message(role="user", content=instruction)],
                        partial(_run_sub_agent, inner, context, call_next, given, own),
                    )
            finally:
                current_binding.set(binding)
        return done.output

    try:
        done = await binding.run.call_agent(use["name"], str(given.get("input", "")), work)
    except Exception:
        if own:
            return own[-1]
        raise
    if own and not done.changed:
        return own[-1]
    return convert.tool_result_event(use, done.output, success=done.denied is None)


async def _run_sub_agent(
    inner: StrandsBinding,
    context: Any,
    call_next: Next,
    given: Mapping[str, Any],
    own: list[TypedEvent],
    call: AgentCall,
) -> str:
    instruction = "\n\n".join(each.content for each in call.input)
    try:
        result = await _run_tool(context, call_next, {**given, "input": instruction}, own)
    except InterruptException:
        inner.run.pause(inner.pending)
        raise
    if not result.success:
        raise inner.error or RuntimeError(result.content)
    return result.content


def attach(agent: Any, *, models: bool = True, resumes: bool = False) -> None:
    """Add the adapter's callbacks and middleware to an agent, once; `hooked` does so by itself.

    Call it right after creating an agent that gets middleware of its own: the first middleware is the outermost, and
    inner middleware never sees the calls that outer middleware answers.

    Args:
        agent: An agent, or a graph or a swarm with its nodes.
        models: Whether hooks may wrap its model calls; every event of a model then passes through middleware.
        resumes: Whether a paused run is about to be resumed.
    """
    first, last = -math.inf, math.inf
    if not isinstance(agent, Agent):
        if not isinstance(getattr(agent, "nodes", None), dict):
            return  # a remote agent (A2A): the graph around it reports its run
        if agent not in waiting_operations:
            agent.hooks.add_callback(strands_hooks.BeforeNodeCallEvent, before_node, order=last)
            agent.hooks.add_callback(strands_hooks.AfterNodeCallEvent, after_node, order=first)
            waiting_operations[agent] = None
        for node in agent.nodes.values():
            attach(node.executor, models=models)
        return
    if agent not in waiting_operations:
        agent.add_hook(before_model, strands_hooks.BeforeModelCallEvent, order=first)
        agent.add_hook(after_model, strands_hooks.AfterModelCallEvent, order=first)
        agent.add_hook(after_tool, strands_hooks.AfterToolCallEvent, order=first)
        agent.add_hook(after_tools, strands_hooks.AfterToolsEvent, order=last)
        agent.add_middleware(ExecuteToolStage, partial(hook_middleware, _call_tool))
        waiting_operations[agent] = None
    if models and agent not in _with_model_middleware:
        agent.add_middleware(InvokeModelStage, model_middleware)
        _with_model_middleware.add(agent)
    if resumes and agent not in _with_resume_callback:  # each callback costs every run time, and few runs are resumed
        agent.add_hook(before_tools, strands_hooks.BeforeToolsEvent, order=first)
        _with_resume_callback.add(agent)
