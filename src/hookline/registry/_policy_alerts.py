"""`PolicyAlert`: what the watch over policies has found, as it is kept in the store."""

from typing import Literal, TypeAlias

import msgspec
from sqlalchemy import select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.signals import DenialRateAlert, FallbackAlert
from hookline.store import Page, encode_cursor, insert_into, parse_cursor, policy_alerts

__all__ = ["ALERT_KINDS", "Alert", "AlertKind", "PolicyAlert", "kind_of", "read_alerts", "write_alert"]

Alert: TypeAlias = DenialRateAlert | FallbackAlert
AlertKind: TypeAlias = Literal["fallback", "rate"]
ALERT_KINDS: tuple[AlertKind, ...] = ("fallback", "rate")
_decode = msgspec.json.Decoder(Alert).decode


class PolicyAlert(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An alert of a policy that was raised, by whatever process.

    Attributes:
        kind: `"fallback"`: the hook was put into shadow mode by its limits. `"rate"`: the share of calls that the
            shadow hook would deny has changed.
        created_at: When it was raised, in unix seconds.
        message: The figures as a sentence.
        alert: The figures.
    """

    kind: AlertKind
    created_at: float
    message: str
    alert: Alert


def kind_of(alert: Alert) -> AlertKind:
    """Return the kind of an alert."""
    return "rate" if isinstance(alert, DenialRateAlert) else "fallback"


async def write_alert(connection: AsyncConnection, alert: Alert, *, until: int, now: float) -> bool:
    """Write an alert, and return whether no other process had written it."""
    row = {
        "tenant_id": alert.tenant_id,
        "id": alert.definition_id,
        "revision": alert.revision,
        "until": until,
        "kind": kind_of(alert),
        "alert": msgspec.json.encode(alert),
        "sent": False,
        "created_at": now,
    }
    written = await connection.execute(insert_into(connection, policy_alerts).values(**row).on_conflict_do_nothing())
    return written.rowcount == 1


async def read_alerts(
    connection: AsyncConnection,
    tenant_id: str | None,
    *,
    hook_id: str | None,
    since: float | None,
    cursor: str | None,
    limit: int,
) -> Page[PolicyAlert]:
    """Read a page of alerts, newest first; for `tenant_id=None` those of all tenants."""
    its = policy_alerts.c
    # Several processes may raise alerts at the same time, so that the time alone does not order them.
    order = (its.created_at, its.tenant_id, its.id, its.revision, its.until)
    query = select(its.kind, its.alert, *order)
    if tenant_id is not None:
        query = query.where(its.tenant_id == tenant_id)
    if hook_id is not None:
        query = query.where(its.id == hook_id)
    if since is not None:
        query = query.where(its.created_at >= since)
    if cursor is not None:
        query = query.where(tuple_(*order) < tuple_(*parse_cursor(cursor, tuple[float, str, str, int, int])))
    query = query.order_by(*(column.desc() for column in order)).limit(limit + 1)
    rows = (await connection.execute(query)).all()
    found = []
    for row in rows[:limit]:
        alert = _decode(row.alert)
        found.append(PolicyAlert(kind=row.kind, created_at=row.created_at, message=alert.describe(), alert=alert))
    return Page(items=found, cursor=encode_cursor(tuple(rows[limit - 1][2:])) if len(rows) > limit else None)
