"""Controls: receivers in other processes that decide about tool calls, as interceptors."""

from __future__ import annotations

import os

import msgspec

from hookline._readonly import read_only
from hookline.calls import Ask, Deny, Respond, ToolCall
from hookline.errors import DeliveryError
from hookline.events import BeforeToolCall, encode
from hookline.hooks import ControlInterceptor, Interceptor
from hookline.webhooks import ControlAnswer, Delivery, Envelope, HookData, payload_of

__all__ = ["interceptor_of"]

SPARE_SECONDS = 1.0
"""How much later than the request its hook times out, so that the delivery says what happened."""


def interceptor_of(hook: HookData, delivery: Delivery) -> Interceptor:
    """The interceptor that asks the receiver of a control before each tool call.

    Args:
        hook: The hook; its webhook is a control.
        delivery: Carries the question and the answer.
    """

    async def ask_receiver(call: ToolCall) -> ToolCall | Respond | Deny | Ask | None:
        envelope = Envelope(
            id=f"msg_{os.urandom(16).hex()}",  # a question that is asked anew may be answered otherwise
            hook=hook,
            operation_id=call.operation_id,
            tenant_id=call.tenant_id,
            payload=payload_of(hook, msgspec.json.decode(encode(_event_of(call)))),
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
    )


def decision_of(hook: HookData, call: ToolCall, answer: ControlAnswer) -> ToolCall | Respond | Deny | Ask | None:
    """What an answer means for a call.

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
    if answer.decision == "deny":
        return Deny(answer.reason or f"Denied by {hook.id}.", stop=answer.stop)
    if answer.decision == "ask":
        return Ask(answer.reason or f"{hook.id} wants a person to decide.")
    if answer.decision == "answer":
        return Respond(answer.result)
    return None if answer.args is None else msgspec.structs.replace(call, args=read_only(answer.args))


def _event_of(call: ToolCall) -> BeforeToolCall:
    return BeforeToolCall(
        operation_id=call.operation_id,
        agent_id=call.agent_id,
        user_id=call.user_id,
        tenant_id=call.tenant_id,
        identifier=call.identifier,
        api_name=call.api_name,
        args=call.args,
        call_index=call.call_index,
        step_index=call.step_index,
        tool_call_id=call.tool_call_id,
    )
