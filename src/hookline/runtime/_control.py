"""What a run adds to the chains of its calls: interrupts, a person's approval, and lanes for hooks nobody waits for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any

import anyio.lowlevel
import msgspec

from hookline.calls import Ask, Call
from hookline.execution import Observer, refuse_return
from hookline.interceptors._traverse import HookInChain, Passage, Terminal
from hookline.runtime._run import Run

__all__ = ["RunControl", "lead"]


async def lead(run: Run, call: Call, terminal: Terminal, control: RunControl | None = None) -> Passage:
    """Lead a call of a run through its interceptors; callers ask `run.intercepted` first."""
    assert run.chain is not None
    passage = await run.chain._lead(call, terminal, control or RunControl(run))
    if passage.denied is not None:
        cause = passage.refusal.__cause__ if passage.refusal is not None else None
        for hooks, _ in run.begun:
            hooks.refused(passage.call, passage.denied, cause=cause, ran=passage.reached, stop=passage.stop)
    elif passage.answered_by is not None and not passage.reached:
        for hooks, _ in run.begun:
            hooks.answered(passage.call, passage.answered_by)
    return passage


class RunControl:
    """The run's side of a chain.

    Args:
        run: The run.
        pinned: Whether the call was on its way before: it waited for a person, so nothing rewrites it.
        approved: Whether a person has let it through, so that no `Ask` is asked again.
        asked_by: Who had the person asked before hooks further inside were heard; see `WaitingCall`.
        asks: Whether a person must be asked about the final call, although no hook said so.
        at_end: Whether the call comes after the run, so that an interrupt of the run is none of its business.
    """

    def __init__(
        self,
        run: Run,
        *,
        pinned: bool = False,
        approved: bool = False,
        asked_by: tuple[str, int] | None = None,
        asks: Callable[[Any], Awaitable[Ask | None]] | None = None,
        at_end: bool = False,
    ) -> None:
        self.run = run
        self.pinned = pinned
        self.decided = approved
        self.approved = approved
        self._changed_by: str | None = None
        self.asked_by = asked_by
        self.sender = run.dispatcher
        self.resumed = pinned and not approved
        """Whether the call has begun in an earlier segment."""
        self.suspended = False
        """Whether the call goes on in another segment: no `after` runs yet."""
        self._asks = asks
        self._at_end = at_end

    @property
    def interrupted(self) -> bool:
        """Whether no further hook may start."""
        return not self._at_end and self.run.interrupted

    async def stop(self) -> None:
        """Raise the cancellation of a run that was interrupted."""
        self.run.cancel()
        await anyio.lowlevel.checkpoint()

    async def asks(self, call: Any) -> Ask | None:
        """Whether a person must be asked about the final call."""
        if self._changed_by is not None:
            return Ask(f"Hook {self._changed_by!r} has changed the arguments that were approved. May the call run so?")
        return None if self._asks is None else await self._asks(call)

    def change(self, hook_id: str) -> None:
        """Note that a control has changed a call which a person has approved, so that the person is asked again."""
        self.approved, self._changed_by = False, hook_id

    def background(self, hook: HookInChain, args: tuple[Any, ...]) -> None:
        """Queue a hook that is not waited for in the lane of its bundle."""
        observer = Observer(id=hook.id, handler=_run_unwaited, is_async=True, timeout=hook.timeout)
        call = args[0]
        item = _Unwaited(
            hook=hook,
            args=args,
            operation_id=self.run.operation_id,
            hook_type=hook.point,
            tenant_id=call.tenant_id,
            step_index=getattr(call, "step_index", None),
            tool_call_id=getattr(call, "tool_call_id", None),
        )
        queued: Any = (item, copy_context(), (observer,))
        self.run.dispatcher._host.push(self.run.operation_id, hook.lane, queued)


class _Unwaited(msgspec.Struct, frozen=True, kw_only=True):
    """A hook in a lane; looks like an event to it."""

    hook: HookInChain
    args: tuple[Any, ...]
    operation_id: str
    hook_type: str
    tenant_id: str
    step_index: int | None
    tool_call_id: str | None


async def _run_unwaited(item: _Unwaited) -> None:
    value = item.hook.handler(*item.args)
    if item.hook.is_async:
        value = await value
    refuse_return(value)
