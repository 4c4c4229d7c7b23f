"""The callbacks and the middleware that an agent of Strands is given: its steps, model calls and tool calls."""

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

from hookline.adapters._stepping import GeneratorBridge, emit
from hookline.adapters.strands import _words as words
from hookline.adapters.strands._compaction import lead_compactions
from hookline.adapters.strands._models import after_model, model_stage, relayed
from hookline.adapters.strands._seat import Seat, present, seat_of, sub_run, waiting
from hookline.adapters.strands._words import text_of
from hookline.calls import AgentCall, Message, ToolResult
from hookline.events import PendingTool
from hookline.runtime import Reject

__all__ = ["after_node", "attach", "before_node"]


async def before_node(event: BeforeNodeCallEvent) -> None:
    """A node is about to run; what it is asked is the task of the whole."""
    source: Any = event.source
    seat = seat_of(source)
    if seat is None:
        return
    agent = source.nodes[event.node_id].executor

    async def work(instruction: str, operation_id: str) -> str:
        # Not in an `async with`: Strands ends a node in another callback than it began in.
        run, failed = sub_run(seat, agent, operation_id), None
        await run.open()
        present.set(Seat(run, agent, seat))
        try:
            return str(await emit(None))
        except BaseException as error:
            failed = error
            raise
        finally:
            present.set(seat)
            await run.close(failed)

    task = source.state.task
    instruction = task if isinstance(task, str) else text_of(task)
    relay = GeneratorBridge(seat.run.call_agent(event.node_id, instruction, work))
    async for _ in relay:
        seat.nodes[event.node_id] = relay
        return
    event.cancel_node = relay.result.output or True


async def after_node(event: AfterNodeCallEvent) -> None:
    """A node has run."""
    seat = seat_of(event.source)
    relay = seat.nodes.pop(event.node_id, None) if seat is not None else None
    if relay is not None:
        source: Any = event.source
        found = source.state.results.get(event.node_id)  # none if it was cancelled, or took too long
        outcome = found.result if found is not None else asyncio.CancelledError()
        await relay.end(outcome if isinstance(outcome, BaseException) else str(outcome).strip())


Next = Callable[[Any], AsyncGenerator[Any, None]]
_resuming: WeakSet[Any] = WeakSet()
_led: WeakSet[Any] = WeakSet()
"""The agents that have the middleware of model calls."""


# Steps.


def before_model(event: strands_hooks.BeforeModelCallEvent) -> None:
    """A step begins; another attempt at the same model call belongs to the same step."""
    seat = seat_of(event.agent)
    if seat is not None:
        if not seat.asking:
            seat.run.begin_step()
            seat.asking = seat.told = True
        if not seat.leads_models:
            seat.run.begin_model_call()
        seat.tokens = event.projected_input_tokens or 0


def before_tools(event: strands_hooks.BeforeToolsEvent) -> None:
    """A run that waited goes on with its tool calls, in a step of its own."""
    seat = seat_of(event.agent)
    if seat is None or seat.told:
        return
    seat.told = True
    seat.run.begin_step()
    seat.run.step.type = "call_tool"
    decided = list(seat.decisions.values())
    seat.run.decided(decided)
    stops = [each for each in decided if isinstance(each, Reject) and not each.and_continue]
    if stops:
        event.cancel = seat.stop = words.rejection(stops[0])
        seat.run.finish("interrupted")


def after_tools(event: strands_hooks.AfterToolsEvent) -> None:
    """The step ends, unless calls of it wait for a person."""
    seat = seat_of(event.agent)
    if seat is None:
        return
    results = {block["toolResult"]["toolUseId"] for block in event.message["content"]}
    uses = [block["toolUse"] for block in event.agent.messages[-1]["content"] if "toolUse" in block]
    asked = [words.calling(event.agent, use) for use in uses if use["toolUseId"] not in results]
    seat.pending = [
        PendingTool(
            toolset=each.toolset,
            tool_name=each.tool_name,
            tool_call_id=each.tool_call_id,
            args=each.args if isinstance(each.args, dict) else {},
        )
        for each in asked
    ]
    if asked:
        return
    denied = seat.run.denied
    reason = denied.reason if denied is not None else seat.stop
    if reason:
        event.end_turn = reason
    seat.run.end_step(should_continue=not event.end_turn)


async def after_tool(event: strands_hooks.AfterToolCallEvent[Any]) -> None:
    """A call that somebody else has cancelled has its pair of events too."""
    seat = seat_of(event.agent)
    if seat is None or event.cancel_message is None:
        return
    calling, judged = words.calling(event.agent, event.tool_use), event.tool_use["toolUseId"] not in seat.untold
    decision = seat.decide(calling, refused=event.cancel_message)
    if isinstance(decision, Reject):
        told = seat.refused(calling, decision, None if judged else event.cancel_message)
        if judged:
            event.result = words.tool_result(event.tool_use, told, success=False).tool_result
        return

    async def cancelled(args: Mapping[str, Any]) -> ToolResult:
        return ToolResult(content=event.cancel_message or "", success=False)

    await seat.run.call_tool(calling, cancelled, approved=True)


# Calls.


