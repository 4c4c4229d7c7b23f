"""Hooks in Google's Agent Development Kit, per run: `hooked(runner, hooks=[...]).run_async(...)`."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from contextvars import copy_context
from typing import Any, cast

from hookline.adapters._attaching import check_hooked, decisions_by_call
from hookline.adapters._conversion import split_input
from hookline.calls import AgentCall, Message
from hookline.errors import HookUsageError, MissingExtraError
from hookline.execution import GeneratorBridge, emit
from hookline.hooks import AnyHook
from hookline.runtime import AdapterRun, AgentDone, Approve, Reject

try:
    from google.adk.agents.llm_agent import LlmAgent
    from google.adk.apps.base_events_summarizer import BaseEventsSummarizer
    from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
    from google.adk.events.event import Event
    from google.adk.events.event_actions import EventActions, EventCompaction
    from google.adk.plugins.plugin_manager import PluginManager
    from google.adk.runners import Runner
    from google.genai import types

    from hookline.adapters.google_adk import _conversion as convert
    from hookline.adapters.google_adk._models import wrap_models
    from hookline.adapters.google_adk._plugin import (
        DRIVES,
        OPERATION_KEY,
        AdkBinding,
        HookPlugin,
        current_binding,
        current_call,
    )
except ImportError as error:
    raise MissingExtraError("google-adk", "The adapter of Google ADK") from error

__all__ = ["DRIVES", "HookedRunner", "answers", "hooked"]

EmitEvent = Callable[[Event], Awaitable[Any]]

PLUGIN = HookPlugin()
"""The plugin of every hooked runner; what belongs to one run is in a context variable."""


def hooked(runner: Runner, hooks: Iterable[AnyHook] = (), **options: Any) -> HookedRunner:
    """Return a copy of a runner whose every run is an operation with these hooks; the given runner is not changed.

    Use `run_async`, `run` and `run_debug` as before. A session that waits for a person resumes the operation that
    paused.

    Args:
        runner: The runner. The plugins of its app run after the hooks. A runner that `hooked` returned keeps its hooks
            and gets these as well.
        hooks: The hooks of each run.
        options: Options of each run: `operation_id`, `user_id` (the session's unless given), `tenant_id`, `tags`,
            `dispatcher`, `store`, `drain_timeout`, `best_effort`, `allow_missing_hooks`.

    Raises:
        UnsupportedHookError: If a hook would never be called.
        HookDefinitionError: If a hook is invalid.
        HookUsageError: If an option is unknown.
    """
    also = ("conversation_id",)
    batch = check_hooked(hooks, DRIVES, options, also=also)
    _wrap_run_async()
    wrap_models()
    if isinstance(runner, HookedRunner):
        return HookedRunner(runner._given, [*runner._hooks, *batch], {**runner._attach, **options})
    return HookedRunner(runner, batch, options)


@functools.cache
def _wrap_run_async() -> None:
    """Wrap `Runner.run_async`, so that a runner that a tool of a hooked run starts inherits its hooks.

    It happens once per process. ADK has no plugins of all runners, and a policy that sub-agents inherit would not judge
    an agent that a tool simply runs. Outside of the tools of hooked runs it only calls the method.
    """
    own_run_async = Runner.run_async

    @functools.wraps(own_run_async)
    def run_async(self: Runner, **invocation: Any) -> Any:
        caller = current_binding.get()
        if caller is None or current_call.get() is None or PLUGIN in self.plugin_manager.plugins:
            return own_run_async(self, **invocation)
        # The session of the sub-agent may have any user; it runs for that of its caller.
        return HookedRunner(self, (), {"user_id": caller.run.run.user_id}).run_async(**invocation)

    cast(Any, Runner).run_async = run_async


class HookedRunner(Runner):
    """A copy of a `Runner` of Google ADK whose runs have hooks; created by `hooked`."""

    def __init__(self, runner: Runner, hooks: Sequence[AnyHook], attach: dict[str, Any]) -> None:
        inner: Any = object.__new__(type(runner))  # `copy.copy` takes several times as long
        vars(inner).update(vars(runner))
        inner.plugin_manager = PluginManager([PLUGIN, *runner.plugin_manager.plugins])
        compaction = runner.app.events_compaction_config
        if compaction is not None:
            summarizer = compaction.summarizer
            if summarizer is None and isinstance(runner.agent, LlmAgent):
                summarizer = LlmEventSummarizer(llm=runner.agent.canonical_model)
            if summarizer is not None:
                compaction = compaction.model_copy(update={"summarizer": _Summarizer(summarizer)})
                inner.app = runner.app.model_copy(update={"events_compaction_config": compaction})
        self.__dict__.update(vars(inner))
        self._given, self._inner, self._hooks, self._attach = runner, inner, hooks, attach

    def __repr__(self) -> str:
        return f"HookedRunner({self.app_name!r}, hooks={list(self._hooks)!r})"

    async def run_async(self, **invocation: Any) -> AsyncGenerator[Event, None]:
        """Run the agent with hooks; parameters and events are those of `Runner.run_async`."""
        bridge = GeneratorBridge(self._run_operation(invocation), copy_context())
        async for event in bridge:
            try:
                yield event
            except BaseException:  # the consumer closed the stream, or raised into it
                with suppress(asyncio.CancelledError, StopAsyncIteration):
                    await bridge.athrow(asyncio.CancelledError())
                bridge.work.close()
                raise

    def run_live(self, *given: Any, **invocation: Any) -> Any:
        """Refuse to run the agent in live mode, in which a policy would not judge its calls.

        Raises:
            HookUsageError: Always.
        """
        raise HookUsageError(
            "A live session of Google ADK has no steps that hooks could judge, so a runner with hooks does not start "
            "one. Use `run_async`, or run the session without hooks."
        )

    async def resume(
        self, events: Iterable[Event], decisions: Iterable[Approve | Reject], **invocation: Any
    ) -> AsyncGenerator[Event, None]:
        """Continue a run that waits for a person, as the same operation; yields what `run_async` does.

        Args:
            events: The events of the paused run.
            decisions: The decisions, each with the id of its tool call.
            invocation: Other arguments of `run_async`: the `user_id` and the `session_id` of the paused run.

        Raises:
            RunStopped: If a `Reject` without `and_continue` ends the run.
            HookUsageError: If a decision is about a call that does not wait.
        """
        async with aclosing(self.run_async(new_message=answers(events, decisions), **invocation)) as found:
            async for event in found:
                yield event

    async def _run_operation(self, invocation: dict[str, Any]) -> None:
        message, outer, aborted = invocation.get("new_message"), current_binding.get(), invocation.get("abort_signal")
        operation_id, decisions = await self._read_decisions(invocation)
        given = {"user_id": invocation["user_id"], "conversation_id": invocation["session_id"], **self._attach}
        if operation_id is not None:
            given["operation_id"] = operation_id
        model = convert.model_identity(self.agent)
        parent = outer.run if outer is not None else None
        run = AdapterRun(self._hooks, DRIVES, agent_id=self.agent.name, parent=parent, **model, **given)
        await run.open(_prompt(message) if not decisions else ())
        binding, failure = AdkBinding(run, self.agent), None
        current_binding.set(binding)
        run.run.scope = abort = cast(Any, _Abort(aborted or asyncio.Event()))
        invocation = {**invocation, "abort_signal": abort.signal}
        try:
            stops = self._report_decisions(binding, decisions)
            if stops:
                await self._run_agent(binding, invocation, emit)
            for _ in range(0 if stops else 1 + run.run.agent.max_continues):
                binding.finished, asked = False, {**invocation, "new_message": message}
                if AgentCall not in run.run.intercepted:
                    await self._run_agent(binding, asked, emit)
                    break
                done = await self._run_with_hooks(binding, asked, pinned=bool(decisions))
                if not done.continues:
                    break
                message = convert.text_content("user", "\n\n".join(done.continues))
        except BaseException as error:
            failure = error
            for call in list(binding.open_calls):
                await call.end(error=asyncio.CancelledError())
            raise
        finally:
            if abort.signal.is_set():
                run.finish("interrupted")
            await run.close(failure)
        run.raise_if_stopped()

    async def _run_with_hooks(self, binding: AdkBinding, invocation: dict[str, Any], *, pinned: bool) -> AgentDone:
        """Run one round of the agent through the hooks of `AgentCall`."""
        message, held = invocation.get("new_message"), list[Event]()
        prompt = _prompt(message) if not pinned else []

        async def hold(event: Event) -> None:
            # Hooks may change the final response, so neither it nor parts of it are emitted before they have run.
            if event.is_final_response():
                held.append(event)
            elif not event.partial:
                while held:
                    await emit(held.pop(0))
                await emit(event)

        async def work(call: AgentCall) -> str:
            binding.instructions = call.instructions
            asked = invocation
            own, added = split_input(call.input)
            if own != prompt:
                text = "\n\n".join(each.content for each in own)
                asked = {**invocation, "new_message": convert.text_content("user", text)}
            if added:
                asked = {**asked, "new_message": convert.add_text(asked.get("new_message"), added)}
            return await self._run_agent(binding, asked, hold)

        done = await binding.run.lead_run(prompt, work)
        if done.denied is not None:
            await emit(Event(author=self.agent.name, error_code="DENIED", error_message=done.denied.reason))
        elif not done.ran:
            binding.answer = convert.text_content("model", done.output)
            await self._run_agent(binding, invocation, emit)
        else:
            last = held.pop() if held and done.changed else None
            for event in held:
                await emit(event)
            if last is not None:
                await emit(last.model_copy(update={"content": convert.text_content("model", done.output)}))
        return done

    async def _run_agent(self, binding: AdkBinding, invocation: dict[str, Any], emit_event: EmitEvent) -> str:
        """Run the framework's own agent and return its last text."""
        run, last = binding.run.run, None
        async for event in self._inner.run_async(**invocation):
            last = event if event.content is not None and not event.partial else last
            await emit_event(event)
        run.last_content = (convert.text_of(last.content) if last is not None else "") or run.last_content
        await binding.settle_model_call()
        for call in list(binding.open_calls):
            await call.end()
        return run.last_content

    async def _read_decisions(self, invocation: dict[str, Any]) -> tuple[str | None, list[Approve | Reject]]:
        """Return the operation that a message resumes, and the decisions in the message."""
        answers = convert.read_confirmations(invocation.get("new_message"))
        if not answers:
            return None, []
        session = await self.session_service.get_session(
            app_name=self.app_name, user_id=invocation["user_id"], session_id=invocation["session_id"]
        )
        operation_id, found = None, list[Approve | Reject]()
        for event in session.events if session is not None else ():
            for call in event.get_function_calls():
                if call.id in answers:
                    operation_id = (event.custom_metadata or {}).get(OPERATION_KEY, operation_id)
                    original = (call.args or {})["originalFunctionCall"]["id"]
                    found.append(convert.to_decision(original, answers[call.id]))
        return operation_id, found

    def _report_decisions(self, binding: AdkBinding, decisions: Sequence[Approve | Reject]) -> bool:
        """Report a person's decisions to hooks; return whether one of them stops the run."""
        if not decisions:
            return False
        binding.run.begin_step()
        binding.run.decided(decisions)
        refusal = next((each for each in decisions if isinstance(each, Reject) and not each.and_continue), None)
        if refusal is None:
            binding.run.step.type = "call_tool"
            return False
        binding.run.finish("interrupted")
        binding.answer = convert.text_content("model", "A person stopped the run.")
        return True


def answers(events: Iterable[Event], decisions: Iterable[Approve | Reject]) -> types.Content:
    """Convert a person's decisions into the message that resumes a paused run, in the same session.

    Args:
        events: The events of the paused run.
        decisions: The decisions. Unlike in ADK, a `Reject` without `and_continue` ends the run.

    Raises:
        HookUsageError: If a decision is about a call that does not wait.
    """
    waiting = {call_id: asked for event in events for call_id, asked in convert.calls_to_confirm(event).items()}
    decided = decisions_by_call(decisions, waiting)
    return types.Content(
        role="user", parts=[convert.to_confirmation(waiting[call_id], each) for call_id, each in decided.items()]
    )


class _Abort:
    """Replaces the cancel scope of a run: cancelling it aborts the framework's run."""

    # A real scope would stay open in the caller's task between two events of the stream.
    def __init__(self, signal: asyncio.Event) -> None:
        self.signal, self.cancel_called = signal, False

    def cancel(self, reason: str | None = None) -> None:
        self.cancel_called = True
        self.signal.set()


def _prompt(message: Any) -> list[Message]:
    return [Message(role="user", content=convert.text_of(message))] if message is not None else []


class _Summarizer(BaseEventsSummarizer):
    """Summarizes as the inner summarizer does, within the hooks of the present run."""

    def __init__(self, inner: BaseEventsSummarizer) -> None:
        self._inner = inner

    async def maybe_summarize_events(self, *, events: list[Event]) -> Event | None:
        binding = current_binding.get()
        if binding is None or not events:
            return await self._inner.maybe_summarize_events(events=events)
        binding.begin_step()
        messages = [
            each for event in events if event.content is not None for each in convert.from_content(event.content)
        ]
        made: list[Event] = []
        raised: list[Exception] = []

        async def summarize(_: list[Message]) -> str:
            try:
                event = await self._inner.maybe_summarize_events(events=events)
            except Exception as error:
                raised.append(error)
                raise
            if event is None or event.actions.compaction is None:
                raise ValueError("The summarizer gave no summary.")
            made.append(event)
            return convert.text_of(event.actions.compaction.compacted_content)

        summary = await binding.run.compact(messages, binding.run.run.last_input_tokens, summarize)
        if raised and summary is None:
            raise raised[0]
        if summary is None:
            return None
        compaction = EventCompaction(
            start_timestamp=events[0].timestamp,
            end_timestamp=events[-1].timestamp,
            compacted_content=convert.text_content("model", summary),
        )
        fresh = Event(author="user", actions=EventActions(compaction=compaction), invocation_id=Event.new_id())
        if not made:
            return fresh
        own = made[0].actions.compaction
        same = own is not None and convert.text_of(own.compacted_content) == summary
        return made[0] if same else made[0].model_copy(update={"actions": fresh.actions})
