"""Put the chain of a run, and the bundles that instrument it, around its calls."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any, TypeVar, cast

import anyio.lowlevel
import msgspec

from hookline.calls import AddedContext, Ask, Call, ModelCall, StepCall, background_of
from hookline.dispatcher import compile_queue
from hookline.execution import Observer, announce_chain, announce_execution, refuse_return
from hookline.hooks import AnyHook, Hooks
from hookline.instrumentation import Instrumentation, SegmentInfo
from hookline.interceptors import CompiledInterceptor, Interruptible, Terminal, Traversal, judge_in_shadow
from hookline.runtime._run import Run
from hookline.signals import chain_ran

__all__ = [
    "RunControl",
    "begin_instrumentation",
    "end_instrumentation",
    "instrument",
    "instrument_step",
    "run_through_chain",
    "tell_context",
    "tell_failed_step",
]


async def run_through_chain(run: Run, call: Call, terminal: Terminal, control: RunControl | None = None) -> Traversal:
    """Run a call through the interceptors of a run; callers ask `run.intercepted` first."""
    assert run.chain is not None
    traversal = await run.chain._traverse(
        run.chain._compiled_for(call), call, terminal, control or RunControl(run, run.watch)
    )
    if run.begun:
        _tell_bundles(run, traversal)
    return traversal


def tell_context(run: Run, call: Call, context: Sequence[AddedContext]) -> None:
    """Tell the bundles that instrument a run about texts that hooks have added to a call."""
    for hooks, _ in run.begun:
        for added in context:
            if added.text:
                hooks.context_added(call, added)


def _tell_bundles(run: Run, traversal: Traversal) -> None:
    """Tell the bundles that instrument a run about what hooks have said of a call."""
    if traversal.context:
        tell_context(run, traversal.call, traversal.context)
    for hook_id, feedback in traversal.guides if traversal.denied is None else ():
        for hooks, _ in run.begun:
            hooks.guided(traversal.call, hook_id, feedback)
    if traversal.denied is not None:
        cause = traversal.refusal.__cause__ if traversal.refusal is not None else None
        for hooks, _ in run.begun:
            hooks.refused(traversal.call, traversal.denied, cause=cause, ran=traversal.reached, stop=traversal.stop)
    elif traversal.answered_by is not None and not traversal.reached:
        for hooks, _ in run.begun:
            hooks.answered(traversal.call, traversal.answered_by)


class RunControl(msgspec.Struct, eq=False):
    """The `RunPolicy` of one call of a run.

    Attributes:
        run: The run.
        watch: The run, which says whether it was interrupted; `NEVER_INTERRUPTED` for a call that comes after it.
        pinned: Whether nothing may rewrite the call: it began before, and waited for a person.
        decided: Whether a person has approved the call.
        approved: Whether the approval holds, so that no `Ask` is asked again.
        asked_by: The hook that had the person asked before hooks further inside judged the call; see `WaitingCall`.
        ask: Whether a person must be asked about the final call although no hook said so; see `RunPolicy`.
        suspended: Whether the call goes on in another segment, so that no `after` runs yet.
        asks_again: Whether the model is asked again if a hook returns `Guide`.
    """

    run: Run
    watch: Interruptible
    pinned: bool = False
    decided: bool = False
    approved: bool = False
    asked_by: tuple[str, int] | None = None
    ask: Callable[[Any], Awaitable[Ask | None] | None] | None = None
    suspended: bool = False
    asks_again: bool = True

    @property
    def resumed(self) -> bool:
        """Whether the call began in an earlier segment."""
        return self.pinned and not self.decided

    @property
    def adds_context(self) -> frozenset[type[Call]]:
        """The calls to which hooks of this run can add text for the model."""
        return self.run.adds_context

    @property
    def guides(self) -> bool:
        """Whether hooks of this run can have the model asked again."""
        return self.run.guides

    @property
    def sender(self) -> object:
        """The dispatcher of the run, which sends the records."""
        return self.run.dispatcher

    async def stop(self) -> None:
        """Raise the cancellation of a run that was interrupted."""
        self.run.cancel()
        await anyio.lowlevel.checkpoint()

    def change(self, hook_id: str) -> None:
        """Note that a control has changed a call which a person has approved, so that the person is asked again."""

        async def ask_again(call: object) -> Ask:
            return Ask(f"Hook {hook_id!r} has changed the arguments that were approved. May the call run so?")

        self.approved, self.ask = False, ask_again

    def background(self, hook: CompiledInterceptor, args: tuple[Any, ...]) -> None:
        """Queue a hook that is not waited for, or a shadow hook, in the lane of its bundle."""
        shadow, call = hook.alone is not None, args[0]
        observer = Observer(
            id=hook.id,
            handler=_run_shadow_hook if shadow else _run_background_hook,
            is_async=True,
            timeout=math.inf if shadow else hook.timeout,  # its own chain stops it
            announces=shadow,
        )
        item = _QueuedHook(
            hook=hook,
            args=args,
            operation_id=self.run.operation_id,
            hook_type=hook.point,
            tenant_id=call.tenant_id,
            step_index=getattr(call, "step_index", None),
            tool_call_id=getattr(call, "tool_call_id", None),
            agent_id=call.agent_id,
            toolset=getattr(call, "toolset", None),
            tool_name=getattr(call, "tool_name", None),
            callee_id=getattr(call, "callee_id", None),
            sender=self.sender,
        )
        compile_queue(hook.lane, (observer,))(cast(Any, item), self.run.dispatcher)


class _QueuedHook(msgspec.Struct, frozen=True, kw_only=True):
    """A hook in a lane; looks like an event to it."""

    hook: CompiledInterceptor
    args: tuple[Any, ...]
    operation_id: str
    hook_type: str
    tenant_id: str
    step_index: int | None
    tool_call_id: str | None
    agent_id: str
    toolset: str | None
    tool_name: str | None
    callee_id: str | None
    sender: object


async def _run_shadow_hook(item: _QueuedHook) -> None:
    began = perf_counter()
    execution = await judge_in_shadow(item.hook, *item.args)
    announce_execution(execution, item.sender)
    if chain_ran.receivers:  # a record of its own, since that of the call is made without waiting for it
        announce_chain(item.args[0], [execution], None, began, item.sender)


async def _run_background_hook(item: _QueuedHook) -> None:
    background_of.set(item.args[0].metadata)
    value = item.hook.handler(*item.args)
    if item.hook.is_async:
        value = await value
    refuse_return(value)


R = TypeVar("R")


def begin_instrumentation(run: Run) -> list[AnyHook]:
    """Let the bundles that instrument a run begin its segment.

    Returns:
        The hooks of the run, with the bundles that observe this segment in place of those that were given.
    """
    segment = describe_segment(run)
    observing: dict[AnyHook, Hooks | None] = {}
    for hooks in dict.fromkeys(entry for entry in run.hooks if isinstance(entry, Instrumentation)):
        begun, observers = hooks.begin(segment)
        run.begun.append((hooks, begun))
        observing[hooks] = observers
        if observers is not None:
            for call in hooks.encloses:
                run.enclosing[call] = (*run.enclosing.get(call, ()), hooks)
        traceparent = hooks.carried(begun)
        if traceparent is not None and run.traceparents is segment.traceparents:
            run.traceparents = (*segment.traceparents[:1], traceparent)
    for hooks, begun in run.begun:
        hooks.attach(begun)
    if run.text is not None:
        run.text.bundles = run.enclosing.get(ModelCall, ())
    # Taken out, as one that the agent and the caller have both given would count everything twice.
    registered = [observing.pop(entry, None) if isinstance(entry, Instrumentation) else entry for entry in run.hooks]
    return [entry for entry in registered if entry is not None]


def end_instrumentation(run: Run) -> None:
    """Let the bundles end a segment."""
    for hooks, begun in reversed(run.begun):
        hooks.end(begun)


def instrument(run: Run, call: Call, work: Awaitable[R]) -> Awaitable[R]:
    """Return the work for a call with the instrumentation around it."""
    bundles = run.enclosing[call.__class__]
    return _by_one(bundles[0], call, work) if len(bundles) == 1 else _by_each(bundles, call, work)


def instrument_step(run: Run, step_index: int, work: Awaitable[R]) -> Awaitable[R]:
    """Return the work of a step with the instrumentation around it."""
    return instrument(run, StepCall(step_index=step_index, **run.ids), work)


def tell_failed_step(run: Run, step_index: int, error: BaseException) -> None:
    """Tell the instrumentation what ended a step of another framework, which it could not stand around."""
    call = StepCall(step_index=step_index, **run.ids)
    for hooks in run.enclosing.get(StepCall, ()):
        hooks.leave(hooks.enter(call), None, error)


async def _by_one(hooks: Instrumentation, call: Call, work: Awaitable[R]) -> R:
    entered = hooks.enter(call)
    try:
        result = await work
    except BaseException as error:
        hooks.leave(entered, None, error)
        raise
    hooks.leave(entered, result, None)
    return result


async def _by_each(bundles: Sequence[Instrumentation], call: Call, work: Awaitable[R]) -> R:
    inside = [(hooks, hooks.enter(call)) for hooks in bundles]
    inside.reverse()
    try:
        result = await work
    except BaseException as error:
        for hooks, entered in inside:
            hooks.leave(entered, None, error)
        raise
    for hooks, entered in inside:
        hooks.leave(entered, result, None)
    return result


def describe_segment(run: Run) -> SegmentInfo:
    """Return what the instrumentation may know of a segment when it begins."""
    resumed = run.version is not None and (bool(run.pending) or run.journal.recovered)
    return SegmentInfo(
        **run.ids,
        conversation_id=run.conversation_id,
        model=read_text(run.agent.model, "name"),
        provider=read_text(run.agent.model, "provider"),
        resumed=resumed,
        traceparents=run.traceparents,
        waiting_since_unix_nano=run.waiting_since_unix_nano,
        llm_calls=run.llm_calls,
        tool_calls=run.tool_calls,
        input_tokens=run.usage.input_tokens,
        output_tokens=run.usage.output_tokens,
        input=() if resumed else run.messages[run.first_input() :],
        instructions=run.instructions,
        tools=run.specs,
        dispatcher=run.dispatcher,
    )


def read_text(model: object, name: str) -> str:
    """Return an attribute of a model as text; empty if the model cannot say."""
    try:
        return str(getattr(model, name, ""))
    except Exception:
        return ""
