"""What a definition that came by a request may not do, although a file of the operator may."""

from collections.abc import Container
from urllib.parse import urlsplit

from hookline.registry._definition import HookDefinition
from hookline.registry._errors import DefinitionError

__all__ = ["check_request"]


def check_request(definition: HookDefinition, variables: Container[str]) -> None:
    """Refuse a webhook that would reach into the process that delivers it.

    A header could carry any variable of the environment to a receiver of the tenant's choice; a named key could sign
    for somebody else; and a function that is served in the process expects its own callers.

    Args:
        definition: What came.
        variables: Variables of the environment that headers may name.

    Raises:
        DefinitionError: That says what is not allowed.
    """
    webhook = definition.webhook
    if webhook is None:
        return
    for name in webhook.allowed_env_vars:
        if name not in variables:
            raise DefinitionError(
                "webhook_refused",
                "$.webhook.allowedEnvVars",
                f"{name!r:.100} is no variable that headers may name here; the operator allows them by `webhook_env`",
            )
    if not definition.tenant_id:
        return
    if webhook.allowed_env_vars:
        raise DefinitionError(
            "webhook_refused",
            "$.webhook.allowedEnvVars",
            "only a system hook sends variables of the environment; a tenant could send them to itself",
        )
    if webhook.key:
        raise DefinitionError("webhook_refused", "$.webhook.key", "only a system hook names a key; leave `key` out")
    if urlsplit(webhook.url).scheme == "local":
        raise DefinitionError("webhook_refused", "$.webhook.url", "only a system hook is delivered to local://")
