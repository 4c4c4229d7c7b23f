"""API keys: stored hashed, shown once, looked at anew at least once a second."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import re
from collections.abc import Iterable
from hashlib import sha256
from secrets import token_urlsafe
from time import monotonic
from typing import Any

import msgspec
from sqlalchemy import Row, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import StoreUnavailableError
from hookline.server._audit import note
from hookline.server._callers import SCOPES, Caller, Scope
from hookline.store import Page, SqlStore, api_keys

__all__ = ["ApiKey", "KeyStore", "NewApiKey"]

logger = logging.getLogger("hookline")

FRESH_SECONDS = 0.5
"""For how long what was read about a key counts, so that a revoked one ends within a second, reading included."""
REMEMBERED = 10_000
USED_SECONDS = 60.0
"""How exactly it is noted when a key was used last."""
TOKEN = re.compile(r"hk_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
# Whoever makes the first key holds this row until the transaction ends, so that there are never two.
TURN = text(
    "INSERT INTO revisions (name, revision) VALUES ('keys', 1) "
    "ON CONFLICT (name) DO UPDATE SET revision = revisions.revision + 1"
)


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A key as everybody may see it who looks after keys.

    Attributes:
        id: Its name, which is part of the key itself.
        tenant_id: Whose it is; `""` is the system.
        name: What people call it.
        scopes: What it allows.
        created_at: When it was made, in unix seconds.
        expires_at: When it ends.
        revoked_at: When somebody has ended it.
        last_used_at: When it was used last, within a minute.
    """

    id: str
    tenant_id: str
    name: str
    scopes: list[Scope]
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    last_used_at: float | None = None


class NewApiKey(ApiKey, frozen=True, kw_only=True, rename="camel"):
    """A key that was just made.

    Attributes:
        key: What to send as `Authorization: Bearer ...`. It is shown this once and stored nowhere; `None` where an
            answer is repeated for the same `Idempotency-Key`.
    """

    key: str | None


class _Known(msgspec.Struct, frozen=True):
    """What was read about a key."""

    caller: Caller
    hash: str
    ends: float
    """By `time.monotonic`."""
    read_at: float


