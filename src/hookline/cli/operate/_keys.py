"""`hookline keys`: create, list, rotate and revoke the keys of the HTTP API."""

from __future__ import annotations

from functools import partial
from time import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hookline.cli._commands import CommandApp, ListGroup
from hookline.cli._terminal import (
    Column,
    format_age,
    format_status,
    make_copyable,
    parse_option,
    parse_span,
    print_list,
    print_result,
    time_field,
)
from hookline.cli.errors import UnknownKeyError
from hookline.cli.operate._endpoints import rotate_master_key
from hookline.cli.operate._store import (
    DEFAULT_STORE,
    AsJson,
    Limit,
    StoreUrl,
    Tenant,
    actor,
    operate,
    read_pages,
)

if TYPE_CHECKING:
    from hookline.server import ApiKey, NewApiKey
    from hookline.store import SqlStore

__all__ = ["keys_app"]

LONGEST_NAME = 200

keys_app = CommandApp(name="keys", cls=ListGroup, help="Manage API keys, and the master key of secrets.")


@keys_app.command("list")
def list_keys(
    store: StoreUrl = DEFAULT_STORE, tenant: Tenant = None, limit: Limit = 50, as_json: AsJson = False
) -> None:
    """List API keys, including expired and revoked ones.

    The keys themselves are never shown.
    """

    async def look(store: SqlStore) -> Any:
        from hookline.server import KeyStore

        return await read_pages(partial(KeyStore(store).page, tenant), limit)

    found, more = operate(store, look)
    print_list(found, _columns(), as_json=as_json, nothing="There are no keys.", more=more)


@keys_app.command("create")
def create_key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for people.")],
    scope: Annotated[
        list[str],
        typer.Option(
            metavar="SCOPE",
            help="A scope of the key: hooks:read, hooks:manage, hooks:admin, operations:read, operations:manage, "
            "approvals:decide or "
            "deliveries:replay; repeatable.",
        ),
    ],
    tenant: Annotated[str, typer.Option(metavar="ID", help="The tenant that owns it; the system by default.")] = "",
    expires: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Expire after this time: 12h, 90d. Never by default.")
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Create an API key, and show it once: only its hash is stored."""
    lasts = _parse_expiry(expires)
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise typer.BadParameter(f"It must have 1 to {LONGEST_NAME} printable characters.", param_hint="'NAME'")

    async def create(store: SqlStore) -> NewApiKey:
        from hookline.server import SCOPES, KeyStore

        unknown = sorted(set(scope) - set(SCOPES))
        if unknown:
            known = ", ".join(SCOPES)
            raise typer.BadParameter(f"{unknown[0]!r} is not one of {known}.", param_hint="'--scope'")
        return await KeyStore(store).create(
            name=name,
            tenant_id=tenant,
            scopes=[each for each in SCOPES if each in scope],
            expires_in_seconds=lasts,
            actor=actor(),
        )

    _print_new_key(operate(store, create, creates=True), as_json=as_json)


def _print_new_key(made: NewApiKey, *, as_json: bool) -> None:
    shown = [
        ("id", made.id),
        ("name", made.name),
        ("tenant", make_copyable(made.tenant_id)),
        ("scopes", " ".join(made.scopes)),
        time_field("expires", made.expires_at),
        ("key", made.key),
    ]
    print_result(made, shown, as_json=as_json)
    if not as_json:
        typer.echo("Copy it now. It is not shown again.", err=True)


@keys_app.command("rotate")
def rotate_key(
    id: Annotated[str, typer.Argument(metavar="ID", help="The key, as `hookline keys list` shows it.")],  # noqa: A002
    overlap: Annotated[
        str, typer.Option(metavar="SPAN", help="How long the old key still works: 0s revokes it, 12h, 7d.")
    ] = "24h",
    expires: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="Expire after this time; by default, the lifetime of the old key."),
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Create a key in place of another one, and show it once.

    It has the same name, tenant and scopes. The old key still works for the overlap, so that the program that uses it
    has time to switch.
    """
    still = parse_option("--overlap", overlap, parse_span) or 0.0
    lasts = _parse_expiry(expires)

    async def rotate(store: SqlStore) -> NewApiKey:
        from hookline.server import KeyStore

        made = await KeyStore(store).rotate(id, tenant, overlap_seconds=still, expires_in_seconds=lasts, actor=actor())
        if made is None:
            raise UnknownKeyError(id)
        return made

    _print_new_key(operate(store, rotate), as_json=as_json)


@keys_app.command("revoke")
def revoke_key(
    id: Annotated[str, typer.Argument(metavar="ID", help="The key, as `hookline keys list` shows it.")],  # noqa: A002
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key: all processes refuse it within a second."""

    async def revoke(store: SqlStore) -> None:
        from hookline.server import KeyStore

        if not await KeyStore(store).revoke(id, tenant, actor=actor()):
            raise UnknownKeyError(id)

    operate(store, revoke)
    print_result({"id": id, "revoked": True}, f"Revoked {make_copyable(id)}.", as_json=as_json)


keys_app.command("rotate-master")(rotate_master_key)


def _parse_expiry(text: str | None) -> float | None:
    found = parse_option("--expires", text, parse_span)
    if found is not None and not 0 < found <= 1e9:
        raise typer.BadParameter("It must be longer than zero and shorter than 30 years.", param_hint="'--expires'")
    return found


def _state(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= time() else "active"


def _last_use(key: ApiKey) -> str:
    return "never" if key.last_used_at is None else format_age(key.last_used_at)


def _columns() -> list[Column[ApiKey]]:
    return [
        Column("id", lambda each: each.id),
        Column("state", lambda each: format_status(_state(each))),
        Column("name", lambda each: each.name, rank=1, cut=True),
        Column("tenant", lambda each: each.tenant_id, rank=2),
        Column("used", _last_use, rank=3, right=True),
        Column("age", lambda each: format_age(each.created_at), rank=4, right=True),
        Column("scopes", lambda each: " ".join(each.scopes), rank=5, cut=True),
    ]
