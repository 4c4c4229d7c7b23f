"""Run agents of Microsoft Agent Framework as operations of hookline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

from agent_framework import (
    AgentContext,
    AgentMiddleware,
    AgentResponse,
    AgentResponseUpdate,
    MiddlewareTermination,
    ResponseStream,
)
from agent_framework import Message as Theirs

from hookline.adapters._streams import must_hold_stream, stream_values
from hookline.adapters.agent_framework import _conversion as convert
from hookline.adapters.agent_framework._compaction import HookedCompactionStrategy
from hookline.adapters.agent_framework._models import ModelCallMiddleware
from hookline.adapters.agent_framework._run_binding import (
    DRIVES,
    AgentFrameworkBinding,
    Next,
    running_tool,
    starting_sub_agent,
)
from hookline.adapters.agent_framework._tools import ToolCallMiddleware
from hookline.calls import AgentCall, Message
from hookline.errors import RunStopped
from hookline.hooks import AnyHook
from hookline.runtime import AdapterRun

__all__ = ["belongs_to_operation", "calling_run", "run_operation"]

Setting = tuple[MutableMapping[str, Any], str, Any, Any]
"""A mapping, the key and value to set in it, and the value before."""
_ABSENT = object()
EmitUpdate = Callable[[Any], Awaitable[None]]
OUTER_OPERATIONS_KEY = "hookline_outside"
"""Metadata key that counts the operations around a run: one for each `HooklineMiddleware` outside of this one."""


def belongs_to_operation(context: AgentContext) -> bool:
    """Return whether a run has an operation around it, is called by one, or resumes one with a person's decisions."""
    if OUTER_OPERATIONS_KEY in context.metadata or starting_sub_agent.get() is not None or calling_run() is not None:
        return True
    decisions, _, _ = convert.read_decisions(context.messages, convert.OPERATION_KEY)
    return bool(decisions)


def calling_run() -> AdapterRun | None:
    """Return the run whose tool this code belongs to; `None` outside of tools, and if that run has ended."""
    caller = running_tool.get()
    return caller if caller is not None and caller.is_open else None


async def run_operation(
    context: AgentContext, call_next: Next, hooks: Iterable[AnyHook], options: Mapping[str, Any]
) -> None:
    """Run an agent as an operation.

    Args:
        context: The framework's context of the run.
        call_next: Runs the agent.
        hooks: The hooks of the run.
        options: Options of `AdapterRun`.
    """
    outer_operations = context.metadata.get(OUTER_OPERATIONS_KEY, 0)
    operation_key = f"{convert.OPERATION_KEY}_{outer_operations}" if outer_operations else convert.OPERATION_KEY
    decisions, reworded, operation = convert.read_decisions(context.messages, operation_key)
    agent: Any = context.agent
    given = {
        "agent_id": agent.name or agent.id,
        "model": convert.model_name(agent),
        "conversation_id": context.session.session_id if context.session is not None else None,
        "operation_id": operation,
        "parent": calling_run(),
        **options,
    }
    run = AdapterRun(hooks, DRIVES, **given)
    binding = AgentFrameworkBinding(run, context, decisions, reworded, operation_key)
    if context.stream:
        context.result = _stream_operation(binding, call_next)
        return
    context.result = await _run_agent(binding, call_next, None)
    if binding.terminations:
        raise binding.terminations[0]


def _stream_operation(
    binding: AgentFrameworkBinding, call_next: Next
) -> ResponseStream[AgentResponseUpdate, AgentResponse[Any]]:
    final: list[AgentResponse[Any]] = []

    async def run(emit: EmitUpdate) -> None:
        final.append(await _run_agent(binding, call_next, emit))

    return ResponseStream(stream_values(run), finalizer=lambda _: final[0])


async def _run_agent(binding: AgentFrameworkBinding, call_next: Next, emit: EmitUpdate | None) -> AgentResponse[Any]:
    async with binding.run as run:
        settings = _install_middleware(binding)
        token = running_tool.set(None)  # the tool of the caller, if there is one; the agent now runs itself
        try:
            if binding.decisions and binding.resume():
                run.finish("interrupted")
                run.raise_if_stopped()
            if AgentCall not in run.run.intercepted:
                response = await _call_agent(binding, call_next, emit)
                _record_end(binding, response)
            else:
                response = await _call_agent_with_hooks(binding, call_next, emit)
            if run.run.parent is None:  # the model of the run that called it reads how a sub-agent ended
                run.raise_if_stopped()
            return response
        finally:
            running_tool.reset(token)
            _remove_middleware(settings)
    if run.run.parent is None:
        raise RunStopped("The run was interrupted.")
    return AgentResponse(messages=[])


def _install_middleware(binding: AgentFrameworkBinding) -> list[Setting]:
    """Install the outermost middleware for the calls of a run while the run lasts.

    Returns:
        What was set, for `_remove_middleware`.
    """
    context = binding.context
    agent: Any = context.agent
    outer_operations = context.metadata.get(OUTER_OPERATIONS_KEY, 0)
    client = getattr(agent, "client", None)
    strategy = (
        context.compaction_strategy
        or getattr(agent, "compaction_strategy", None)
        or getattr(client, "compaction_strategy", None)
    )
    others = context.client_kwargs.get("middleware")
    ours = [ModelCallMiddleware(binding), ToolCallMiddleware(binding, install_sub_agent_middleware), *(others or [])]
    settings: list[Setting] = [
        (
            context.metadata,
            OUTER_OPERATIONS_KEY,
            outer_operations + 1,
            context.metadata.get(OUTER_OPERATIONS_KEY, _ABSENT),
        ),
        (context.client_kwargs, "middleware", ours, context.client_kwargs.get("middleware", _ABSENT)),
    ]
    if strategy is not None:
        hooked, fields = HookedCompactionStrategy(binding.run, strategy), vars(context)
        settings.append((fields, "compaction_strategy", hooked, fields.get("compaction_strategy", _ABSENT)))
    for mapping, key, value, _ in settings:
        mapping[key] = value
    return settings


