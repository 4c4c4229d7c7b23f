"""The life of a run: claim it in its store, register its hooks, run it, and announce its end exactly once."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Coroutine, Sequence
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Self

import anyio
import msgspec

from hookline.calls import (
    AddedContext,
    AgentCall,
    AgentResult,
    Message,
    context_message,
    context_takers,
    describe_context,
    is_from_user,
    merge_context,
)
from hookline.errors import (
    HookUsageError,
    OperationBusyError,
    OperationError,
    OperationExistsError,
    StaleStateError,
    message_of,
)
from hookline.events import CompletionReason
from hookline.instrumentation import Instrumentation
from hookline.runtime._agent import remember_tools
from hookline.runtime._loop import run_segment
from hookline.runtime._persistence import (
    LOST_HERE,
    await_required_deliveries,
    has_lost_store,
    is_end_stored,
    let_go_when_cancelled,
    release,
    return_claim,
    save,
    save_end,
    save_end_in_memory,
    save_minimal_end,
)
from hookline.runtime._run import Run, end_events, live, wants_no_event
from hookline.runtime._seams import (
    RunControl,
    begin_instrumentation,
    end_instrumentation,
    run_through_chain,
    tell_context,
)
from hookline.runtime._state import Decision, OperationResult
from hookline.runtime._steps import limit_reached
from hookline.runtime._tool_calls import INTERRUPTED
from hookline.runtime._tools import open_sources

__all__ = ["Lifecycle", "exec_run"]

logger = logging.getLogger("hookline")


async def run_agent(run: Run, decisions: Sequence[Decision] = ()) -> CompletionReason:
    """Run a segment whose `AgentCall` has interceptors, and continue it as often as they ask for that.

    Args:
        run: The segment.
        decisions: On a resume, what a person decided.

    Returns:
        Why it ended.
    """
    resumed = bool(decisions) or run.journal.recovered
    given = last_user_message(run) if resumed else run.messages[run.first_input() :]
    while True:
        call = AgentCall(
            input=given,
            instructions=run.instructions,
            tools=run.specs,
            metadata=run.metadata if resumed else {},
            **run.ids,
        )
        run.metadata = call.metadata
        reason, continues = await run_through_agent_hooks(run, call, decisions, resumed=resumed)
        decisions, resumed = (), False
        if reason != "done" or not continues or run.interrupted:
            return reason
        if run.continues >= run.agent.max_continues:
            logger.warning(
                "Operation %s: a hook returned Continue, but the run was already continued %d time(s), the agent's "
                "`max_continues`",
                run.operation_id,
                run.continues,
            )
            return reason
        limit = limit_reached(run)
        if limit is not None:
            return limit
        run.continues += 1
        run.context = ()
        given = [Message(role="user", content="\n\n".join(continues))]
        run.history = len(run.messages)
        run.messages.extend(given)
        run.said_from = len(run.messages)


async def run_through_agent_hooks(
    run: Run, call: AgentCall, decisions: Sequence[Decision], *, resumed: bool
) -> tuple[CompletionReason, Sequence[str]]:
    """Run a segment once through the interceptors of its `AgentCall`.

    Returns:
        Why it ended, and the inputs with which they continue it.
    """
    control = RunControl(run, run.watch, pinned=resumed)
    reason: CompletionReason = "done"
    earlier = run.last_content if resumed else ""

    async def terminal(final: AgentCall) -> AgentResult:
        nonlocal reason
        if not resumed:
            apply_agent_call(run, call, final)
        taker = context_takers.get(id(final.metadata))
        if taker is not None and taker.context:
            tell_context(run, final, taker.context)
            tell_model(run, taker.context, resumed=resumed)
            taker.context = ()  # what a hook adds on the way out is for the next input
        reason = await run_segment(run, decisions)
        control.suspended = reason == "waiting_for_human"
        return AgentResult(output=run.last_content, reason=reason)

    traversal = await run_through_chain(run, call, terminal, control)
    if traversal.denied is not None:
        run.denied = traversal.denied
        if traversal.reached:
            run.withhold(traversal.denied)
        elif not resumed:
            run.refused_from = run.first_input()
        if run.text is not None:
            run.text.withheld(AgentCall)
        return "interrupted", ()
    result: AgentResult = traversal.result
    if not traversal.reached:
        if resumed:
            run.close_step("Not run, because a hook answered in place of the run.")
        else:
            apply_agent_call(run, call, traversal.call)
        if traversal.context:
            tell_model(run, traversal.context, resumed=resumed)
        run.messages.append(Message(role="assistant", content=result.output))
        run.last_content = result.output
    elif result.output != run.last_content and not control.suspended:
        run.restate(result.output)
    if run.text is not None:
        # A segment that said nothing ends with the words of the one before, which the reader has.
        silent = resumed and run.last_content == earlier and not run.text.keeps
        await run.text.passed(AgentCall, None if silent else run.last_content)
    continues = traversal.continues
    if continues and traversal.reached and traversal.context:
        continues = (*continues, describe_context(traversal.context))
    return reason, continues


def tell_model(run: Run, context: Sequence[AddedContext], *, resumed: bool) -> None:
    """Put the texts that hooks have added to an `AgentCall` into the conversation, as a message after the prompt.

    Hooks that run again when the operation resumes replace their texts in that message.
    """
    earlier = context_message(run.context)
    run.context = merge_context(run.context, context)
    message = context_message(run.context)
    if message == earlier:
        return
    if earlier is not None and earlier in run.messages:
        at = run.messages.index(earlier)
        run.messages[at : at + 1] = [] if message is None else [message]
    elif message is not None:
        newest = (at for at in reversed(range(len(run.messages))) if is_from_user(run.messages[at]))
        run.messages.insert(next(newest, len(run.messages) - 1) + 1 if resumed else len(run.messages), message)


def apply_agent_call(run: Run, given: AgentCall, final: AgentCall) -> None:
    """Take the input, the instructions and the tools into the run, as interceptors have left them."""
    if final.tools is not given.tools and final.tools != given.tools:
        run.offered, run.offer = list(final.tools), os.urandom(16).hex()
    before = run.messages[: run.first_input()]
    if final.instructions != given.instructions:
        system = Message(role="system", content=given.instructions)
        before = [message for message in before if message != system]
        if final.instructions:
            before.insert(0, Message(role="system", content=final.instructions))
        run.instructions = final.instructions
    run.input_from = len(before) if not run.continues else run.input_from
    run.messages = [*before, *final.input]
    run.said_from = len(run.messages)


def last_user_message(run: Run) -> list[Message]:
    """Return the newest message of the user, as the input of a run that continues after a pause."""
    return [message for message in run.messages if is_from_user(message)][-1:]


LAST_SAVE_SECONDS = 5.0
"""How long a store may take to save a run that was cancelled from outside; the cancellation waits for that."""

RELEASE_SECONDS = 1.0
"""How long it may then take to release the operation."""


class Lifecycle(msgspec.Struct, eq=False):
    """The life of one segment, from its claim in the store to its end, of own runs and of those of other frameworks.

    An async context manager around the work of the segment. Inside of it the operation is claimed, its hooks are
    registered, and `interrupt` finds it. The work sets `reason` and `error`. Whatever it raises, leaving stores the
    end, announces it once, waits for the queued observers, and unregisters the hooks.

    Attributes:
        run: The segment.
        claims: Whether the store knows of the segment from its start on; else it is stored only if it pauses.
        reason: Why the segment ends; `"interrupted"` until the work sets it, since only a cancellation leaves it so.
        error: What it failed with. Set on entering if a broken store could not claim it: the work is then left out.
    """

    run: Run
    claims: bool = True
    reason: CompletionReason = "interrupted"
    error: Exception | None = None

    async def __aenter__(self) -> Self:
        """Claim the operation and register its hooks.

        Raises:
            OperationExistsError: If the id of a new operation is taken.
            OperationBusyError: If another process continues a stored one.
            HookUsageError: If the dispatcher is not open, or was given interceptors of the operation.
        """
        run, operation_id = self.run, self.run.operation_id
        if operation_id in live:
            raise _taken_error(run, run.version)
        # Raises if the dispatcher is not open, while nothing is stored yet.
        left_out = run.dispatcher._left_out(operation_id)
        if left_out:  # rather than a run without its guards
            raise HookUsageError(
                f"The interceptors {', '.join(left_out)} of operation {operation_id!r} were registered with the "
                "dispatcher, which only calls observers. Pass their bundle to the run, in `hooks=[...]`."
            )
        live[operation_id], version = None, run.version
        try:
            if self.claims:
                await self._claim()
            _register(run)
        except BaseException:
            if run.claimed:  # a hook could not be registered: nothing runs
                with anyio.CancelScope(shield=True), contextlib.suppress(Exception):
                    await return_claim(run, version)
                run.claimed = False
            self._forget()
            raise
        live[operation_id] = run
        if run.parent is not None:
            run.join_parent()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self._end()
            else:
                with anyio.CancelScope(shield=True):
                    await self._end(cancelled=not isinstance(error, Exception))
        finally:
            self._forget()

    async def _claim(self) -> None:
        """Claim the operation in the store for this process; a cancelled claim is released."""
        run, version = self.run, self.run.version
        try:
            await save(run, "running")
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                with contextlib.suppress(Exception):
                    await return_claim(run, version)
                if version is None:  # a new operation is cancelled before its first step: its end is announced
                    run.finishing, run.ended = True, perf_counter_ns()
                    _register(run)
                    await self._announce()
            raise
        except StaleStateError:
            raise _taken_error(run, version) from None
        except Exception as error:
            if run.framework:
                with contextlib.suppress(Exception):
                    await return_claim(run, version)
                raise
            self.error = error
        else:
            run.claimed = True

    async def _end(self, *, cancelled: bool = False) -> None:
        """Store the end and announce it.

        Args:
            cancelled: Whether the segment was cancelled from outside, so that the store may not take long.
        """
        run = self.run
        run.finishing, run.ended = True, perf_counter_ns()
        leaves = run.journal.durable and self._leaves(cancelled=cancelled)
        if not leaves and run.offered is not None:
            remember_tools(run.offer, run.offered, waiting=self.reason == "waiting_for_human")
        if self.reason != "waiting_for_human" and (run.open_calls or run.pending or run.waiting):
            run.close_step(INTERRUPTED)
        try:
            if leaves:
                await self._leave()
            elif (
                (self.claims or self.reason == "waiting_for_human")
                # A resume that the store did not take note of is left out: the operation goes on waiting there.
                and (run.claimed or run.version is None)
                and not save_end_in_memory(run, self.reason)
            ):
                await (self._store_end_in_time() if cancelled else self._store_end())
        except BaseException:
            with anyio.CancelScope(shield=True):  # or the observers that are queued would be cancelled too
                await self._announce()
            raise
        await self._announce()
        if leaves or run.framework:
            return  # it was logged as left, or the framework raises it
        if self.reason == "error" and self.error is not None:
            logger.error(
                "Operation %s of agent %r ended with an error: %s: %s",
                run.operation_id,
                run.agent.id,
                type(self.error).__name__,
                message_of(self.error),
                exc_info=self.error,
                extra={"failed_operation_id": run.operation_id},
            )

    def _leaves(self, *, cancelled: bool) -> bool:
        """Whether another process continues the operation, which a durable store makes possible."""
        if self.run.framework:
            return False
        given_up = cancelled and (let_go_when_cancelled.get() or has_lost_store(self.run.parent))
        return given_up or isinstance(self.error, LOST_HERE)

    async def _leave(self) -> None:
        """Release the operation without ending it: a process that reaches the store continues it."""
        if self.error is not None:
            self.reason = "error"
            logger.error(
                "Operation %s cannot continue here and is left to other processes: %s",
                self.run.operation_id,
                self.error,
            )
        await release(self.run)

    async def _store_end(self) -> None:
        """Store how the segment ends, also if a cancellation cuts the write short."""
        try:
            await self._save_end()
        except anyio.get_cancelled_exc_class():
            await self._store_end_in_time()
            raise

    async def _store_end_in_time(self) -> None:
        """Store how a segment ends that was cancelled from outside, unless the store takes too long.

        Then the operation is released. Otherwise the store would say for ever that it runs in this process.
        """
        run = self.run
        with anyio.move_on_after(LAST_SAVE_SECONDS, shield=True) as limit:
            if not await is_end_stored(run, self.reason):
                await self._save_end()
        if limit.cancelled_caught:
            with anyio.move_on_after(RELEASE_SECONDS, shield=True):
                await release(run)

    async def _save_end(self) -> None:
        """Save how the segment ends; an end that cannot be saved is an error."""
        run = self.run
        try:
            await save_end(run, self.reason, self.error)
        except Exception as unsaved:
            if run.journal.durable and await is_end_stored(run, self.reason):
                return
            self.reason, self.error = "error", self.error or unsaved
            if run.journal.durable:
                await save_minimal_end(run, unsaved)
                return
            run.close_step(INTERRUPTED)
            with contextlib.suppress(Exception):
                await save(run, "error")

    async def _announce(self) -> None:
        """Dispatch the last events, then unregister the hooks once their queues are empty."""
        run = self.run
        # Those who wait for the commit have heard of it when the end was written, if it was.
        dispatch = run.dispatcher._dispatch_at_once if run.journal.durable else run.dispatcher.dispatch
        try:
            for event in end_events(run, self.reason, self.error):
                dispatch(event)
            if run.critical is not None:
                self.reason, self.error = await await_required_deliveries(run, self.reason, self.error)
        finally:
            run.closed, run.hooked = True, wants_no_event
            await run.dispatcher.unregister(run.operation_id, drain_timeout=run.drain_timeout)

    def _forget(self) -> None:
        run = self.run
        if run.parent is not None:
            run.leave_parent()
        if run.begun:
            end_instrumentation(run)
        del live[run.operation_id]


def _taken_error(run: Run, version: int | None) -> OperationError:
    return OperationExistsError(run.operation_id) if version is None else OperationBusyError(run.operation_id)


def _register(run: Run) -> None:
    """Begin the instrumentation of a segment, then register its hooks."""
    for entry in run.hooks:
        if isinstance(entry, Instrumentation):
            run.dispatcher.register(run.operation_id, begin_instrumentation(run))
            return
    run.dispatcher.register(run.operation_id, run.hooks)


async def exec_run(run: Run, decisions: Sequence[Decision]) -> OperationResult:
    """Run one segment in hookline's own loop. Its closing events fire once and its hooks are removed, whatever happens.

    Args:
        run: The segment.
        decisions: On a resume, what a person decided.
    """
    if decisions:
        run.journal.take_decisions(decisions)
    async with Lifecycle(run) as life:
        reason: CompletionReason = "error"
        error, life.error = life.error, None
        try:
            if error is None:
                try:
                    with run.scope:
                        work = (run_agent if AgentCall in run.intercepted else run_segment)(run, decisions)
                        reason = await (_run_with_sources(run, work) if run.agent.sources else work)
                except Exception as raised:
                    error = raised
                if run.stopped:  # a model or a store may have turned its cancellation into an error
                    reason, error = "interrupted", None
            if run.remember is not None:
                reason, error = await _remember(run, reason, error)
        except BaseException:
            if run.remember is not None:
                with anyio.move_on_after(LAST_SAVE_SECONDS, shield=True):
                    await _remember(run, "interrupted", None)
            raise
        life.reason, life.error = reason, error
    return run.result(life.reason, life.error)


async def _run_with_sources(run: Run, work: Coroutine[Any, Any, CompletionReason]) -> CompletionReason:
    """Run a segment with the tools of the agent's sources."""
    try:
        async with open_sources(run.agent.sources) as tools:
            run.equip(run.agent.equipped(tools))
            return await work
    finally:
        work.close()  # if it was never begun


async def _remember(
    run: Run, reason: CompletionReason, error: Exception | None
) -> tuple[CompletionReason, Exception | None]:
    """Let the session keep the conversation of an operation that has ended; an interrupt can stop that too."""
    if run.remember is None or reason == "waiting_for_human" or not run.claimed:
        return reason, error
    run.close_step(INTERRUPTED)
    stopped, run.stopped = run.stopped, False
    try:
        with anyio.CancelScope() as run.scope:
            await run.remember(run)
    except Exception as unsaved:
        return ("interrupted", None) if run.stopped and not error else ("error", error or unsaved)
    finally:
        stopped_meanwhile, run.stopped = run.stopped, run.stopped or stopped
    return ("interrupted", None) if stopped_meanwhile else (reason, error)
