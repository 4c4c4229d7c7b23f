"""Emit contexts to policies with the SDK's emitter: time limits on every event loop, and replay after a pause."""

from __future__ import annotations

import dataclasses
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
    HostError,
    InterceptionEmitter,
    InterceptionPoint,
    InterceptionRecord,
    Verdict,
)

__all__ = ["PolicyDecision", "PolicyEmitter", "TimedInterceptor", "TimedResolver", "VerdictReplay"]

logger = logging.getLogger("hookline")

FAILED_VERDICT: dict[str, Any] = {"hookline": "raised"}
"""Recorded in place of the verdict of an interceptor that failed."""


class VerdictReplay(msgspec.Struct):
    """The verdicts of one emission in order, recorded the first time and replayed when the emission is finished.

    Attributes:
        verdicts: The verdicts, as JSON.
        replaying: Whether the verdicts are replayed.
    """

    verdicts: list[Any] = []
    replaying: bool = False
    _at: int = 0

    def next(self) -> Any:
        """Return the next recorded verdict; `None` if the interceptor has to be asked."""
        self._at += 1
        return self.verdicts[self._at - 1] if self.replaying and self._at <= len(self.verdicts) else None


_current_replay: ContextVar[VerdictReplay | None] = ContextVar("hookline_policy_replay", default=None)


class PolicyDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The policies' decision at one point.

    Attributes:
        record: The contract's record of the decision.
        target: The target that may proceed, if it may.
        transformed: Whether policies changed the target.
    """

    record: InterceptionRecord
    target: Any
    transformed: bool

    @property
    def denied(self) -> bool:
        """Whether the target may not proceed."""
        return not self.record.proceeds

    @property
    def liftable(self) -> bool:
        """Whether a person's approval would let the target proceed."""
        return self.denied and self.record.verdict.is_liftable

    @property
    def reason(self) -> str:
        """The policies' reason and message."""
        verdict = self.record.verdict
        reason = _join_reason(verdict.reason, verdict.message)
        return reason or f"a policy denied it at {self.record.interception_point.value}"

    @property
    def warnings(self) -> list[str]:
        """The policies' warnings, as texts."""
        texts = (_join_reason(warning.reason, warning.message) for warning in self.record.verdict.warnings)
        return [text for text in texts if text]

    @property
    def host_error(self) -> bool:
        """Whether the denial comes from a failure, not from a policy."""
        return self.denied and (self.record.verdict.reason or "").startswith("host_error:")


class TimedInterceptor:
    """An interceptor with a time limit that works on asyncio and on trio; the SDK's own limit needs asyncio.

    Args:
        interceptor: The interceptor.
        timeout: Seconds that it may take; `None` for no limit.
        in_thread: Whether a sync interceptor runs in a worker thread.
    """

    def __init__(self, interceptor: Any, timeout: float | None, *, in_thread: bool) -> None:
        self._interceptor = interceptor
        self._timeout = timeout
        self._in_thread = in_thread and not inspect.iscoroutinefunction(interceptor.intercept)

    def intercept(self, context: dict[str, Any], /) -> Any:
        """Return the interceptor's verdict, or an awaitable of it."""
        replay = _current_replay.get()
        if replay is None:
            return self._ask(context)
        verdict = replay.next()
        if verdict is None:
            return self._ask_and_record(replay, context)
        if verdict == FAILED_VERDICT:
            raise RuntimeError("it failed before a person was asked")
        return verdict

    def _ask(self, context: dict[str, Any]) -> Any:
        if self._in_thread:
            work = anyio.to_thread.run_sync(self._interceptor.intercept, context, abandon_on_cancel=True)
            return run_within(work, self._timeout)
        verdict = self._interceptor.intercept(context)
        return run_within(verdict, self._timeout) if inspect.isawaitable(verdict) else verdict

    async def _ask_and_record(self, replay: VerdictReplay, context: dict[str, Any]) -> Any:
        at = len(replay.verdicts)
        replay.verdicts.append(FAILED_VERDICT)
        verdict = self._ask(context)
        if inspect.isawaitable(verdict):
            verdict = await verdict
        wire = verdict.to_wire() if isinstance(verdict, Verdict) else verdict
        replay.verdicts[at] = json.loads(json.dumps(wire, allow_nan=False))
        return verdict


class TimedResolver:
    """An approval resolver of the contract, with a time limit.

    Args:
        resolver: The resolver, which decides about liftable denials.
        timeout: Seconds that it may take; `None` for no limit.
    """

    def __init__(self, resolver: Any, timeout: float | None) -> None:
        self._resolver = resolver
        self._timeout = timeout

    def resolve(self, request: ApprovalRequest, /) -> Any:
        """Return the resolution, or an awaitable of it."""
        resolution = self._resolver.resolve(request)
        return run_within(resolution, self._timeout) if inspect.isawaitable(resolution) else resolution


