"""`EndpointSecrets`: what signs the deliveries to each endpoint, which knows the secret of no other.

An endpoint is an address of one tenant. Its secrets are made by the server, shown once, and stored encrypted.
"""

from __future__ import annotations

import asyncio
import math
import os
from time import monotonic
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from sqlalchemy import Row, delete, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.delivery._master_keys import MASTER_KEY, MasterKeyError, MasterKeys
from hookline.delivery._signing import KeyRing, generate_key
from hookline.errors import HookUsageError
from hookline.store import SqlStore, after_commit, audit, endpoint_secrets, is_storable, master_keys, revisions
from hookline.webhooks import HookData

__all__ = ["EndpointSecret", "EndpointSecrets", "NewEndpointSecret", "normal_endpoint"]

FRESH_SECONDS = 0.5
"""For how long what was read counts, so that a revoked secret signs nothing after a second, reading included."""
REMEMBERED = 10_000
MOST = 5
"""Secrets of one endpoint that sign at a time; the oldest go. Receivers refuse headers with very many signatures."""
DAY = 86_400.0
LONGEST_OVERLAP = 366 * DAY
COUNTER = "secrets"
ENVIRONMENT = "environment"
"""In the place of a master key: the unnamed key of the environment signs too, as it did before."""
CURRENT = "current"
DEFAULT_PORTS = {"http": ":80", "https": ":443"}

# Whoever counts up holds the row until the transaction ends: secrets are made and changed by one at a time, and all
# processes see that something has changed.
TURN = text(
    "INSERT INTO revisions (name, revision) VALUES (:name, 1) "
    "ON CONFLICT (name) DO UPDATE SET revision = revisions.revision + 1"
)