class KeyStore:
    """The keys of a store, and who has sent a request.

    Args:
        store: Where they are.
    """

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._known: dict[str, _Known] = {}
        self._reading: dict[str, asyncio.Task[_Known | None]] = {}
        self._used: dict[str, float] = {}
        self._noting: set[asyncio.Task[None]] = set()

    async def authenticate(self, token: str) -> Caller | None:
        """Whose key it is; `None` if it is none, or has ended.

        Raises:
            StoreUnavailableError: If nothing is known of it, and the database cannot be reached.
        """
        match = TOKEN.fullmatch(token)
        if match is None:
            return None
        id, secret = match[1], match[2]  # noqa: A001
        known = self._known.get(id)
        if known is None or monotonic() - known.read_at > FRESH_SECONDS:
            known = await self._read(id)
        # Hashed and compared in any case, so that it takes the same time whether there is such a key.
        same = hmac.compare_digest(hashed(secret), known.hash if known is not None else "0" * 64)
        if known is None or not same or monotonic() >= known.ends:
            return None
        self._note_use(id)
        return known.caller

    async def still(self, caller: Caller) -> bool:
        """Whether the key of a caller has not ended meanwhile."""
        known = self._known.get(caller.key_id)
        if known is None or monotonic() - known.read_at > FRESH_SECONDS:
            known = await self._read(caller.key_id)
        return known is not None and monotonic() < known.ends and known.caller == caller

    async def create(
        self,
        *,
        name: str,
        tenant_id: str,
        scopes: Iterable[Scope],
        expires_in_seconds: float | None = None,
        latest_end: float | None = None,
        actor: str = "",
    ) -> NewApiKey:
        """Make a key.

        Args:
            name: What people call it.
            tenant_id: Whose it is; `""` is the system.
            scopes: What it allows.
            expires_in_seconds: After which it ends by itself.
            latest_end: When it ends at the latest, in unix seconds; `None` for no limit.
            actor: Who makes it, for the audit.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        async with self._store.writing() as connection:
            now = await self._now(connection)
            asked = None if expires_in_seconds is None else now + expires_in_seconds
            expires_at = min((end for end in (asked, latest_end) if end is not None), default=None)
            return await _insert(connection, name, tenant_id, scopes, now=now, expires_at=expires_at, actor=actor)

    async def create_first(self) -> NewApiKey | None:
        """Make a key for an administrator, unless there is one that has not ended; of several processes one does.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        async with self._store.writing() as connection:
            await connection.execute(TURN)
            now = await self._now(connection)
            lasting = api_keys.c.expires_at.is_(None) | (api_keys.c.expires_at > now)
            query = select(api_keys.c.scopes).where(
                api_keys.c.tenant_id == "", api_keys.c.revoked_at.is_(None), lasting
            )
            if any("hooks:admin" in scopes.split() for scopes in (await connection.execute(query)).scalars()):
                return None
            return await _insert(connection, "first administrator", "", SCOPES, now=now, actor="hookline serve")

    async def page(self, tenant_id: str | None, *, cursor: str | None, limit: int) -> Page[ApiKey]:
        """A part of the list of keys, in the order of their ids.

        Args:
            tenant_id: Only those of this tenant.
            cursor: Where the part begins; that of the part before.
            limit: How many at most.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        query = select(api_keys).order_by(api_keys.c.id).limit(limit + 1)
        if tenant_id is not None:
            query = query.where(api_keys.c.tenant_id == tenant_id)
        if cursor is not None:
            query = query.where(api_keys.c.id > cursor)
        async with self._store.reading() as connection:
            found = [_shown(row) for row in await connection.execute(query)]
        return Page(items=found[:limit], cursor=found[limit - 1].id if len(found) > limit else None)

    async def revoke(self, id: str, tenant_id: str | None, *, actor: str = "") -> bool:  # noqa: A002
        """End a key, in all processes within a second.

        Args:
            id: Which.
            tenant_id: Only if it is this tenant's.
            actor: Who does it, for the audit.

        Returns:
            Whether there is such a key; one that has ended already stays as it is.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        its = api_keys.c.id == id
        if tenant_id is not None:
            its = its & (api_keys.c.tenant_id == tenant_id)
        async with self._store.writing() as connection:
            owner = (await connection.execute(select(api_keys.c.tenant_id).where(its))).scalar()
            if owner is None:
                return False
            now = await self._now(connection)
            ended = update(api_keys).where(its, api_keys.c.revoked_at.is_(None)).values(revoked_at=now)
            if (await connection.execute(ended)).rowcount:
                await note(connection, owner, actor, "key.revoke", id, now=now)
        self._known.pop(id, None)
        return True

    async def _now(self, connection: AsyncConnection) -> float:
        return float((await connection.execute(select(self._store.now_sql()))).scalar_one())

    async def _read(self, id: str) -> _Known | None:  # noqa: A002
        """Read about a key; many that ask at the same time share one look."""
        task = self._reading.get(id)
        if task is None:
            task = self._reading[id] = asyncio.create_task(self._look(id))
            task.add_done_callback(lambda done: self._looked(id, done))
        return await asyncio.shield(task)

    def _looked(self, id: str, task: asyncio.Task[_Known | None]) -> None:  # noqa: A002
        del self._reading[id]
        if not task.cancelled():
            task.exception()  # so that nobody warns of one for which all askers have gone away

    async def _look(self, id: str) -> _Known | None:  # noqa: A002
        began = monotonic()
        async with self._store.reading() as connection:
            query = select(api_keys, self._store.now_sql().label("now")).where(api_keys.c.id == id)
            row = (await connection.execute(query)).first()
        if row is None or row.revoked_at is not None:
            self._known.pop(id, None)
            return None
        ends = float("inf") if row.expires_at is None else began + row.expires_at - row.now
        caller = Caller(
            key_id=row.id,
            tenant_id=row.tenant_id,
            scopes=frozenset(_scopes(row.scopes)),
            expires_at=row.expires_at,
        )
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        known = self._known[id] = _Known(caller, row.hash, ends, began)
        return known

    def _note_use(self, id: str) -> None:  # noqa: A002
        now = monotonic()
        if now - self._used.get(id, -USED_SECONDS) < USED_SECONDS:
            return
        if len(self._used) >= REMEMBERED:
            self._used.clear()
        self._used[id] = now
        task = asyncio.create_task(self._write_use(id))
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)

    async def _write_use(self, id: str) -> None:  # noqa: A002
        try:
            async with self._store.writing() as connection:
                used = update(api_keys).where(api_keys.c.id == id).values(last_used_at=self._store.now_sql())
                await connection.execute(used)
        except StoreUnavailableError as error:
            self._used.pop(id, None)  # the next use is noted instead, not that of a minute later
            logger.debug("When key %s was used could not be noted: %s", id, error)


def hashed(secret: str) -> str:
    """What is stored of a secret. It has 256 random bits, so that one round is enough."""
    return sha256(secret.encode()).hexdigest()


async def _insert(
    connection: AsyncConnection,
    name: str,
    tenant_id: str,
    scopes: Iterable[Scope],
    *,
    now: float,
    actor: str,
    expires_at: float | None = None,
) -> NewApiKey:
    id, secret = os.urandom(8).hex(), token_urlsafe(32)  # noqa: A001
    wanted = set(scopes)
    allowed = [scope for scope in SCOPES if scope in wanted]
    row: dict[str, Any] = {"id": id, "tenant_id": tenant_id, "name": name, "created_at": now, "expires_at": expires_at}
    await connection.execute(insert(api_keys).values(**row, hash=hashed(secret), scopes=" ".join(allowed)))
    await note(connection, tenant_id, actor, "key.create", id, now=now, detail={"name": name, "scopes": allowed})
    return NewApiKey(**row, scopes=allowed, key=f"hk_{id}_{secret}")


def _shown(row: Row[Any]) -> ApiKey:
    fields = {field: getattr(row, field) for field in ApiKey.__struct_fields__ if field != "scopes"}
    return ApiKey(**fields, scopes=_scopes(row.scopes))


def _scopes(stored: str) -> list[Scope]:
    known = stored.split()
    return [scope for scope in SCOPES if scope in known]