def _remove_middleware(settings: list[Setting]) -> None:
    """Undo `_install_middleware`.

    Middleware outside of ours may run the agent again with the same context, whose calls must not reach a run that has
    ended.
    """
    for mapping, key, value, before in settings:
        if mapping.get(key) is not value:
            continue  # something else has changed it meanwhile
        if before is _ABSENT:
            del mapping[key]
        else:
            mapping[key] = before


async def _call_agent(binding: AgentFrameworkBinding, call_next: Next, emit: EmitUpdate | None) -> AgentResponse[Any]:
    """Run the framework's own agent and return its response."""
    context: Any = binding.context
    given, context.result = context.result, None  # a streaming run has put its own stream there
    try:
        await call_next()
    except MiddlewareTermination as error:
        if context.result is not None:
            binding.terminations.append(error)
    result: Any
    result, context.result = context.result, given
    if isinstance(result, ResponseStream):
        try:
            async for update in result:
                if emit is not None:
                    await emit(update)
        except BaseException:
            with suppress(Exception):
                await result.close()  # otherwise its model call would end after the run
            raise
        result = await result.get_final_response()
    return result if result is not None else AgentResponse(messages=[])


async def _call_agent_with_hooks(
    binding: AgentFrameworkBinding, call_next: Next, emit: EmitUpdate | None
) -> AgentResponse[Any]:
    """Run the framework's own agent through the hooks of `AgentCall`."""
    run, context, held = binding.run, binding.context, list[Any]()
    own = AgentResponse[Any](messages=[])

    async def hold(update: Any) -> None:
        held.append(update)

    async def work(call: AgentCall) -> str:
        nonlocal own
        emit_update = hold if emit is not None and must_hold_stream(run, AgentCall) else emit
        if call.input != messages:
            context.messages = convert.to_agent_framework_messages(call.input, known)
            changed.append(context.messages)
        own = await _call_agent(binding, call_next, emit_update)
        return _record_end(binding, own)

    instructions = str(_option(context, "instructions") or "")
    given, changed = context.messages, list[Any]()
    try:
        for _ in range(1 + run.run.agent.max_continues):
            known = [(each, convert.from_agent_framework_message(each, {})) for each in context.messages]
            messages: list[Message] = [ours for _, each in known for ours in each]
            done = await run.lead_run(messages, work, instructions=instructions)
            run.raise_if_stopped()
            if not done.continues:
                break
            said = own.messages if done.ran else [Theirs("assistant", [done.output])]
            earlier = [] if context.session is not None else [*context.messages, *said]
            context.messages = [*earlier, Theirs("user", ["\n\n".join(done.continues)])]
            changed.append(context.messages)
    finally:
        if any(context.messages is each for each in changed):
            context.messages = given  # middleware outside of ours may run the agent again with the original messages
    if done.changed:
        own = convert.replace_output(own, done.output, _option(context, "response_format"))
        held = [AgentResponseUpdate(role="assistant", contents=own.messages[-1].contents)]
    if emit is not None:
        for update in held:
            await emit(update)
    return own


def _option(context: AgentContext, name: str) -> Any:
    """Return an option of the run, or of its agent if the run does not set it."""
    own = (context.options or {}).get(name)
    return own if own is not None else (getattr(context.agent, "default_options", None) or {}).get(name)


def _record_end(binding: AgentFrameworkBinding, response: AgentResponse[Any]) -> str:
    """Record how the agent's run ended.

    Returns:
        The last text of the agent.
    """
    run = binding.run
    requests = response.user_input_requests
    asked = [each for each in requests if each.type == "function_approval_request"] if requests else []
    if asked:
        for each in asked:
            each.additional_properties[binding.operation_key] = run.operation_id
        waiting = convert.to_pending_tools(response, binding.toolsets)
        run.pause([each for each in waiting if each.tool_call_id not in run.step.asked])
        run.end_step(should_continue=False)
    output = response.messages[-1].text if response.messages else ""
    run.run.last_content = output or run.run.last_content  # other middleware may have answered
    return output


class SubAgentMiddleware(AgentMiddleware):
    """Makes each run of a sub-agent an operation under the hooked run that calls it.

    The sub-agent keeps this middleware.
    """

    async def process(self, context: AgentContext, call_next: Next) -> None:
        """Run the sub-agent as an operation, if a hooked run calls it."""
        start = starting_sub_agent.get()
        if start is None or start.agent is not context.agent:
            await call_next()
            return
        starting_sub_agent.set(None)
        await run_operation(context, call_next, (), {"operation_id": start.operation_id, "parent": start.parent})


_sub_agent_middleware = SubAgentMiddleware()


def install_sub_agent_middleware(agent: Any) -> None:
    """Add `SubAgentMiddleware` to an agent, once."""
    if _sub_agent_middleware not in (agent.middleware or ()):
        agent.middleware = [_sub_agent_middleware, *(agent.middleware or ())]