class PersonApprovalResolver:
    """A resolver that approves once, because a person has approved already."""

    def __init__(self) -> None:
        self._said = False

    def resolve(self, request: ApprovalRequest, /) -> ApprovalResolution:
        """Approve the first request. A second request is about something that no person has seen."""
        if self._said:
            return ApprovalResolution(outcome=ApprovalOutcome.UNRESOLVED, context_identity=request.context_identity)
        self._said = True
        return ApprovalResolution(
            outcome=ApprovalOutcome.APPROVE, context_identity=request.context_identity, verdict=Verdict.allow()
        )


async def run_within(work: Awaitable[Any], timeout: float | None) -> Any:
    """Await work within a time limit.

    Raises:
        TimeoutError: If the work takes longer.
    """
    with anyio.fail_after(timeout):
        return await work


class PolicyEmitter:
    """Emits contexts to the policies of one bundle, logs their warnings and keeps the records.

    Args:
        make: Creates an emitter of the SDK with the given approval resolver, if any.
        resolver: Decides about liftable denials at once; `None` for no resolver.
        max_records: Most records to keep; the oldest are dropped first.
        on_record: Called with every record.
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

    async def judge(self, context: dict[str, Any], *, replay: VerdictReplay | None = None) -> PolicyDecision:
        """Return the policies' judgement of a context.

        Args:
            context: The context.
            replay: Records the verdict of each policy.
        """
        return await self._emit(self.emitter, context, replay)

    async def finish(self, context: dict[str, Any], verdicts: Sequence[Any]) -> PolicyDecision:
        """Finish an emission that waited for a person who has approved it.

        Recorded verdicts are used again; only the policies that had not been asked are asked now.

        Args:
            context: The context that was judged.
            verdicts: The recorded verdicts, in order.
        """
        emitter = self._make(PersonApprovalResolver())
        return await self._emit(emitter, context, VerdictReplay(verdicts=list(verdicts), replaying=True))

    def record_failure(
        self, point: InterceptionPoint, detail: str, context: Mapping[str, Any], *, error: HostError | None = None
    ) -> None:
        """Record that the call failed closed because of the host.

        Args:
            point: The point.
            detail: What happened, without content.
            context: The context that was, or would have been, judged.
            error: The contract's name of the failure; `context_invalid` unless given.
        """
        record = self.emitter.record_host_failure(
            point,
            detail,
            session_id=context["session"]["id"],
            sequence=context["sequence"],
            timestamp=context["timestamp"],
        )
        if error is not None:  # the SDK makes records of `context_invalid` only
            record = dataclasses.replace(record, verdict=Verdict.host_error(error, detail))
        self._keep_record(self.emitter, record)

    async def _emit(
        self, emitter: InterceptionEmitter, context: dict[str, Any], replay: VerdictReplay | None
    ) -> PolicyDecision:
        given = context["target"]
        token = _current_replay.set(replay)
        try:
            record = await emitter.emit_unchecked(context)
        finally:
            _current_replay.reset(token)
        self._keep_record(emitter, record)
        # The emitter puts a new target into the context when it applies a transform, and only then.
        target = context["target"]
        return PolicyDecision(record=record, target=target, transformed=target is not given)

    def _keep_record(self, emitter: InterceptionEmitter, record: InterceptionRecord) -> None:
        emitter.take_records()
        self.records.append(record)
        if record.verdict.warnings or record.mode is EnforcementMode.EVALUATE_ONLY:
            _log_record(record)
        if self._on_record is not None:
            try:
                self._on_record(record)
            except Exception:
                logger.exception("`on_record` raised an error for %s", _location(record))


def _log_record(record: InterceptionRecord) -> None:
    """Log warnings, and denials that are only evaluated."""
    verdict = record.verdict
    for warning in verdict.warnings:
        logger.warning("A policy warns at %s: %s", _location(record), _join_reason(warning.reason, warning.message))
    if record.mode is EnforcementMode.EVALUATE_ONLY and not verdict.decision.permits:
        reason = _join_reason(verdict.reason, verdict.message)
        logger.warning("Policies would deny %s (evaluate_only): %s", _location(record), reason)


def _location(record: InterceptionRecord) -> str:
    return f"{record.interception_point.value} of operation {record.session_id}"


def _join_reason(reason: str | None, message: str | None) -> str:
    if reason and message and message.startswith(reason):
        return message
    return ": ".join(text for text in (reason, message) if text)
