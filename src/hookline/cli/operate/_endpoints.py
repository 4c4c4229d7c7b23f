"""`hookline endpoints`: the secrets that sign what webhooks are sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from hookline.cli.errors import UnknownSecretError
from hookline.cli.operate._operate import DEFAULT_STORE, AsJson, ListsUnlessTold, StoreUrl, Tenant, actor, operate
from hookline.cli.operate._tables import Column, as_lines, copied, fields, listed, one_line
from hookline.cli.operate._times import age, seconds, when

if TYPE_CHECKING:
    from hookline.delivery import EndpointSecret, EndpointSecrets, NewEndpointSecret
    from hookline.store import SqlStore

__all__ = ["MasterKeyFile", "endpoints_app", "rotate_master_key", "with_secrets"]

T = TypeVar("T")

endpoints_app = typer.Typer(
    name="endpoints", cls=ListsUnlessTold, help="Look after the secrets that sign what webhooks are sent."
)

MasterKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--master-key-file",
        metavar="FILE",
        help="Holds the master key. Unless given, it is HOOKLINE_MASTER_KEY, or hookline.key beside an SQLite file.",
    ),
]


@endpoints_app.command("list")
def list_secrets(
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    url: Annotated[str | None, typer.Option(metavar="URL", help="Only of this address.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the secrets that sign by now; never what they are."""

    async def look(store: SqlStore) -> list[EndpointSecret]:
        from hookline.delivery import EndpointSecrets, KeyRing

        return await EndpointSecrets(store, None, environment=KeyRing()).page(tenant, url=url)

    found = operate(store, look)
    if as_json:
        as_lines(found)
    else:
        listed(found, _columns(), more=False, nothing="There are no secrets: they are made when something is sent.")


@endpoints_app.command("rotate")
def rotate(
    url: Annotated[str, typer.Argument(metavar="URL", help="The address of the endpoint.")],
    tenant: Annotated[str, typer.Option(metavar="ID", help="Whose it is; the system's unless given.")] = "",
    overlap: Annotated[
        str, typer.Option(metavar="SPAN", help="For how long the secrets of before go on signing: 0s, 12h, 7d.")
    ] = "24h",
    store: StoreUrl = DEFAULT_STORE,
    master_key_file: MasterKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a new secret for an endpoint, and show it this once. Its receiver has the overlap to go over to it."""
    try:
        lasts = seconds(overlap)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--overlap'") from None

    async def work(secrets: EndpointSecrets) -> NewEndpointSecret:
        return await secrets.rotate(tenant, url, overlap_seconds=lasts, actor=actor())

    made = operate(store, with_secrets(store, master_key_file, work))
    if as_json:
        as_lines([made])
        return
    fields(
        [
            ("id", made.id),
            ("url", copied(made.url)),
            ("tenant", copied(made.tenant_id)),
            ("secret", made.secret or ""),
        ]
    )
    typer.echo("Give it to the receiver now: it is not shown again.", err=True)


@endpoints_app.command("revoke")
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="The secret, as `hookline endpoints list` shows it.")],  # noqa: A002
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """End a secret, in every process within a second."""

    async def work(store: SqlStore) -> None:
        from hookline.delivery import EndpointSecrets, KeyRing

        if not await EndpointSecrets(store, None, environment=KeyRing()).revoke(id, tenant, actor=actor()):
            raise UnknownSecretError(id)

    operate(store, work)
    if as_json:
        as_lines([{"id": id, "revoked": True}])
    else:
        typer.echo(f"Revoked {copied(id)}.")


def with_secrets(
    url: str, master_key_file: Path | None, work: Callable[[EndpointSecrets], Awaitable[T]]
) -> Callable[[SqlStore], Awaitable[T]]:
    """Something to do with the secrets of a store, opened as a server opens them."""

    async def opened(store: SqlStore) -> T:
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

    return opened


def rotate_master_key(
    store: StoreUrl = DEFAULT_STORE, master_key_file: MasterKeyFile = None, as_json: AsJson = False
) -> None:
    """Encrypt the signing secrets of endpoints anew, under a new master key.

    A key in a file is replaced there; servers that use the file go on without a restart. Keys in HOOKLINE_MASTER_KEY
    stand there newest first: put the new one before the old one, restart each process, run this, and take the old one
    out.
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

    count = operate(store, with_secrets(store, master_key_file, work))
    if as_json:
        as_lines([{"count": count}])
    else:
        typer.echo(f"{count:,} {'secret is' if count == 1 else 'secrets are'} encrypted under the newest master key.")


def _columns() -> list[Column[EndpointSecret]]:
    return [
        Column(name="id", cell=lambda each: each.id),
        Column(name="url", cell=lambda each: one_line(each.url), rank=1, cut=True),
        Column(name="tenant", cell=lambda each: copied(each.tenant_id), rank=2),
        Column(name="source", cell=lambda each: each.source, rank=4),
        Column(name="ends", cell=lambda each: "" if each.expires_at is None else when(each.expires_at), rank=3),
        Column(name="age", cell=lambda each: age(each.created_at), rank=5, right=True),
    ]
