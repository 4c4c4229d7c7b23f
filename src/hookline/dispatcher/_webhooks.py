"""Turn hooks with a webhook into handlers: an observer that delivers events, an interceptor that asks a receiver."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.metadata import entry_points

import anyio
import msgspec

from hookline._readonly import read_only
from hookline.calls import Ask, Deny, Respond, ToolCall
from hookline.errors import CriticalDeliveryError, DeliveryError, MissingExtraError
from hookline.events import BeforeToolCall, Event, encode, tool_event_fields
from hookline.hooks import AnyHook, ControlInterceptor, Hook, Hooks, Interceptor, refuse_scoped
from hookline.webhooks import ControlAnswer, Delivery, Envelope, HookData, is_asked, payload_of

__all__ = [
    "RequiredDeliveries",
    "before_tool_call_of",
    "control_interceptor",
    "default_delivery",
    "has_webhooks",
    "hooks_of_this_process",
    "with_delivering_observers",
]

SPARE_SECONDS = 1.0
"""How much later than the request its hook times out, so that the delivery says what happened."""


def control_interceptor(hook: HookData, delivery: Delivery) -> Interceptor:
    """Make the interceptor that asks the receiver of a control before each tool call.

    Args:
        hook: The hook; its webhook is a control.
        delivery: Carries the question and the answer.
    """

    async def ask_receiver(call: ToolCall) -> ToolCall | Respond | Deny | Ask | None:
        wire = msgspec.json.decode(encode(before_tool_call_of(call)))
        if hook.webhook.dialect != "hookline" and not is_asked(hook.webhook, wire):
            return None
        envelope = Envelope(
            id=f"msg_{os.urandom(16).hex()}",  # a question that is asked anew may be answered otherwise
            hook=hook,
            operation_id=call.operation_id,
            tenant_id=call.tenant_id,
            payload=payload_of(hook, wire),
        )
        try:
            answer = await delivery.request(envelope, timeout=hook.webhook.timeout)
        except DeliveryError as error:
            # The model is told why a call was denied, and need not learn where the receiver lives.
            raise DeliveryError(hook.id, error.code, "its receiver gave no valid answer in time") from error
        return decision_of(hook, call, answer)

    return ControlInterceptor(
        id=hook.id,
        call=ToolCall,
        kind="before",
        handler=ask_receiver,
        tool=hook.tool,
        timeout=hook.webhook.timeout + SPARE_SECONDS,
        on_error=hook.webhook.on_error,
        tenant_id=hook.tenant_id,
        shadow=hook.shadow,
        revision=hook.revision,
    )


def decision_of(hook: HookData, call: ToolCall, answer: ControlAnswer) -> ToolCall | Respond | Deny | Ask | None:
    """Translate the answer of a receiver into the decision about a call, and add its context to the call.

    Raises:
        DeliveryError: If it contradicts itself.
    """
    if (answer.args is not None and answer.decision != "allow") or (
        (answer.result is None) is (answer.decision == "answer")
    ):
        raise DeliveryError(
            hook.id,
            "invalid_response",
            f"{answer.decision!r} does not go with what came along: `args` is of 'allow', `result` of 'answer' alone",
        )
    if answer.additional_context:
        call.add_context(answer.additional_context)
    if answer.decision == "deny":
        return Deny(answer.reason or f"Denied by {hook.id}.", stop=answer.stop)
    if answer.decision == "ask":
        return Ask(answer.reason or f"{hook.id} wants a person to decide.")
    if answer.decision == "answer":
        return Respond(answer.result)
    return None if answer.args is None else msgspec.structs.replace(call, args=read_only(answer.args))


def before_tool_call_of(call: ToolCall) -> BeforeToolCall:
    """Return the event of a tool call that is about to happen."""
    return BeforeToolCall(
        operation_id=call.operation_id,
        agent_id=call.agent_id,
        user_id=call.user_id,
        tenant_id=call.tenant_id,
        parent_operation_id=call.parent_operation_id,
        tags=call.tags,
        **tool_event_fields(call),
    )


GROUP = "hookline.delivery"
"""The group of entry points that make deliveries: functions without arguments. The one called `default` is used."""


@cache
def _delivery_factory() -> Callable[[], Delivery]:
    for entry in entry_points(group=GROUP, name="default"):
        made: Callable[[], Delivery] = entry.load()
        return made
    raise MissingExtraError("server", "A webhook")


def default_delivery() -> Delivery:
    """Make a delivery of this process, configured by its environment.

    Raises:
        MissingExtraError: If what it needs is not installed.
    """
    return _delivery_factory()()


class RequiredDeliveries:
    """The deliveries that an operation needs to succeed: how many are under way, and the first that failed."""

    def __init__(self) -> None:
        self.failure: CriticalDeliveryError | None = None
        self._under_way: dict[str, int] = {}
        self._settled = anyio.Event()

    def started(self, hook: HookData) -> None:
        """Record that a delivery has started."""
        self._under_way[hook.id] = self._under_way.get(hook.id, 0) + 1

    def finished(self, hook: HookData, error: BaseException | None) -> None:
        """Record that a delivery has finished, with its error if it failed."""
        self._under_way[hook.id] -= 1
        if not self._under_way[hook.id]:
            del self._under_way[hook.id]
        if isinstance(error, DeliveryError) and self.failure is None:
            self.failure = CriticalDeliveryError(hook.id, error.code, error.problem, status_code=error.status_code)
            self.failure.__cause__ = error
        elif error is not None and self.failure is None:
            self.failure = CriticalDeliveryError(hook.id, "timeout", "the run ended before it was delivered")
        if not self._under_way:
            self._settled.set()

    async def settle(self, timeout: float) -> CriticalDeliveryError | None:
        """Wait until none is under way, for at most `timeout` seconds.

        Returns:
            The first that failed, or did not come to an end.
        """
        with anyio.move_on_after(timeout):
            while self._under_way:
                self._settled = anyio.Event()
                await self._settled.wait()
        if self._under_way and self.failure is None:
            slow = next(iter(self._under_way))
            self.failure = CriticalDeliveryError(slow, "timeout", f"it was not delivered within {timeout:g} seconds")
        return self.failure


def with_delivering_observers(
    hooks: Iterable[AnyHook], delivery: Delivery, critical: RequiredDeliveries | None = None
) -> list[AnyHook]:
    """Replace each hook with a webhook by an observer that hands its events to the delivery, in a lane of its own.

    Args:
        hooks: A checked batch.
        delivery: Takes the events.
        critical: Watches those with `fallback="none"`.
    """
    batch = hooks_of_this_process(hooks, lambda: delivery)
    for entry in hooks:
        data = entry.data() if isinstance(entry, Hook) else None
        if data is not None and not data.webhook.control:
            batch.append(_delivering_bundle(data, delivery, critical if data.webhook.fallback == "none" else None))
    return batch


def hooks_of_this_process(hooks: Iterable[AnyHook], delivery: Callable[[], Delivery]) -> list[AnyHook]:
    """Return the hooks that run in this process: handlers, and the interceptors that ask the receivers of controls.

    Args:
        hooks: A checked batch.
        delivery: Gives the delivery, if a control needs one.
    """
    batch: list[AnyHook] = []
    for entry in hooks:
        refuse_scoped(entry, "hooks")
        data = entry.data() if isinstance(entry, Hook) else None
        if data is None:
            batch.append(entry)
        elif data.webhook.control:
            batch.append(control_interceptor(data, delivery()))
        elif isinstance(entry, Hook) and entry.handler is not None:
            batch.append(msgspec.structs.replace(entry, webhook=None))
    return batch


def _delivering_bundle(data: HookData, delivery: Delivery, critical: RequiredDeliveries | None) -> Hooks:
    """Make one observer in a lane of its own, so that a slow receiver does not delay other hooks."""
    bundle = Hooks(data.id, tenant_id=data.tenant_id)

    async def deliver(event: Event) -> None:
        failed: BaseException | None = None
        try:
            await delivery.publish([envelope_of(data, event)])
        except BaseException as error:
            failed = error
            raise
        finally:
            if critical is not None:
                critical.finished(data, failed)

    def note(event: Event) -> None:
        assert critical is not None
        critical.started(data)

    deliver_hook = Hook(
        id=data.id, type=data.type, tool=data.tool, handler=deliver, timeout=math.inf, revision=data.revision
    )
    bundle.observers = (deliver_hook,)
    if critical is not None:
        bundle.observers = (
            Hook(id=data.id, type=data.type, tool=data.tool, handler=note, revision=data.revision),
            deliver_hook,
        )
    return bundle


def envelope_of(data: HookData, event: Event) -> Envelope:
    """Make the envelope of an event for a hook."""
    return Envelope(
        id=f"msg_{os.urandom(16).hex()}",
        hook=data,
        operation_id=event.operation_id,
        tenant_id=event.tenant_id,
        payload=payload_of(data, msgspec.json.decode(encode(event))),
    )


def has_webhooks(hooks: Sequence[AnyHook]) -> bool:
    """Return whether any of the hooks has a webhook."""
    return bool(hooks) and any(isinstance(entry, Hook) and entry.webhook is not None for entry in hooks)
