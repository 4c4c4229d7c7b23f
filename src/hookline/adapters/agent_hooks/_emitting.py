"""The SDK's emitter as hookline uses it: bounded on every event loop, and able to finish what a person interrupted."""

from __future__ import annotations

import inspect
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from agent_hooks import (
    ApprovalOutcome,
    ApprovalRequest,
    ApprovalResolution,
    EnforcementMode,
    InterceptionEmitter,
    InterceptionPoint,
    InterceptionRecord,
    Verdict,
)

__all__ = ["Bounded", "BoundedResolver", "Emissions", "Judgement", "Replay"]

logger = logging.getLogger("hookline")

RAISED: dict[str, Any] = {"hookline": "raised"}
"""Stands for the verdict of an interceptor that failed."""


class Replay(msgspec.Struct):
    """The verdicts of one emission, by interceptor: noted the first time, and said again when it is finished.

    Attributes:
        verdicts: What was said, in JSON.
        again: Whether it is said again.
    """

    verdicts: list[Any] = []
    again: bool = False
    _at: int = 0

    def next(self) -> Any:
        """The next verdict that was said already; `None` if the interceptor has to be asked."""
        self._at += 1
        return self.verdicts[self._at - 1] if self.again and self._at <= len(self.verdicts) else None


_replay: ContextVar[Replay | None] = ContextVar("hookline_policy_replay", default=None)


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What policies decided at one point.

    Attributes:
        record: The contract's record of it.
        target: What goes on, if anything does.
        transformed: Whether that is something else than what was judged.
    """

    record: InterceptionRecord
    target: Any
    transformed: bool

    @property
    def denied(self) -> bool:
        """Whether nothing goes on."""
        return not self.record.proceeds

    @property
    def liftable(self) -> bool:
        """Whether a person's approval would let it go on."""
        return self.denied and self.record.verdict.is_liftable

    @property
    def reason(self) -> str:
        """Why, in the policies' words: the name of the reason, and what is said about it."""
        verdict = self.record.verdict
        said = _said(verdict.reason, verdict.message)
        return said or f"a policy denied it at {self.record.interception_point.value}"

    @property
    def host_error(self) -> bool:
        """Whether it is denied because something failed, not because a policy said so."""
        return self.denied and (self.record.verdict.reason or "").startswith("host_error:")


class Bounded:
    """An interceptor with a time limit that holds on asyncio and on trio, where the SDK's own needs asyncio.

    Args:
        interceptor: What decides.
        timeout: Seconds that it may take; `None` for no limit.
        in_thread: Whether it runs in a worker thread, if it is a plain one.
    """

    def __init__(self, interceptor: Any, timeout: float | None, *, in_thread: bool) -> None:
        self._interceptor = interceptor
        self._timeout = timeout
        self._in_thread = in_thread and not inspect.iscoroutinefunction(interceptor.intercept)

    def intercept(self, context: dict[str, Any], /) -> Any:
        """The interceptor's verdict, or an awaitable of it."""
        replay = _replay.get()
        if replay is None:
            return self._asked(context)
        said = replay.next()
        if said is None:
            return self._noted(replay, context)
        if said == RAISED:
            raise RuntimeError("it failed before a person was asked")
        return said

    def _asked(self, context: dict[str, Any]) -> Any:
        if self._in_thread:
            work = anyio.to_thread.run_sync(self._interceptor.intercept, context, abandon_on_cancel=True)
            return bounded(work, self._timeout)
        said = self._interceptor.intercept(context)
        return bounded(said, self._timeout) if inspect.isawaitable(said) else said

    async def _noted(self, replay: Replay, context: dict[str, Any]) -> Any:
        at = len(replay.verdicts)
        replay.verdicts.append(RAISED)
        said = self._asked(context)
        if inspect.isawaitable(said):
            said = await said
        wire = said.to_wire() if isinstance(said, Verdict) else said
        replay.verdicts[at] = json.loads(json.dumps(wire, allow_nan=False))
        return said


class BoundedResolver:
    """The contract's approval resolver, with such a time limit.

    Args:
        resolver: Who decides about liftable denials.
        timeout: Seconds that it may take; `None` for no limit.
    """

    def __init__(self, resolver: Any, timeout: float | None) -> None:
        self._resolver = resolver
        self._timeout = timeout

    def resolve(self, request: ApprovalRequest, /) -> Any:
        """The resolution, or an awaitable of it."""
        said = self._resolver.resolve(request)
        return bounded(said, self._timeout) if inspect.isawaitable(said) else said


