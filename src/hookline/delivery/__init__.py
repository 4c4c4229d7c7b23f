"""Send webhooks that are signed, retried and limited, and receive each of them once.

`hookline.delivery.Sender` and `Outbox` need the extra `server`; signatures, `WebhookGuard` and `InProcess` with
functions of the process do not.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from hookline.delivery._control_answers import check_known_keys as check_known_keys
from hookline.delivery._control_answers import find_misplaced_field as find_misplaced_field
from hookline.delivery._control_answers import parse_answer_object as parse_answer_object
from hookline.delivery._control_answers import read_answer as read_answer
from hookline.delivery._control_answers import read_host_answer as read_host_answer
from hookline.delivery._in_process import InProcess
from hookline.delivery._master_keys import MASTER_KEY as MASTER_KEY
from hookline.delivery._master_keys import MasterKeyError, MasterKeys
from hookline.delivery._master_keys import rotate_key_file as rotate_key_file
from hookline.delivery._master_keys import write_key_file as write_key_file
from hookline.delivery._receiving import WebhookGuard
from hookline.delivery._signing import ENVIRONMENT_KEY as ENVIRONMENT_KEY
from hookline.delivery._signing import (
    KeyRing,
    Verified,
    WebhookKeyError,
    WebhookVerificationError,
    generate_key,
    public_key,
    sign,
    verify,
)
from hookline.errors import MissingExtraError
from hookline.webhooks import ControlAnswer, Delivery, Envelope, HookData, Webhook

if TYPE_CHECKING:
    from hookline.delivery._endpoint_secrets import DAY as DAY
    from hookline.delivery._endpoint_secrets import LONGEST_OVERLAP as LONGEST_OVERLAP
    from hookline.delivery._endpoint_secrets import EndpointSecret, EndpointSecrets, NewEndpointSecret
    from hookline.delivery._endpoint_secrets import normalize_endpoint as normalize_endpoint
    from hookline.delivery._outbox import Outbox
    from hookline.delivery._sender import Sender, Sent

__all__ = [
    "ControlAnswer",
    "Delivery",
    "EndpointSecret",
    "EndpointSecrets",
    "Envelope",
    "HookData",
    "InProcess",
    "KeyRing",
    "MasterKeyError",
    "MasterKeys",
    "NewEndpointSecret",
    "Outbox",
    "Sender",
    "Sent",
    "Verified",
    "Webhook",
    "WebhookGuard",
    "WebhookKeyError",
    "WebhookVerificationError",
    "default_delivery",
    "generate_key",
    "public_key",
    "sign",
    "verify",
]

_HOMES = {
    "DAY": "_endpoint_secrets",
    "LONGEST_OVERLAP": "_endpoint_secrets",
    "EndpointSecret": "_endpoint_secrets",
    "EndpointSecrets": "_endpoint_secrets",
    "NewEndpointSecret": "_endpoint_secrets",
    "normalize_endpoint": "_endpoint_secrets",
    "Outbox": "_outbox",
    "Sender": "_sender",
    "Sent": "_sender",
}
"""Names that need the extra `server`, and the modules from which they are imported at their first use."""


def default_delivery() -> InProcess:
    """Return the delivery of a run that was given none, configured by environment variables.

    `HOOKLINE_WEBHOOK_KEY` holds the signing keys, newest first, separated by spaces. `HOOKLINE_WEBHOOK_ALLOW_PRIVATE`
    holds the private networks that may be reached, separated by commas.

    Raises:
        WebhookKeyError: If a key cannot be read.
        HookDefinitionError: If a network cannot be read.
    """
    return InProcess(keys=KeyRing.from_environment(), allow_private=networks_from_environment())


def networks_from_environment() -> list[str]:
    """Return the private networks of `HOOKLINE_WEBHOOK_ALLOW_PRIVATE`, as they are written there."""
    given = os.environ.get("HOOKLINE_WEBHOOK_ALLOW_PRIVATE", "").split(",")
    return [network.strip() for network in given if network.strip()]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'hookline.delivery' has no attribute {name!r}")
        try:
            module = importlib.import_module(f"hookline.delivery.{_HOMES[name]}")
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("hookline"):
                raise
            raise MissingExtraError("server", f"hookline.delivery.{name}") from error
        value = globals()[name] = getattr(module, name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