class EndpointSecret(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A secret that signs deliveries to an endpoint, without what it is.

    Attributes:
        id: Its id.
        tenant_id: Whose endpoint it is; `""` is the system.
        url: The address.
        source: `"own"`: made for this endpoint. `"environment"`: the key that signed for all endpoints before they had
            secrets of their own.
        shown: Whether somebody was shown it.
        created_at: When it was made, in unix seconds.
        expires_at: When it stops signing, in unix seconds; `None` if it goes on.
    """

    id: str
    tenant_id: str
    url: str
    source: Literal["own", "environment"]
    shown: bool
    created_at: float
    expires_at: float | None


class NewEndpointSecret(EndpointSecret, frozen=True, kw_only=True, rename="camel"):
    """A secret that was just made.

    Attributes:
        secret: The secret (`whsec_...`), which is shown this once; `None` where the answer to a request is repeated.
    """

    secret: str | None

    def __repr__(self) -> str:
        return f"NewEndpointSecret({self.id!r})"


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """What signs for an endpoint, each with its end by `time.monotonic`."""

    own: tuple[tuple[str, float], ...]
    environment_ends: float


class EndpointSecrets:
    """The secrets of endpoints in a store.

    Args:
        store: Where they are.
        master: What encrypts them; without it, endpoints that have secrets get nothing from this process.
        environment: Keys of the environment: those that hooks name, and the unnamed one, which signs for hooks of the
            system, and for endpoints of tenants as long as these are on their way from it to their own.
    """

    def __init__(self, store: SqlStore, master: MasterKeys | None, *, environment: KeyRing) -> None:
        self._store = store
        self.master = master
        self.environment = environment
        self._known: dict[tuple[str, str], _Known] = {}
        self._rings: dict[tuple[str, ...], KeyRing] = {}
        self._revision = -1
        self._looked = -math.inf
        self._has_master = False
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        """Make sure that the master key is that of the database; the first one that comes is.

        Raises:
            MasterKeyError: If it is another one, or there is none although the database has secrets.
            StoreUnavailableError: If the database cannot be reached.
        """
        async with self._store.reading() as connection:
            current = await _current(connection)
        if current is None and self.master is not None:
            async with self._store.writing() as connection:
                await connection.execute(TURN, {"name": COUNTER})
                await self._sealing_key(connection)
        elif current is not None:
            self._check(current)

    async def is_fresh(self) -> bool:
        """Whether no master key has been used on the database yet, so that a new one harms nothing.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        async with self._store.reading() as connection:
            return await _current(connection) is None

    async def ring_of(self, hook: HookData) -> tuple[KeyRing, str]:
        """What signs deliveries of a hook, and by which name.

        A hook that names a key gets that of the environment. A hook of a tenant gets the secret of its endpoint, which
        is made if there is none. So does a hook of the system; the unnamed key of the environment signs for that too.

        Raises:
            MasterKeyError: If the secret cannot be decrypted here. The delivery has to wait.
            StoreUnavailableError: If the database cannot be reached.
        """
        if hook.webhook.key:
            return self.environment, hook.webhook.key
        place = hook.tenant_id, normal_endpoint(hook.webhook.url)
        live, by_environment = await self._live(place)
        if self.master is None:
            if live or (place[0] and self._has_master):
                raise MasterKeyError(
                    "endpoints have secrets of their own in this database, and this process has no master key; set "
                    f"{MASTER_KEY} to that of the server"
                )
            return self.environment, ""
        if not live and (place[0] or not by_environment):
            await self._make_first(place)
            live, by_environment = await self._live(place)
        return self._ring(live, by_environment=by_environment), ""

    async def rotate(
        self, tenant_id: str, url: str, *, overlap_seconds: float = DAY, actor: str = ""
    ) -> NewEndpointSecret:
        """Make a new secret for an endpoint. Those that sign by now go on for a while, so that receivers can follow.

        Args:
            tenant_id: Whose endpoint it is; `""` is the system.
            url: The address.
            overlap_seconds: For how long the others go on; 0 ends them at once. Secrets that nobody was shown end at
                once in any case.
            actor: Who does it, for the audit.

        Raises:
            HookUsageError: If the address or the overlap makes no sense.
            MasterKeyError: If the master key is missing, or another one than that of the database.
            StoreUnavailableError: If the database cannot be reached.
        """
        endpoint = normal_endpoint(url)
        if not is_storable(endpoint) or urlsplit(endpoint).scheme not in DEFAULT_PORTS or len(endpoint) > 2100:
            raise HookUsageError("The address of an endpoint begins with http:// or https://.")
        if isinstance(overlap_seconds, bool) or not 0 <= overlap_seconds <= LONGEST_OVERLAP:
            raise HookUsageError(f"`overlap_seconds` is 0 to {LONGEST_OVERLAP:.0f}; got {overlap_seconds!r}.")
        column = endpoint_secrets.c
        here = (column.tenant_id == tenant_id) & (column.endpoint == endpoint)
        async with self._store.writing() as connection:
            await connection.execute(TURN, {"name": COUNTER})
            now = await self._now(connection)
            end = now + overlap_seconds
            gone = column.expires_at.is_not(None) & (column.expires_at <= now)
            unseen = here & column.shown.is_(False)
            await connection.execute(delete(endpoint_secrets).where(gone | unseen if overlap_seconds else gone | here))
            later = here & (column.expires_at.is_(None) | (column.expires_at > end))
            await connection.execute(update(endpoint_secrets).where(later).values(expires_at=end))
            others = select(column.id).where(here).order_by(column.created_at.desc(), column.id).offset(MOST - 1)
            old = list((await connection.execute(others)).scalars())
            if old:
                await connection.execute(delete(endpoint_secrets).where(column.id.in_(old)))
            made = await self._insert(connection, (tenant_id, endpoint), now=now, shown=True)
            detail = {"url": endpoint, "overlapSeconds": overlap_seconds}
            await _note(connection, tenant_id, actor, "endpoint.secret.rotate", made.id, now=now, detail=detail)
            after_commit(connection, self._look_again)
        return made

    async def page(self, tenant_id: str | None, *, url: str | None = None) -> list[EndpointSecret]:
        """The secrets of endpoints that sign by now, without what they are, the newest first for each endpoint.

        Args:
            tenant_id: Only those of this tenant; `""` is the system.
            url: Only those of this address.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        column = endpoint_secrets.c
        lasting = column.expires_at.is_(None) | (column.expires_at > self._store.now_sql())
        query = select(endpoint_secrets).where(lasting).order_by(column.tenant_id, column.endpoint)
        query = query.order_by(column.created_at.desc(), column.id)
        if tenant_id is not None:
            query = query.where(column.tenant_id == tenant_id)
        if url is not None:
            query = query.where(column.endpoint == normal_endpoint(url))
        async with self._store.reading() as connection:
            return [_shown(row) for row in await connection.execute(query)]

    async def revoke(self, id: str, tenant_id: str | None = None, *, actor: str = "") -> bool:  # noqa: A002
        """End a secret: within a second no process signs with it any more.

        An endpoint without any gets a new one with the next delivery, which its receiver does not know until `rotate`
        has shown it one.

        Args:
            id: Which.
            tenant_id: Only if it is this tenant's.
            actor: Who does it, for the audit.

        Returns:
            Whether there was such a secret.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        its = endpoint_secrets.c.id == id
        if tenant_id is not None:
            its = its & (endpoint_secrets.c.tenant_id == tenant_id)
        async with self._store.writing() as connection:
            await connection.execute(TURN, {"name": COUNTER})
            row = (await connection.execute(select(endpoint_secrets).where(its))).first()
            if row is None:
                return False
            await connection.execute(delete(endpoint_secrets).where(its))
            now = await self._now(connection)
            detail = {"url": row.endpoint}
            await _note(connection, row.tenant_id, actor, "endpoint.secret.revoke", id, now=now, detail=detail)
            after_commit(connection, self._look_again)
        return True

    async def rewrap(self, *, actor: str = "") -> int:
        """Encrypt all secrets anew, under the newest of the master keys.

        Returns:
            How many there are.

        Raises:
            MasterKeyError: If one cannot be decrypted with any of them; nothing is changed then.
            StoreUnavailableError: If the database cannot be reached.
        """
        master = self._demand()
        async with self._store.writing() as connection:
            await connection.execute(TURN, {"name": COUNTER})
            current = await _current(connection)
            if current is not None:
                self._check(current)
            new = master.ids[0]
            rows = (
                await connection.execute(select(endpoint_secrets).where(endpoint_secrets.c.sealed.is_not(None)))
            ).all()
            for row in rows:
                about = _about(row.id, row.tenant_id, row.endpoint)
                sealed = master.seal(new, master.unseal(row.key_id, row.sealed, about), about)
                changed = update(endpoint_secrets).where(endpoint_secrets.c.id == row.id)
                await connection.execute(changed.values(key_id=new, sealed=sealed))
            await connection.execute(delete(master_keys).where(master_keys.c.name == CURRENT))
            await connection.execute(insert(master_keys).values(name=CURRENT, key_id=new))
            detail = {"from": current, "to": new, "count": len(rows)}
            await _note(connection, "", actor, "master_key.rotate", new, now=await self._now(connection), detail=detail)
        return len(rows)

    async def _live(self, place: tuple[str, str]) -> tuple[tuple[str, ...], bool]:
        """The secrets that sign for an endpoint now, and whether the unnamed key of the environment does too."""
        known, now = await self._find(place), monotonic()
        by_environment = self.environment.signs() and (not place[0] or known.environment_ends > now)
        return tuple(secret for secret, ends in known.own if ends > now), by_environment

    async def _find(self, place: tuple[str, str]) -> _Known:
        """What is known of an endpoint, looked up if it is not known or not fresh."""
        if monotonic() - self._looked < FRESH_SECONDS and (fresh := self._known.get(place)) is not None:
            return fresh
        async with self._turn:
            await self._refresh()
            known = self._known.get(place)
            if known is None:
                if len(self._known) >= REMEMBERED:
                    self._known.clear()
                    self._rings.clear()
                known = self._known[place] = await self._look(place)
            return known

    async def _refresh(self) -> None:
        """Forget what was read if anything was changed since."""
        if monotonic() - self._looked < FRESH_SECONDS:
            return
        began = monotonic()
        async with self._store.reading() as connection:
            query = select(revisions.c.revision).where(revisions.c.name == COUNTER)
            revision = (await connection.execute(query)).scalar() or 0
            has_master = await _current(connection) is not None
        if revision != self._revision:
            self._known.clear()
            self._rings.clear()
        self._revision, self._looked, self._has_master = revision, began, has_master

    async def _look(self, place: tuple[str, str]) -> _Known:
        column = endpoint_secrets.c
        query = select(endpoint_secrets, self._store.now_sql().label("now")).where(
            column.tenant_id == place[0], column.endpoint == place[1]
        )
        began = monotonic()
        async with self._store.reading() as connection:
            rows = (await connection.execute(query.order_by(column.created_at.desc(), column.id))).all()
        own: list[tuple[str, float]] = []
        environment_ends = -math.inf
        for row in rows:
            ends = math.inf if row.expires_at is None else began + row.expires_at - row.now
            if row.key_id == ENVIRONMENT:
                environment_ends = max(environment_ends, ends)
            elif ends > began:
                own.append((self._opened(row), ends))
        return _Known(own=tuple(own), environment_ends=environment_ends)

    def _opened(self, row: Row[Any]) -> str:
        if self.master is None:
            return ""
        return self.master.unseal(row.key_id, row.sealed, _about(row.id, row.tenant_id, row.endpoint)).decode()

    def _ring(self, secrets: tuple[str, ...], *, by_environment: bool) -> KeyRing:
        """The secrets as a ring; the unnamed key of the environment comes last."""
        key = (*secrets, "environment" if by_environment else "")
        ring = self._rings.get(key)
        if ring is None:
            ring = self._rings[key] = KeyRing({"": secrets})
            if by_environment:
                ring.add("", self.environment)
        return ring

    async def _make_first(self, place: tuple[str, str]) -> None:
        """Make a secret for an endpoint that has none; of several processes one does."""
        async with self._store.writing() as connection:
            await connection.execute(TURN, {"name": COUNTER})
            now = await self._now(connection)
            column = endpoint_secrets.c
            lasting = column.expires_at.is_(None) | (column.expires_at > now)
            there = select(column.id).where(
                column.tenant_id == place[0], column.endpoint == place[1], column.sealed.is_not(None), lasting
            )
            if (await connection.execute(there.limit(1))).first() is None:
                made = await self._insert(connection, place, now=now, shown=False)
                detail = {"url": place[1]}
                await _note(connection, place[0], "hookline", "endpoint.secret.create", made.id, now=now, detail=detail)
            after_commit(connection, self._look_again)

    def _look_again(self) -> None:
        self._looked = -math.inf

    async def _insert(
        self, connection: AsyncConnection, place: tuple[str, str], *, now: float, shown: bool
    ) -> NewEndpointSecret:
        id, secret = f"sec_{os.urandom(12).hex()}", generate_key()  # noqa: A001
        key_id = await self._sealing_key(connection)
        sealed = self._demand().seal(key_id, secret.encode(), _about(id, *place))
        row: dict[str, Any] = {"id": id, "tenant_id": place[0], "created_at": now, "expires_at": None, "shown": shown}
        stored: dict[str, Any] = row | {"endpoint": place[1], "key_id": key_id, "sealed": sealed}
        await connection.execute(insert(endpoint_secrets).values(stored))
        return NewEndpointSecret(**row, url=place[1], source="own", secret=secret)

    async def _sealing_key(self, connection: AsyncConnection) -> str:
        """The master key under which this database encrypts by now; the first one that comes is it."""
        current = await _current(connection)
        if current is None:
            current = self._demand().ids[0]
            await connection.execute(insert(master_keys).values(name=CURRENT, key_id=current))
        self._check(current)
        return current

    def _check(self, current: str) -> None:
        master = self._demand()
        if not master.knows(current):
            raise MasterKeyError(
                f"the database has the master key {current}, and this process has {', '.join(master.ids)}; set "
                f"{MASTER_KEY}, or the file of the key, to what the other processes of this database have"
            )

    def _demand(self) -> MasterKeys:
        if self.master is None:
            raise MasterKeyError(f"this process has no master key; set {MASTER_KEY}, or name a file that holds it")
        return self.master

    async def _now(self, connection: AsyncConnection) -> float:
        return float((await connection.execute(select(self._store.now_sql()))).scalar_one())

    def __repr__(self) -> str:
        return f"EndpointSecrets({self._store!r})"


def normal_endpoint(url: str) -> str:
    """The one form of an address in which it is an endpoint: names in lower case, no usual port, no fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    scheme = parts.scheme.lower()
    place = parts.netloc.lower().removesuffix(DEFAULT_PORTS.get(scheme, ":"))
    query = f"?{parts.query}" if parts.query else ""
    return f"{scheme}://{place}{parts.path or '/'}{query}"


def _about(id: str, tenant_id: str, endpoint: str) -> bytes:  # noqa: A002
    """What a secret is bound to: it cannot be moved to another endpoint in the database."""
    return msgspec.json.encode(["hookline endpoint secret", id, tenant_id, endpoint])


def _shown(row: Row[Any]) -> EndpointSecret:
    return EndpointSecret(
        id=row.id,
        tenant_id=row.tenant_id,
        url=row.endpoint,
        source="environment" if row.key_id == ENVIRONMENT else "own",
        shown=row.shown,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )


async def _current(connection: AsyncConnection) -> str | None:
    query = select(master_keys.c.key_id).where(master_keys.c.name == CURRENT)
    found: str | None = (await connection.execute(query)).scalar()
    return found


async def _note(
    connection: AsyncConnection, tenant_id: str, actor: str, action: str, target: str, *, now: float, detail: object
) -> None:
    """Write a change into the audit, in the transaction of the change."""
    row = {"tenant_id": tenant_id, "actor": actor.replace("\0", "")[:400], "action": action, "target": target}
    await connection.execute(insert(audit).values(**row, detail=msgspec.json.encode(detail), created_at=now))
