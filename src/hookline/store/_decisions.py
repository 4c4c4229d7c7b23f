"""What people have decided about tool calls that wait, until a worker goes on with the operation."""

import contextlib
from collections.abc import Container, Sequence

import msgspec
from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import DecisionError, OperationFinishedError, OperationNotFoundError, StateFormatError
from hookline.runtime import Approve, OperationState, Reject
from hookline.runtime._state import FORMAT
from hookline.store._engine import Database
from hookline.store._rows import check_text, is_storable, state_of
from hookline.store._tables import decisions, operations

__all__ = ["decide", "decided", "forget", "ready"]

TOGETHER = 200
"""Operations that are read together: any number may wait for further decisions, before one that can go on."""

_decode = msgspec.json.Decoder(Approve | Reject).decode
_its = (operations.c.operation_id, operations.c.format, operations.c.state)


async def decide(
    database: Database,
    operation_id: str,
    decision: Approve | Reject,
    *,
    by: str,
    tenant_id: str | None,
) -> OperationState:
    """Keep a decision with the very pause that it is about.

    Raises:
        OperationNotFoundError: If there is no such operation, or it is another tenant's.
        OperationFinishedError: If it does not wait for a person.
        DecisionError: If it has no such call pending, or that was decided.
    """
    if not is_storable(operation_id):
        raise OperationNotFoundError(operation_id)
    check_text(operation_id, "`by`", by)
    async with database.writing() as connection:
        query = select(*_its).where(operations.c.operation_id == operation_id)
        if tenant_id is not None:
            query = query.where(operations.c.tenant_id == tenant_id)
        if database.dialect == "postgresql":
            query = query.with_for_update()
        row = (await connection.execute(query)).first()
        if row is None:
            raise OperationNotFoundError(operation_id)
        state = state_of(*row)
        if state.status != "waiting_for_human":
            raise OperationFinishedError(operation_id, state.status)
        known = await _of(connection, state)
        pending = [
            each.tool_call_id
            for each in state.pending
            if each.tool_call_id not in state.decisions and each.tool_call_id not in known
        ]
        if decision.tool_call_id not in pending:
            problem = "is decided already" if decision.tool_call_id in known else "is not pending"
            raise DecisionError(operation_id, f"the call {decision.tool_call_id!r} {problem}", pending)
        await connection.execute(
            insert(decisions).values(
                operation_id=operation_id,
                pause=state.waiting_since_unix_nano or 0,
                tool_call_id=decision.tool_call_id,
                tenant_id=state.tenant_id,
                decision=msgspec.json.encode(decision),
                decided_by=by,
                created_at=database.now_sql(),
            )
        )
        return state


async def decided(
    connection: AsyncConnection, *, agent_ids: Sequence[str], limit: int, exclude: Container[str] = ()
) -> list[tuple[OperationState, list[Approve | Reject]]]:
    """Operations of some agents that can go on, with what was decided about them."""
    query = (
        select(*_its)
        .where(operations.c.status == "waiting_for_human", operations.c.agent_id.in_(agent_ids))
        .where(operations.c.operation_id.in_(select(decisions.c.operation_id)), operations.c.format <= FORMAT)
        .order_by(operations.c.operation_id)
        .limit(TOGETHER)
    )
    found: list[tuple[OperationState, list[Approve | Reject]]] = []
    last = ""
    while len(found) < limit:
        rows = (await connection.execute(query.where(operations.c.operation_id > last))).all()
        for row in rows:
            if row.operation_id in exclude:
                continue
            with contextlib.suppress(StateFormatError):  # it waits for who can read it
                state = state_of(*row)
                if known := await ready(connection, state):
                    found.append((state, known))
        if len(rows) < TOGETHER:
            break
        last = rows[-1].operation_id
    return found[:limit]


async def ready(connection: AsyncConnection, state: OperationState) -> list[Approve | Reject]:
    """The decisions with which an operation goes on: all that it waits for, or one that stops it; else none."""
    open_ids = {each.tool_call_id for each in state.pending} - set(state.decisions)
    known = {name: each for name, each in (await _of(connection, state)).items() if name in open_ids}
    found = list(known.values())
    if any(isinstance(each, Reject) and not each.and_continue for each in found):
        return found
    return found if open_ids and open_ids <= set(known) else []


async def forget(database: Database, operation_id: str) -> None:
    """Drop what was decided, since it is in the events of what has gone on; not what is about a pause that lasts."""
    async with database.writing() as connection:
        query = select(*_its).where(operations.c.operation_id == operation_id)
        if database.dialect == "postgresql":
            query = query.with_for_update()
        row = (await connection.execute(query)).first()
        old = delete(decisions).where(decisions.c.operation_id == operation_id)
        if row is not None:
            with contextlib.suppress(StateFormatError):  # one of a newer version has gone on
                state = state_of(*row)
                if state.status == "waiting_for_human":
                    old = old.where(decisions.c.pause != (state.waiting_since_unix_nano or 0))
        await connection.execute(old)


async def _of(connection: AsyncConnection, state: OperationState) -> dict[str, Approve | Reject]:
    query = select(decisions.c.tool_call_id, decisions.c.decision).where(
        decisions.c.operation_id == state.operation_id, decisions.c.pause == (state.waiting_since_unix_nano or 0)
    )
    return {name: _decode(kept) for name, kept in await connection.execute(query)}
