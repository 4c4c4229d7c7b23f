"""API keys: create, authenticate, list and revoke them. They are stored as hashes and shown once."""

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
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import Row, Select, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import HookUsageError, StoreUnavailableError
from hookline.server._callers import SCOPES, Caller, Scope
from hookline.store import Page, SqlStore, api_keys, raise_revision, read_clock, write_audit

__all__ = ["LONGEST_OVERLAP", "ApiKey", "KeyState", "KeyStore", "NewApiKey", "state_of"]

logger = logging.getLogger("hookline")

FRESH_SECONDS = 0.5
"""Seconds for which a key is cached, so that a revoked key stops working within one second."""
REMEMBERED = 10_000
USED_SECONDS = 60.0
"""Precision, in seconds, of the time at which a key was last used."""
DAY = 86_400.0
LONGEST_OVERLAP = 366 * DAY
"""Longest time, in seconds, for which a key that was rotated still works."""
MOST_TENANTS = 1000
KeyState: TypeAlias = Literal["active", "expired", "revoked"]
TOKEN = re.compile(r"hk_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An API key, without the key itself.

    Attributes:
        id: The id, which is part of the key itself.
        tenant_id: The tenant that owns the key; `""` is the system.
        name: A name for people.
        scopes: The scopes of the key.
        created_at: When it was created, in unix seconds.
        expires_at: When it expires, in unix seconds.
        revoked_at: When it was revoked, in unix seconds.
        last_used_at: When it was last used, in unix seconds, exact to a minute.
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
    """An API key that was just created.

    Attributes:
        key: The key, to be sent as `Authorization: Bearer ...`. It is shown only this once and stored nowhere; `None`
            if the response is repeated for the same `Idempotency-Key`.
    """

    key: str | None


class _CachedKey(msgspec.Struct, frozen=True):
    """A key as it was read from the database."""

    caller: Caller
    hash: str
    ends: float
    """When the key expires, by `time.monotonic`."""
    read_at: float


class KeyStore:
    """Creates, authenticates, lists and revokes the API keys of a store.

    Args:
        store: The store of the keys.
    """

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._cached: dict[str, _CachedKey] = {}
        self._reading: dict[str, asyncio.Task[_CachedKey | None]] = {}
        self._used: dict[str, float] = {}
        self._noting: set[asyncio.Task[None]] = set()

    async def authenticate(self, token: str) -> Caller | None:
        """Return the caller of a key; `None` if the key is invalid, expired or revoked.

        Raises:
            StoreUnavailableError: If the key is not cached, and the database cannot be reached.
        """
        match = TOKEN.fullmatch(token)
        if match is None:
            return None
        id, secret = match[1], match[2]  # noqa: A001
        known = self._cached.get(id)
        if known is None or monotonic() - known.read_at > FRESH_SECONDS:
            known = await self._load(id)
        # Always hash and compare, so that the time does not reveal whether there is a key of that id.
        same = hmac.compare_digest(hash_secret(secret), known.hash if known is not None else "0" * 64)
        if known is None or not same or monotonic() >= known.ends:
            return None
        self._record_use(id)
        return known.caller

    async def still(self, caller: Caller) -> bool:
        """Return whether the key of a caller is still valid."""
        return await self.refresh(caller) is not None

    async def refresh(self, caller: Caller) -> Caller | None:
        """Return a caller with the present end of its key, which a rotation changes; `None` if the key has ended.

        Raises:
            StoreUnavailableError: If the key is not cached, and the database cannot be reached.
        """
        known = self._cached.get(caller.key_id)
        if known is None or monotonic() - known.read_at > FRESH_SECONDS:
            known = await self._load(caller.key_id)
        if known is None or monotonic() >= known.ends:
            return None
        same = known.caller == msgspec.structs.replace(caller, expires_at=known.caller.expires_at)
        return known.caller if same else None

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
        """Create a key.

        Args:
            name: A name for people.
            tenant_id: The tenant that owns the key; `""` is the system.
            scopes: The scopes of the key.
            expires_in_seconds: Seconds until the key expires; `None` for no end of its own.
            latest_end: When the key expires at the latest, in unix seconds; `None` for no limit.
            actor: Who creates the key, for the audit log.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """

        async def insert_key(connection: AsyncConnection) -> NewApiKey:
            now = await read_clock(connection)
            asked = None if expires_in_seconds is None else now + expires_in_seconds
            expires_at = min((end for end in (asked, latest_end) if end is not None), default=None)
            return await _insert(connection, name, tenant_id, scopes, now=now, expires_at=expires_at, actor=actor)

        return await self._store.write(insert_key)

    async def create_first(self) -> NewApiKey | None:
        """Create a key for an administrator if there is no valid one; of several processes, only one does.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """

        async def insert_first(connection: AsyncConnection) -> NewApiKey | None:
            await raise_revision(connection, "keys")  # one at a time, so that there are never two first keys
            now = await read_clock(connection)
            lasting = api_keys.c.expires_at.is_(None) | (api_keys.c.expires_at > now)
            query = select(api_keys.c.scopes).where(
                api_keys.c.tenant_id == "", api_keys.c.revoked_at.is_(None), lasting
            )
            if any("hooks:admin" in scopes.split() for scopes in (await connection.execute(query)).scalars()):
                return None
            return await _insert(connection, "first administrator", "", SCOPES, now=now, actor="hookline serve")

        return await self._store.write(insert_first)

    async def page(self, tenant_id: str | None, *, cursor: str | None, limit: int) -> Page[ApiKey]:
        """Read a page of keys, in the order of their ids.

        Args:
            tenant_id: Only keys of this tenant.
            cursor: The cursor of the page before; `None` for the first page.
            limit: Number of keys at most.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        query = select(api_keys).order_by(api_keys.c.id).limit(limit + 1)
        if tenant_id is not None:
            query = query.where(api_keys.c.tenant_id == tenant_id)
        if cursor is not None:
            query = query.where(api_keys.c.id > cursor)
        found = [_key_from_row(row) for row in await self._store.read_rows(query)]
        return Page(items=found[:limit], cursor=found[limit - 1].id if len(found) > limit else None)

    async def newest(
        self, tenant_id: str | None, *, state: KeyState | None = None, text: str | None = None, limit: int
    ) -> list[ApiKey]:
        """List the newest keys that match a filter, the newest first.

        Args:
            tenant_id: Only keys of this tenant.
            state: Only keys in this state.
            text: Only keys whose name or id contains this text, in upper or lower case.
            limit: Number of keys at most.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        column = api_keys.c
        query = select(api_keys).order_by(column.created_at.desc(), column.id).limit(limit)
        if tenant_id is not None:
            query = query.where(column.tenant_id == tenant_id)
        over = column.expires_at.is_not(None) & (column.expires_at <= self._store.now_sql())
        if state == "revoked":
            query = query.where(column.revoked_at.is_not(None))
        elif state is not None:
            query = query.where(column.revoked_at.is_(None), over if state == "expired" else ~over)
        if text:
            inside = [each.icontains(text, autoescape=True) for each in (column.name, column.id)]
            query = query.where(or_(*inside))
        return [_key_from_row(row) for row in await self._store.read_rows(query)]

    async def get(self, id: str, tenant_id: str | None) -> ApiKey | None:  # noqa: A002
        """Return a key; `None` if there is none of this id.

        Args:
            id: The id of the key.
            tenant_id: Only if it is this tenant's.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        rows = await self._store.read_rows(_select_key(id, tenant_id))
        return _key_from_row(rows[0]) if rows else None

    async def tenants(self) -> list[str]:
        """List the tenants that own keys, without the system, in alphabetical order.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        query = select(api_keys.c.tenant_id).where(api_keys.c.tenant_id != "").distinct().limit(MOST_TENANTS)
        return sorted(row.tenant_id for row in await self._store.read_rows(query))

    async def rotate(
        self,
        id: str,  # noqa: A002
        tenant_id: str | None,
        *,
        overlap_seconds: float = DAY,
        expires_in_seconds: float | None = None,
        latest_end: float | None = None,
        actor: str = "",
    ) -> NewApiKey | None:
        """Create a key with the name, tenant and scopes of another one, which expires soon.

        Args:
            id: The id of the old key.
            tenant_id: Only if it is this tenant's.
            overlap_seconds: Seconds for which the old key still works; 0 revokes it at once.
            expires_in_seconds: Seconds until the new key expires; by default, it lasts as long as the old one was made
                to last.
            latest_end: When the new key expires at the latest, in unix seconds; `None` for no limit.
            actor: Who rotates the key, for the audit log.

        Returns:
            The new key; `None` if there is no old key of this id.

        Raises:
            HookUsageError: If the old key is expired or revoked already, or the overlap is invalid.
            StoreUnavailableError: If the database cannot be reached.
        """
        if isinstance(overlap_seconds, bool) or not 0 <= overlap_seconds <= LONGEST_OVERLAP:
            raise HookUsageError(f"`overlap_seconds` must be 0 to {LONGEST_OVERLAP:.0f}; got {overlap_seconds!r:.200}.")

        async def replace_key(connection: AsyncConnection) -> NewApiKey | None:
            row = (await connection.execute(_select_key(id, tenant_id).with_for_update())).first()
            if row is None:
                return None
            now = await read_clock(connection)
            if state_of(row, now) != "active":
                raise HookUsageError(f"The key {id} is expired or revoked already. Create a new key instead.")
            end = now + overlap_seconds
            ended: dict[str, float] = {"expires_at": end if row.expires_at is None else min(end, row.expires_at)}
            await connection.execute(
                update(api_keys).where(api_keys.c.id == id).values(ended if overlap_seconds else {"revoked_at": now})
            )
            lasts = expires_in_seconds
            if lasts is None and row.expires_at is not None:
                lasts = row.expires_at - row.created_at
            asked = None if lasts is None else now + lasts
            made = await _insert(
                connection,
                row.name,
                row.tenant_id,
                _scopes(row.scopes),
                now=now,
                expires_at=min((each for each in (asked, latest_end) if each is not None), default=None),
                actor=actor,
            )
            detail = {"name": row.name, "newKey": made.id, "overlapSeconds": overlap_seconds}
            await write_audit(connection, row.tenant_id, actor, "key.rotate", id, now=now, detail=detail)
            return made

        made = await self._store.write(replace_key)
        self._cached.pop(id, None)
        return made

    async def revoke(self, id: str, tenant_id: str | None, *, actor: str = "") -> bool:  # noqa: A002
        """Revoke a key; within one second, it works in no process any more.

        Args:
            id: The id of the key.
            tenant_id: Revoke the key only if it is this tenant's.
            actor: Who revokes the key, for the audit log.

        Returns:
            Whether there is such a key. A key that was revoked before stays as it is.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """

        async def end_key(connection: AsyncConnection) -> bool:
            row = (await connection.execute(_select_key(id, tenant_id))).first()
            if row is None:
                return False
            now = await read_clock(connection)
            its = (api_keys.c.id == id) & api_keys.c.revoked_at.is_(None)
            if (await connection.execute(update(api_keys).where(its).values(revoked_at=now))).rowcount:
                detail = {"name": row.name}
                await write_audit(connection, row.tenant_id, actor, "key.revoke", id, now=now, detail=detail)
            return True

        is_found = await self._store.write(end_key)
        self._cached.pop(id, None)
        return is_found

    async def _load(self, id: str) -> _CachedKey | None:  # noqa: A002
        """Read a key from the database; concurrent callers share one query."""
        task = self._reading.get(id)
        if task is None:
            task = self._reading[id] = asyncio.create_task(self._read_from_database(id))
            task.add_done_callback(lambda done: self._finish_reading(id, done))
        return await asyncio.shield(task)

    def _finish_reading(self, id: str, task: asyncio.Task[_CachedKey | None]) -> None:  # noqa: A002
        del self._reading[id]
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not warn if all callers have gone away

    async def _read_from_database(self, id: str) -> _CachedKey | None:  # noqa: A002
        began = monotonic()
        query = select(api_keys, self._store.now_sql().label("now")).where(api_keys.c.id == id)
        row = next(iter(await self._store.read_rows(query)), None)
        if row is None or row.revoked_at is not None:
            self._cached.pop(id, None)
            return None
        ends = float("inf") if row.expires_at is None else began + row.expires_at - row.now
        caller = Caller(
            key_id=row.id,
            tenant_id=row.tenant_id,
            scopes=frozenset(_scopes(row.scopes)),
            expires_at=row.expires_at,
        )
        if len(self._cached) >= REMEMBERED:
            self._cached.clear()
        known = self._cached[id] = _CachedKey(caller, row.hash, ends, began)
        return known

    def _record_use(self, id: str) -> None:  # noqa: A002
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
            used = update(api_keys).where(api_keys.c.id == id).values(last_used_at=self._store.now_sql())
            await self._store.write_one(used)
        except StoreUnavailableError as error:
            self._used.pop(id, None)  # record the next use, instead of waiting for another minute
            logger.debug("The time of the last use of key %s could not be stored: %s", id, error)


def hash_secret(secret: str) -> str:
    """Return the hash of a secret. One round of SHA-256 suffices, since the secret has 256 random bits."""
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
    await connection.execute(insert(api_keys).values(**row, hash=hash_secret(secret), scopes=" ".join(allowed)))
    await write_audit(connection, tenant_id, actor, "key.create", id, now=now, detail={"name": name, "scopes": allowed})
    return NewApiKey(**row, scopes=allowed, key=f"hk_{id}_{secret}")


def _select_key(id: str, tenant_id: str | None) -> Select[Any]:  # noqa: A002
    """Select a key, if it is a tenant's; `None` is any tenant."""
    query = select(api_keys).where(api_keys.c.id == id)
    return query if tenant_id is None else query.where(api_keys.c.tenant_id == tenant_id)


def state_of(key: ApiKey | Row[Any], now: float) -> KeyState:
    """Return the state of a key.

    Args:
        key: The key.
        now: The present time, in unix seconds.
    """
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= now else "active"


def _key_from_row(row: Row[Any]) -> ApiKey:
    fields = {field: getattr(row, field) for field in ApiKey.__struct_fields__ if field != "scopes"}
    return ApiKey(**fields, scopes=_scopes(row.scopes))


def _scopes(stored: str) -> list[Scope]:
    known = stored.split()
    return [scope for scope in SCOPES if scope in known]
