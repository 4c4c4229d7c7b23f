"""`hookline keys`: who may ask the HTTP API, and for what."""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hookline.cli.errors import UnknownKeyError
from hookline.cli.operate._operate import (
    DEFAULT_STORE,
    AsJson,
    Limit,
    ListsUnlessTold,
    StoreUrl,
    Tenant,
    actor,
    collected,
    operate,
)
from hookline.cli.operate._tables import Column, as_lines, copied, fields, listed, one_line, status, timed
from hookline.cli.operate._times import age, seconds

if TYPE_CHECKING:
    from hookline.server import ApiKey, NewApiKey
    from hookline.store import SqlStore

__all__ = ["keys_app"]

LONGEST_NAME = 200

keys_app = typer.Typer(name="keys", cls=ListsUnlessTold, help="Look after the keys of the HTTP API.")


@keys_app.command("create")
def create_key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What people call it.")],
    scope: Annotated[
        list[str],
        typer.Option(
            metavar="SCOPE",
            help="What it allows: hooks:read, hooks:manage, hooks:admin, operations:read, approvals:decide or "
            "deliveries:replay; may be repeated.",
        ),
    ],
    tenant: Annotated[str, typer.Option(metavar="ID", help="Whose it is; the system's unless given.")] = "",
    expires: Annotated[
        str | None, typer.Option(metavar="SPAN", help="After which it ends by itself: 12h, 90d. Never unless given.")
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Make a key, and show it this once: it is stored nowhere."""
    lasts = _span(expires)
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise typer.BadParameter(f"It has 1 to {LONGEST_NAME} printable characters.", param_hint="'NAME'")

    async def create(store: SqlStore) -> NewApiKey:
        from hookline.server import SCOPES, KeyStore

        unknown = sorted(set(scope) - set(SCOPES))
        if unknown:
            known = ", ".join(SCOPES)
            raise typer.BadParameter(f"{unknown[0]!r} is none of {known}.", param_hint="'--scope'")
        return await KeyStore(store).create(
            name=name,
            tenant_id=tenant,
            scopes=[each for each in SCOPES if each in scope],
            expires_in_seconds=lasts,
            actor=actor(),
        )

    made = operate(store, create, creates=True)
    if as_json:
        as_lines([made])
        return
    fields(
        [
            ("id", made.id),
            ("name", made.name),
            ("tenant", copied(made.tenant_id)),
            ("scopes", " ".join(made.scopes)),
            timed("expires", made.expires_at),
            ("key", made.key),
        ]
    )
    typer.echo("Keep it now: it is not shown again.", err=True)


@keys_app.command("list")
def list_keys(
    store: StoreUrl = DEFAULT_STORE, tenant: Tenant = None, limit: Limit = 50, as_json: AsJson = False
) -> None:
    """List keys, those that have ended too; never what they are."""

    async def look(store: SqlStore) -> Any:
        from hookline.server import KeyStore

        keys = KeyStore(store)
        return await collected(lambda cursor, length: keys.page(tenant, cursor=cursor, limit=length), limit)

    found, more = operate(store, look)
    if as_json:
        as_lines(found)
    else:
        listed(found, _columns(), more=more, nothing="There are no keys.")


@keys_app.command("revoke")
def revoke_key(
    id: Annotated[str, typer.Argument(metavar="ID", help="The key, as `hookline keys list` shows it.")],  # noqa: A002
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """End a key, in every process within a second."""

    async def revoke(store: SqlStore) -> None:
        from hookline.server import KeyStore

        if not await KeyStore(store).revoke(id, tenant, actor=actor()):
            raise UnknownKeyError(id)

    operate(store, revoke)
    if as_json:
        as_lines([{"id": id, "revoked": True}])
    else:
        typer.echo(f"Revoked {copied(id)}.")


def _span(text: str | None) -> float | None:
    try:
        found = None if text is None else seconds(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--expires'") from None
    if found is not None and not 0 < found <= 1e9:
        raise typer.BadParameter("It is longer than nothing, and shorter than 30 years.", param_hint="'--expires'")
    return found


def _state(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= time() else "active"


def _used(key: ApiKey) -> str:
    return "never" if key.last_used_at is None else age(key.last_used_at)


def _columns() -> list[Column[ApiKey]]:
    return [
        Column(name="id", cell=lambda each: each.id),
        Column(name="state", cell=lambda each: status(_state(each))),
        Column(name="name", cell=lambda each: one_line(each.name), rank=1, cut=True),
        Column(name="tenant", cell=lambda each: copied(each.tenant_id), rank=2),
        Column(name="used", cell=_used, rank=3, right=True),
        Column(name="age", cell=lambda each: age(each.created_at), rank=4, right=True),
        Column(name="scopes", cell=lambda each: " ".join(each.scopes), rank=5, cut=True),
    ]
