"""Hooks in Google's Agent Development Kit, per run: `hooked(runner, hooks=[...]).run_async(...)`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Any, cast

from hookline.adapters._stepping import GeneratorBridge, emit
from hookline.calls import AgentCall, Message
from hookline.errors import MissingExtraError
from hookline.hooks import AnyHook, hook_batch
from hookline.runtime import AdapterRun, AgentDone, Approve, Reject, check_driven

try:
    from google.adk.agents.llm_agent import LlmAgent
    from google.adk.apps.base_events_summarizer import BaseEventsSummarizer
    from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
    from google.adk.events.event import Event
    from google.adk.events.event_actions import EventActions, EventCompaction
    from google.adk.plugins.plugin_manager import PluginManager
    from google.adk.runners import Runner

    from hookline.adapters.google_adk import _words as words
    from hookline.adapters.google_adk._plugin import DRIVES, OPERATION, Place, Plugin, here
except ImportError as error:
    raise MissingExtraError("google-adk", "The adapter of Google ADK") from error

__all__ = ["DRIVES", "hooked"]

Give = Callable[[Event], Awaitable[Any]]

PLUGIN = Plugin()
"""The seam of every runner: what belongs to a run is in a context variable."""

MAX_CONTINUES = 3
"""How often hooks may ask for one more round after the agent is done, as in a run of our own."""


def hooked(runner: Runner, *, hooks: Iterable[AnyHook], **attach: Any) -> Runner:
    """A runner like this one, each of whose runs is an operation with these hooks; the given one stays as it is.

    Use its `run_async`, `run` and `run_debug` as ever. A session that waits for a person goes on as the operation that
    paused.

    Args:
        runner: The runner. The plugins of its app come after the hooks.
        hooks: The hooks of each run.
        attach: What else a run takes: `operation_id`, `user_id` (the session's unless given), `tenant_id`,
            `dispatcher`, `store`, `drain_timeout`, `best_effort`, `allow_missing_hooks`.

    Raises:
        UnsupportedHookError: If a hook would never be called.
        HookDefinitionError: If a hook cannot work.
    """
    hooks = hook_batch(hooks)
    if not attach:
        check_driven(hooks, DRIVES, best_effort=False)
    elif not attach.get("best_effort"):
        AdapterRun(hooks, DRIVES, **attach)  # refuses what no run could take
    return _HookedRunner(runner, hooks, attach)


class _HookedRunner(Runner):
    """A runner whose runs are operations."""

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
        self._inner, self._hooks, self._attach = inner, hooks, attach

    async def run_async(self, **invocation: Any) -> AsyncGenerator[Event, None]:
        """Run the agent as an operation; takes and yields what `Runner.run_async` does."""
        bridge = GeneratorBridge(self._operate(invocation), copy_context())
        async for event in bridge:
            try:
                yield event
            except BaseException:  # the consumer closed the stream, or raised into it
                with suppress(asyncio.CancelledError, StopAsyncIteration):
                    await bridge.athrow(asyncio.CancelledError())
                bridge.work.close()
                raise

    async def _operate(self, invocation: dict[str, Any]) -> None:
        message, above, aborted = invocation.get("new_message"), here.get(), invocation.get("abort_signal")
        operation_id, decisions = await self._decided(invocation)
        given = {"user_id": invocation["user_id"], "conversation_id": invocation["session_id"], **self._attach}
        if operation_id is not None:
            given["operation_id"] = operation_id
        named = words.model_of(self.agent)
        parent = above.run if above is not None else None
        run = AdapterRun(self._hooks, DRIVES, agent_id=self.agent.name, parent=parent, **named, **given)
        await run.open(_prompt(message) if not decisions else ())
        place, failure = Place(run, self.agent), None
        here.set(place)
        run.run.scope = abort = cast(Any, _Abort(aborted or asyncio.Event()))
        invocation = {**invocation, "abort_signal": abort.signal}
        try:
            if self._stopped(place, decisions):
                await self._play(place, invocation, emit)
                return
            for _ in range(1 + MAX_CONTINUES):
                place.over, asked = False, {**invocation, "new_message": message}
                if AgentCall not in run.run.intercepted:
                    await self._play(place, asked, emit)
                    break
                done = await self._lead(place, asked, pinned=bool(decisions))
                if not done.continues:
                    break
                message = words.content("user", "\n\n".join(done.continues))
        except BaseException as error:
            failure = error
            for between in list(place.under_way):
                await between.end(error=asyncio.CancelledError())
            raise
        finally:
            if abort.signal.is_set():
                run.finish("interrupted")
            await run.close(failure)

    async def _lead(self, place: Place, invocation: dict[str, Any], *, pinned: bool) -> AgentDone:
        """One round of the agent, led through the hooks of `AgentCall`."""
        message, held = invocation.get("new_message"), list[Event]()
        prompt = _prompt(message) if not pinned else []

        async def hold(event: Event) -> None:
            # Hooks judge what the agent says at last, so nobody is given that, nor parts of it, before they have.
            if event.is_final_response():
                held.append(event)
            elif not event.partial:
                while held:
                    await emit(held.pop(0))
                await emit(event)

        async def work(call: AgentCall) -> str:
            place.instructions = call.instructions
            asked = invocation
            if list(call.input) != prompt:
                text = "\n\n".join(each.content for each in call.input)
                asked = {**invocation, "new_message": words.content("user", text)}
            return await self._play(place, asked, hold)

        done = await place.run.lead_run(prompt, work)
        if done.denied is not None:
            await emit(Event(author=self.agent.name, error_code="DENIED", error_message=done.denied.reason))
        elif not done.ran:
            place.answer = words.content("model", done.output)
            await self._play(place, invocation, emit)
        else:
            last = held.pop() if held and done.changed else None
            for event in held:
                await emit(event)
            if last is not None:
                await emit(last.model_copy(update={"content": words.content("model", done.output)}))
        return done

    async def _play(self, place: Place, invocation: dict[str, Any], give: Give) -> str:
        """The framework's own run; what was said last."""
        run, last = place.run.run, None
        async for event in self._inner.run_async(**invocation):
            last = event if event.content is not None and not event.partial else last
            await give(event)
        run.last_content = (words.text_of(last.content) if last is not None else "") or run.last_content
        await place.settle()
        for between in list(place.under_way):
            await between.end()
        return run.last_content

    async def _decided(self, invocation: dict[str, Any]) -> tuple[str | None, list[Approve | Reject]]:
        """What a message says of calls that wait for a person, and which operation waits for that."""
        answers = words.decisions_in(invocation.get("new_message"))
        if not answers:
            return None, []
        session = await self.session_service.get_session(
            app_name=self.app_name, user_id=invocation["user_id"], session_id=invocation["session_id"]
        )
        operation_id, found = None, list[Approve | Reject]()
        for event in session.events if session is not None else ():
            for call in event.get_function_calls():
                if call.id in answers:
                    operation_id = (event.custom_metadata or {}).get(OPERATION, operation_id)
                    original = (call.args or {})["originalFunctionCall"]["id"]
                    found.append(words.decision(original, answers[call.id]))
        return operation_id, found

    def _stopped(self, place: Place, decisions: Sequence[Approve | Reject]) -> bool:
        """Tell of a person's decisions; whether one of them ends the run."""
        if not decisions:
            return False
        place.run.begin_step()
        place.run.decided(decisions)
        refusal = next((each for each in decisions if isinstance(each, Reject) and not each.and_continue), None)
        if refusal is None:
            place.run.step.type = "call_tool"
            return False
        place.run.finish("interrupted")
        place.answer = words.content("model", "A person has stopped the run.")
        return True


class _Abort:
    """Stands for the cancel scope of a run: what cancels it aborts the framework's own run."""

    # A real scope would be left open in the caller's task between two events of the stream.
    def __init__(self, signal: asyncio.Event) -> None:
        self.signal, self.cancel_called = signal, False

    def cancel(self, reason: str | None = None) -> None:
        self.cancel_called = True
        self.signal.set()


def _prompt(message: Any) -> list[Message]:
    return [Message(role="user", content=words.text_of(message))] if message is not None else []


class _Summarizer(BaseEventsSummarizer):
    """Compacts as another one does, under the hooks of the present run."""

    def __init__(self, inner: BaseEventsSummarizer) -> None:
        self._inner = inner

    async def maybe_summarize_events(self, *, events: list[Event]) -> Event | None:
        place = here.get()
        if place is None or not events:
            return await self._inner.maybe_summarize_events(events=events)
        place.step()
        messages = [each for event in events if event.content is not None for each in words.messages_of(event.content)]
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
            return words.text_of(event.actions.compaction.compacted_content)

        summary = await place.run.compact(messages, place.run.run.last_input_tokens, summarize)
        if raised and summary is None:
            raise raised[0]
        if summary is None:
            return None
        compaction = EventCompaction(
            start_timestamp=events[0].timestamp,
            end_timestamp=events[-1].timestamp,
            compacted_content=words.content("model", summary),
        )
        fresh = Event(author="user", actions=EventActions(compaction=compaction), invocation_id=Event.new_id())
        if not made:
            return fresh
        own = made[0].actions.compaction
        same = own is not None and words.text_of(own.compacted_content) == summary
        return made[0] if same else made[0].model_copy(update={"actions": fresh.actions})