class PersonsApproval:
    """Says once what a person has decided already: that the call may go on."""

    def __init__(self) -> None:
        self._said = False

    def resolve(self, request: ApprovalRequest, /) -> ApprovalResolution:
        """Approve the first request. A second one is about something that nobody was asked."""
        if self._said:
            return ApprovalResolution(outcome=ApprovalOutcome.UNRESOLVED, context_identity=request.context_identity)
        self._said = True
        return ApprovalResolution(
            outcome=ApprovalOutcome.APPROVE, context_identity=request.context_identity, verdict=Verdict.allow()
        )


async def bounded(work: Awaitable[Any], timeout: float | None) -> Any:
    """What some work comes to, inside of a time limit.

    Raises:
        TimeoutError: If it takes longer.
    """
    with anyio.fail_after(timeout):
        return await work


class Emissions:
    """Leads contexts through the policies of one bundle, logs what must not go unseen, and keeps the records.

    Args:
        make: Makes an emitter that consults the given approval resolver, if any.
        resolver: Who decides at once about what can be lifted; `None` for nobody.
        max_records: How many records are kept; the oldest go first.
        on_record: Told every record.
    """

    def __init__(
        self,
        make: Callable[[Any], InterceptionEmitter],
        *,
        resolver: object,
        max_records: int | None,
        on_record: Callable[[InterceptionRecord], object] | None,
    ) -> None:
        self._make = make
        self._on_record = on_record
        self.records: deque[InterceptionRecord] = deque(maxlen=max_records)
        self.emitter = make(resolver)

    async def judge(self, context: dict[str, Any], *, replay: Replay | None = None) -> Judgement:
        """Ask the policies about a context.

        Args:
            context: What is judged.
            replay: Takes note of what each policy says.
        """
        return await self._emitted(self.emitter, context, replay)

    async def finish(self, context: dict[str, Any], verdicts: Sequence[Any]) -> Judgement:
        """Go on with an emission that waited for a person, who has approved it.

        What policies have said counts; only those that were not heard are asked now.

        Args:
            context: What was judged.
            verdicts: What each policy said.
        """
        emitter = self._make(PersonsApproval())
        return await self._emitted(emitter, context, Replay(verdicts=list(verdicts), again=True))

    def failed(self, point: InterceptionPoint, detail: str, context: Mapping[str, Any]) -> None:
        """Keep a record of something that could not be done as the policies decided, and failed closed."""
        record = self.emitter.record_host_failure(
            point,
            detail,
            session_id=context["session"]["id"],
            sequence=context["sequence"],
            timestamp=context["timestamp"],
        )
        self._keep(self.emitter, record)

    async def _emitted(self, emitter: InterceptionEmitter, context: dict[str, Any], replay: Replay | None) -> Judgement:
        given = context["target"]
        token = _replay.set(replay)
        try:
            record = await emitter.emit_unchecked(context)
        finally:
            _replay.reset(token)
        self._keep(emitter, record)
        # The emitter puts a new target into the context when it applies a transform, and only then.
        target = context["target"]
        return Judgement(record=record, target=target, transformed=target is not given)

    def _keep(self, emitter: InterceptionEmitter, record: InterceptionRecord) -> None:
        emitter.take_records()
        self.records.append(record)
        if record.verdict.warnings or record.mode is EnforcementMode.EVALUATE_ONLY:
            _tell(record)
        if self._on_record is not None:
            try:
                self._on_record(record)
            except Exception:
                logger.exception("`on_record` raised an error about %s", _place(record))


def _tell(record: InterceptionRecord) -> None:
    """Log what changed nothing, and must not go unseen."""
    verdict = record.verdict
    for warning in verdict.warnings:
        logger.warning("A policy warns at %s: %s", _place(record), _said(warning.reason, warning.message))
    if record.mode is EnforcementMode.EVALUATE_ONLY and not verdict.decision.permits:
        said = _said(verdict.reason, verdict.message)
        logger.warning("Policies would deny %s, and only evaluate: %s", _place(record), said)


def _place(record: InterceptionRecord) -> str:
    return f"{record.interception_point.value} of operation {record.session_id}"


def _said(reason: str | None, message: str | None) -> str:
    if reason and message and message.startswith(reason):
        return message
    return ": ".join(text for text in (reason, message) if text)
