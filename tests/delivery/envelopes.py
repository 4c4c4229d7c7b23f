"""Deliveries to send."""

from __future__ import annotations

from typing import Any

from hookline.delivery import Envelope, HookData, Webhook
from hookline.events import HookType

PAYLOAD = b'{"type":"onComplete","operationId":"op-1","hookId":"told"}'


def envelope_to(
    url: str, *, delivery: str = "msg_1", payload: bytes = PAYLOAD, hook_id: str = "told", **webhook: Any
) -> Envelope:
    """A delivery to a URL; whatever else is given is of its webhook."""
    kind = HookType.BEFORE_TOOL_CALL if webhook.get("control") else HookType.ON_COMPLETE
    hook = HookData(id=hook_id, type=kind, webhook=Webhook(url=url, **webhook))
    return Envelope(id=delivery, hook=hook, operation_id="op-1", payload=payload)