async def _call(seat: Seat, context: Any, call_next: Next) -> TypedEvent:
    """A call of a tool or of a sub-agent."""
    if words.is_agent(context.tool):
        return await _call_agent(seat, context, call_next)
    use, run, own = context.tool_use, seat.run, list[TypedEvent]()
    calling = words.calling(context.agent, use)
    decision = seat.decide(calling)
    if isinstance(decision, Reject):
        return words.tool_result(use, seat.refused(calling, decision), success=False)
    if decision is not None:
        calling = seat.approved(calling)

    async def work(args: Mapping[str, Any]) -> ToolResult:
        return await _run(context, call_next, args, own)

    done = await run.call_tool(calling, work, approved=decision is not None)
    if done.asked is not None:
        # Raises, unless a person has answered the sub-agent's question in a run of the agent around it.
        answer = context.interrupt(words.ASK, reason=done.asked.prompt)
        seat.decisions[calling.tool_call_id] = words.decision(calling.tool_call_id, answer.response)
        del run.step.asked[calling.tool_call_id]
        run.decided([seat.decisions[calling.tool_call_id]])
        return await _call(seat, context, call_next)
    if done.error is not None and not own:
        raise done.error  # an interrupt, or middleware has failed: Strands says what becomes of it
    if own and not done.changed:
        return own[-1]
    return words.tool_result(use, done.result.content, success=done.result.success)


async def _run(context: Any, call_next: Next, args: Mapping[str, Any], own: list[TypedEvent]) -> ToolResult:
    """The tool itself; its events go on as they come, but the last, which says what it came to."""
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
    return ToolResult(content=words.text_of(result["content"]), success=result["status"] != "error")


async def _call_agent(seat: Seat, context: Any, call_next: Next) -> TypedEvent:
    """A sub-agent, which has the parent's run around its own."""
    use, agent, own = context.tool_use, context.tool.agent, list[TypedEvent]()
    attach(agent, models=seat.leads_models)
    given = use["input"] if isinstance(use["input"], dict) else {"input": str(use["input"])}

    async def work(instruction: str, operation_id: str) -> str:
        async with sub_run(seat, agent, operation_id) as run:
            # It goes on as a new operation, in which only rejections are not the answers of its own tools.
            answers = words.answers_inside(seat.answers.given, use["toolUseId"])
            rejected = {call: each for call, each in answers.decisions.items() if isinstance(each, Reject)}
            inner = Seat(run, agent, seat, answers._replace(decisions=rejected), told=True)
            present.set(inner)
            try:
                with lead_compactions(agent):
                    done = await run.lead_run(
                        [Message(role="user", content=instruction)],
                        partial(_sub_agent, inner, context, call_next, given, own),
                    )
            finally:
                present.set(seat)
        return done.output

    try:
        done = await seat.run.call_agent(use["name"], str(given.get("input", "")), work)
    except Exception:
        if own:
            return own[-1]
        raise
    if own and not done.changed:
        return own[-1]
    return words.tool_result(use, done.output, success=done.denied is None)


async def _sub_agent(
    inner: Seat, context: Any, call_next: Next, given: Mapping[str, Any], own: list[TypedEvent], call: AgentCall
) -> str:
    instruction = "\n\n".join(each.content for each in call.input)
    try:
        result = await _run(context, call_next, {**given, "input": instruction}, own)
    except InterruptException:
        inner.run.pause(inner.pending)
        raise
    if not result.success:
        raise inner.error or RuntimeError(result.content)
    return result.content


def attach(agent: Any, *, models: bool = True, resumes: bool = False) -> None:
    """Give an agent the adapter's callbacks and middleware, once; `hooked` does so by itself.

    Call it right after making an agent that gets middleware of its own: the first stands outside, and what stands
    further inside never sees the calls that others answer.

    Args:
        agent: An agent, or a graph or a swarm with its nodes.
        models: Whether hooks may stand around its model calls; each event of a model passes through that middleware.
        resumes: Whether a run of it goes on that has waited for a person.
    """
    first, last = -math.inf, math.inf
    if not isinstance(agent, Agent):
        if not isinstance(getattr(agent, "nodes", None), dict):
            return  # an agent elsewhere (A2A): the graph around it tells of its run
        if agent not in waiting:
            agent.hooks.add_callback(strands_hooks.BeforeNodeCallEvent, before_node, order=last)
            agent.hooks.add_callback(strands_hooks.AfterNodeCallEvent, after_node, order=first)
            waiting[agent] = None
        for node in agent.nodes.values():
            attach(node.executor, models=models)
        return
    if agent not in waiting:
        agent.add_hook(before_model, strands_hooks.BeforeModelCallEvent, order=first)
        agent.add_hook(after_model, strands_hooks.AfterModelCallEvent, order=first)
        agent.add_hook(after_tool, strands_hooks.AfterToolCallEvent, order=first)
        agent.add_hook(after_tools, strands_hooks.AfterToolsEvent, order=last)
        agent.add_middleware(ExecuteToolStage, partial(relayed, _call))
        waiting[agent] = None
    if models and agent not in _led:
        agent.add_middleware(InvokeModelStage, model_stage)
        _led.add(agent)
    if resumes and agent not in _resuming:  # every callback costs each run something, and few runs are resumed
        agent.add_hook(before_tools, strands_hooks.BeforeToolsEvent, order=first)
        _resuming.add(agent)
