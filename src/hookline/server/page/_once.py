"""Forms that show a secret once: each copy of such a form does its work one time, however often it is sent."""

from __future__ import annotations

import re
from hashlib import sha256
from secrets import token_urlsafe

from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.server._callers import Caller
from hookline.server._problems import ApiError
from hookline.store import SqlStore, idempotency, insert_into, read_clock

__all__ = ["claim_form", "make_form_id", "release_form"]

FORM_ID = re.compile(r"[\w-]{22}", re.ASCII)
SENT = 201
"""Status in the row of a form that was sent; the row is deleted after a day, as those of other requests."""


def make_form_id() -> str:
    """Make the id of a new copy of a form."""
    return token_urlsafe(16)


async def claim_form(store: SqlStore, caller: Caller, form_id: str) -> None:
    """Note that a copy of a form was sent.

    Args:
        store: The store, so that all processes know it.
        caller: Who has sent it.
        form_id: The id of the copy.

    Raises:
        ApiError: 409, if the copy was sent before; 422, if it has no id of ours.
        StoreUnavailableError: If the database cannot be reached.
    """
    if not FORM_ID.fullmatch(form_id):
        raise ApiError(422, "invalid", "The form is incomplete. Reload the page and fill it in again.")

    async def claim(connection: AsyncConnection) -> None:
        now = await read_clock(connection)
        row = {"tenant_id": caller.tenant_id, "key": _name(caller, form_id), "fingerprint": _digest(form_id)}
        taken = insert_into(connection, idempotency).values(**row, status_code=SENT, body=b"", created_at=now)
        if not (await connection.execute(taken.on_conflict_do_nothing())).rowcount:
            detail = (
                "This form was sent before, and was carried out once. A secret is shown only in the first answer. If "
                "you did not copy it, revoke it in the list and create another one."
            )
            raise ApiError(409, "sent_twice", detail)

    await store.write(claim)


async def release_form(store: SqlStore, caller: Caller, form_id: str) -> None:
    """Allow a copy of a form to be sent again, since it was refused.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
    """
    its = (idempotency.c.tenant_id == caller.tenant_id) & (idempotency.c.key == _name(caller, form_id))
    await store.write_one(delete(idempotency).where(its))


def _name(caller: Caller, form_id: str) -> str:
    return f"{caller.key_id}:form:{form_id}"


def _digest(form_id: str) -> str:
    return sha256(form_id.encode()).hexdigest()
