"""Describe in words what an entry of the audit log records."""

from __future__ import annotations

from collections.abc import Container
from typing import Any
from urllib.parse import quote

import msgspec

from hookline.runtime import DECIDED
from hookline.server._audit import AuditEntry

__all__ = ["ACTIONS", "describe_change", "find_target"]

ACTIONS = {
    "approval.decide": "decided about a call",
    "definition.create": "created a hook",
    "definition.update": "changed a hook",
    "definition.enable": "enabled a hook",
    "definition.disable": "disabled a hook",
    "definition.reorder": "reordered a hook",
    "definition.revert": "restored a hook",
    "definition.delete": "deleted a hook",
    "delivery.retry": "retried a delivery",
    "delivery.replay": "replayed deliveries",
    "endpoint.enable": "enabled an endpoint",
    "endpoint.secret.create": "created a signing secret",
    "endpoint.secret.rotate": "rotated a signing secret",
    "endpoint.secret.revoke": "revoked a signing secret",
    "key.create": "created an API key",
    "key.rotate": "rotated an API key",
    "key.revoke": "revoked an API key",
    "master_key.rotate": "rotated the master key",
    "operation.interrupt": "interrupted an operation",
    "operation.retry": "retried an operation",
    "request.refused": "was refused a request",
    "sign_in.refused": "was refused to sign in",
}
"""Actions of the audit log, in words that follow the name of the actor."""
VIEWS = {
    "approval.": ("operations:read", "operations/{target}"),
    "operation.": ("operations:read", "operations/{target}"),
    "definition.": ("hooks:read", "hooks/{target}/history?tenant={tenant}"),
    "delivery.retry": ("operations:read", "deliveries/{target}"),
    "endpoint.": ("operations:read", "endpoints/one?url={url}&tenant={tenant}"),
    "key.": ("hooks:admin", "keys?text={target}"),
}
"""The scope and the address of the view that shows the object of an action, by the beginning of the action."""
MINUTE, HOUR, DAY = 60, 3600, 86_400


def describe_change(entry: AuditEntry) -> str:
    """Describe in a few words what a change was about; `""` if the target says it all."""
    detail, action = entry.detail, entry.action
    if action.startswith("definition."):
        changed = ", ".join(map(str, detail.get("changed") or ()))
        its = f"{detail.get('name', '')} ({detail.get('point', '')})"
        return f"{its}: {changed}" if changed and action == "definition.update" else its
    if action == "approval.decide":
        parts = [DECIDED.get(detail.get("decision", ""), ""), str(detail.get("tool", ""))]
        reason = str(detail.get("reason") or "")
        return " ".join(filter(None, [*parts, f"“{reason}”" if reason else ""]))
    if action == "key.create":
        return f"{detail.get('name', '')}: {', '.join(map(str, detail.get('scopes') or ()))}"
    if action == "key.rotate":
        return f"{detail.get('name', '')}: {_describe_overlap(detail)}"
    if action == "endpoint.secret.rotate":
        return f"{detail.get('url', '')}: {_describe_overlap(detail)}"
    if action.endswith(".refused"):
        count = detail.get("count", 1)
        times = "once" if count == 1 else f"{count} times"
        return f"{times}, status {detail.get('status', '')} ({detail.get('code', '')})"
    known = detail.get("name") or detail.get("url")
    if known:
        return str(known)
    return msgspec.json.encode(detail).decode() if detail else ""


def find_target(entry: AuditEntry, scopes: Container[str]) -> str:
    """Return the address, below that of the page, of the view that shows the target of a change.

    Args:
        entry: The entry of the audit log.
        scopes: The scopes of the reader.

    Returns:
        The address; `""` if no view shows the target, or the scopes do not allow to see it.
    """
    scope, place = next((view for begin, view in VIEWS.items() if entry.action.startswith(begin)), ("", ""))
    if not entry.target or scope not in scopes:
        return ""
    names = {"target": entry.target, "tenant": entry.tenant_id, "url": str(entry.detail.get("url") or entry.target)}
    return place.format_map({name: quote(value, safe="") for name, value in names.items()})


def _describe_overlap(detail: dict[str, Any]) -> str:
    seconds = detail.get("overlapSeconds") or 0
    if not seconds:
        return "the old one ended at once"
    amount, unit = next(
        ((seconds / size, name) for size, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")) if seconds >= size),
        (seconds, "s"),
    )
    return f"the old one still worked for {amount:g} {unit}"
