"""`hookline endpoints`: list, rotate and revoke the secrets that sign deliveries to webhooks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from hookline.cli._commands import CommandApp, ListGroup
from hookline.cli._terminal import (
    Column,
    format_age,
    format_full_time,
    make_copyable,
    parse_option,
    parse_span,
    print_list,
    print_result,
)
from hookline.cli.errors import UnknownSecretError
from hookline.cli.operate._store import DEFAULT_STORE, AsJson, StoreUrl, Tenant, actor, operate

if TYPE_CHECKING:
    from hookline.delivery import EndpointSecret, EndpointSecrets, NewEndpointSecret
    from hookline.store import SqlStore

__all__ = ["MasterKeyFile", "endpoints_app", "open_secrets", "rotate_master_key"]

T = TypeVar("T")

endpoints_app = CommandApp(name="endpoints", cls=ListGroup, help="Manage the secrets that sign deliveries to webhooks.")

MasterKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--master-key-file",
        metavar="FILE",
        help="The file of the master key. By default HOOKLINE_MASTER_KEY, or hookline.key beside an SQLite file.",
    ),
]


@endpoints_app.command("list")
def list_secrets(
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    url: Annotated[str | None, typer.Option(metavar="URL", help="Only of this URL.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the signing secrets in use. The secrets themselves are never shown."""

    async def look(store: SqlStore) -> list[EndpointSecret]:
        from hookline.delivery import EndpointSecrets, KeyRing

        return await EndpointSecrets(store, None, environment=KeyRing()).page(tenant, url=url)

    found = operate(store, look)
    print_list(
        found,
        _columns(),
        as_json=as_json,
        nothing="There are no secrets yet; the first delivery to an endpoint creates one.",
    )


@endpoints_app.command("rotate")
def rotate(
    url: Annotated[str, typer.Argument(metavar="URL", help="The URL of the endpoint.")],
    tenant: Annotated[str, typer.Option(metavar="ID", help="The tenant that owns it; the system by default.")] = "",
    overlap: Annotated[
        str, typer.Option(metavar="SPAN", help="How long the older secrets keep signing: 0s, 12h, 7d.")
    ] = "24h",
    store: StoreUrl = DEFAULT_STORE,
    master_key_file: MasterKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Create a new secret for an endpoint, and show it once.

    Older secrets keep signing for the overlap, so that the receiver has time to switch.
    """
    lasts = parse_option("--overlap", overlap, parse_span) or 0.0

    async def work(secrets: EndpointSecrets) -> NewEndpointSecret:
        return await secrets.rotate(tenant, url, overlap_seconds=lasts, actor=actor())

    made = operate(store, open_secrets(store, master_key_file, work))
    shown = [
        ("id", made.id),
        ("url", make_copyable(made.url)),
        ("tenant", make_copyable(made.tenant_id)),
        ("secret", made.secret or ""),
    ]
    print_result(made, shown, as_json=as_json)
    if not as_json:
        typer.echo("Give it to the receiver now. It is not shown again.", err=True)


@endpoints_app.command("revoke")
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="The secret, as `hookline endpoints list` shows it.")],  # noqa: A002
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a secret: within a second, nothing is signed with it."""

    async def work(store: SqlStore) -> None:
        from hookline.delivery import EndpointSecrets, KeyRing

        if not await EndpointSecrets(store, None, environment=KeyRing()).revoke(id, tenant, actor=actor()):
            raise UnknownSecretError(id)

    operate(store, work)
    print_result({"id": id, "revoked": True}, f"Revoked {make_copyable(id)}.", as_json=as_json)


def open_secrets(
    url: str, master_key_file: Path | None, work: Callable[[EndpointSecrets], Awaitable[T]]
) -> Callable[[SqlStore], Awaitable[T]]:
    """Return work for `operate` that opens the signing secrets of a store, as a server does, and passes them on."""

    async def work_with_secrets(store: SqlStore) -> T:
        from hookline.delivery import EndpointSecrets, KeyRing, MasterKeys
        from hookline.server import default_key_file

        master = None if master_key_file is not None else MasterKeys.from_environment()
        if master is None:
            file = master_key_file or default_key_file(url)
            assert file is not None  # a store in memory was refused
            fresh = await EndpointSecrets(store, None, environment=KeyRing()).is_fresh()
            master = MasterKeys.in_file(file) if fresh else MasterKeys.from_file(file)
        secrets = EndpointSecrets(store, master, environment=KeyRing())
        await secrets.open()
        return await work(secrets)

    return work_with_secrets


def rotate_master_key(
    store: StoreUrl = DEFAULT_STORE, master_key_file: MasterKeyFile = None, as_json: AsJson = False
) -> None:
    """Encrypt all signing secrets again, with a new master key.

    A key in a file is replaced, and servers that use the file need no restart. If keys are in HOOKLINE_MASTER_KEY, put
    the new key before the old one, restart each process, run this command, then remove the old key.
    """

    async def work(secrets: EndpointSecrets) -> int:
        from hookline.delivery import MasterKeys, rotate_key_file, write_key_file

        master = secrets.master
        assert isinstance(master, MasterKeys)
        if master.file is None:
            return await secrets.rewrap(actor=actor())
        # The new key is in the file before anything is encrypted under it, and the old one until nothing is any more.
        secrets.master, new = rotate_key_file(master.file)
        count = await secrets.rewrap(actor=actor())
        write_key_file(master.file, new)
        return count

    count = operate(store, open_secrets(store, master_key_file, work))
    print_result(
        {"count": count},
        f"{count:,} {'secret is' if count == 1 else 'secrets are'} encrypted with the newest master key.",
        as_json=as_json,
    )


def _columns() -> list[Column[EndpointSecret]]:
    return [
        Column("id", lambda each: each.id),
        Column("url", lambda each: each.url, rank=1, cut=True),
        Column("tenant", lambda each: each.tenant_id, rank=2),
        Column("source", lambda each: each.source, rank=4),
        Column("ends", lambda each: "" if each.expires_at is None else format_full_time(each.expires_at), rank=3),
        Column("age", lambda each: format_age(each.created_at), rank=5, right=True),
    ]
