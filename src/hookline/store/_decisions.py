"""Store approvals and rejections: people's decisions about pending tool calls, in lists and linked to events."""

import contextlib
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Row, Select, bindparam, delete, func, insert, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import (
    DecisionError,
    EventDecodeError,
    OperationFinishedError,
    OperationNotFoundError,
    StateFormatError,
)
from hookline.events import AfterHumanIntervention, BeforeHumanIntervention, HookType, PendingTool, decode
from hookline.runtime import DECIDED, FORMAT, Action, Approve, OperationState, Reject, action_of, decision_of
from hookline.store._database import Database
from hookline.store._reading import Page, encode_cursor, fetch_events, parse_cursor
from hookline.store._rows import check_text, is_storable
from hookline.store._state_rows import complete_state, decode_head, head_columns
from hookline.store._tables import decisions, events, operations

__all__ = [
    "DecisionFilter",
    "DecisionRecord",
    "StoredDecision",
    "decision_cursor",
    "delete_void_decisions",
    "find_decided_operations",
    "link_events",
    "list_decisions",
    "make_seen_token",
    "read_decisions",
    "read_ready_decisions",
    "select_decisions",
    "store_decision",
]

BATCH_SIZE = 200
"""Operations that are read at a time: any number that wait for more decisions may precede one that can be resumed."""
ASKING = (HookType.BEFORE_HUMAN_INTERVENTION, HookType.AFTER_HUMAN_INTERVENTION)

_decode = msgspec.json.Decoder(Approve | Reject).decode
_decode_call = msgspec.json.Decoder(PendingTool).decode


class StoredDecision(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A person's decision about one tool call of an operation, and who made it.

    Attributes:
        operation_id: The id of the operation.
        tenant_id: The tenant for whom the operation runs.
        pause: The pause that the decision is about: when it began, in nanoseconds since 1970, as text. `""` if the
            decision is known from an event only.
        tool_call_id: The id of the tool call.
        toolset: The toolset of the tool; `""` if it is no longer known.
        tool_name: The name of the tool in its toolset; `""` if it is no longer known.
        args: The arguments of the call when the decision was made.
        decision: `"approve"`, `"reject"` (reject and stop) or `"rejectAndContinue"` (reject and continue).
        reason: Why the call was rejected.
        decided_by: Who decided: `"key:<id>"` for an API key, `"cli:<account>"` on the command line, or the argument
            `by` of `SqlStore.decide`. `""` if nobody was named, as in `resume_agent`.
        decided_at: When the decision was made, in unix seconds.
        event_number: The number of the `afterHumanIntervention` event; `None` until the operation is resumed.
    """

    operation_id: str
    tenant_id: str
    pause: str
    tool_call_id: str
    toolset: str = msgspec.field(name="identifier")
    tool_name: str = msgspec.field(name="apiName")
    args: dict[str, Any]
    decision: Action
    reason: str
    decided_by: str
    decided_at: float
    event_number: int | None


class DecisionRecord(StoredDecision, frozen=True, kw_only=True, rename="camel"):
    """A stored decision, with the operation that it is about.

    Attributes:
        agent_id: The agent of the operation; `""` if the operation was deleted.
        user_id: The user of the operation.
        operation_status: The present status of the operation; `""` if it was deleted.
    """

    agent_id: str
    user_id: str
    operation_status: str


class DecisionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter of stored decisions: a decision matches if it matches every attribute that is set.

    Attributes:
        tenant_id: Only decisions about operations of this tenant; `""` is the system.
        agent_id: Only decisions about operations of this agent.
        operation_id: Only decisions about this operation.
        decided_by: Only decisions of this person (`"key:<id>"`).
        since: Only decisions made at this time or later, in unix seconds.
        until: Only decisions made before this time, in unix seconds.
    """

    tenant_id: str | None = None
    agent_id: str | None = None
    operation_id: str | None = None
    decided_by: str | None = None
    since: float | None = None
    until: float | None = None

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        """Yield the SQL conditions of the filter."""
        for name in ("tenant_id", "operation_id", "decided_by"):
            if (value := getattr(self, name)) is not None:
                yield decisions.c[name] == value
        if self.agent_id is not None:
            yield operations.c.agent_id == self.agent_id
        if self.since is not None:
            yield decisions.c.created_at >= self.since
        if self.until is not None:
            yield decisions.c.created_at < self.until


def make_seen_token(state: OperationState, call: PendingTool) -> str:
    """Return a token of a pending call as a person sees it now.

    Another tool, other arguments, another prompt or a later pause give another token.

    Args:
        state: The state of the operation that waits.
        call: One of its pending calls.
    """
    shown = [call.tool_call_id, call.toolset, call.tool_name, call.args, call.prompt]
    digest = sha256(msgspec.json.encode(shown, order="sorted")).hexdigest()[:32]
    return f"{state.waiting_since_unix_nano or 0}.{digest}"


async def store_decision(
    database: Database,
    operation_id: str,
    decision: Approve | Reject,
    *,
    by: str,
    tenant_id: str | None,
    seen: str | None,
) -> OperationState:
    """Store a person's decision about a pending call, for the present pause of its operation.

    Raises:
        OperationNotFoundError: If there is no such operation, or it is another tenant's.
        OperationFinishedError: If the operation does not wait for a person.
        DecisionError: If the call is not pending, is decided already, or has changed since the person saw it.
    """
    if not is_storable(operation_id):
        raise OperationNotFoundError(operation_id)
    check_text(operation_id, "`by`", by)

    async def store(connection: AsyncConnection) -> OperationState:
        query = select(*head_columns).where(operations.c.operation_id == operation_id)
        if tenant_id is not None:
            query = query.where(operations.c.tenant_id == tenant_id)
        row = (await connection.execute(query.with_for_update())).first()  # SQLite locks the whole database instead
        if row is None:
            raise OperationNotFoundError(operation_id)
        state = await complete_state(connection, row)
        if state.status != "waiting_for_human":
            raise OperationFinishedError(operation_id, state.status)
        known = await _read_pause_decisions(connection, state)
        pending = {
            each.tool_call_id: each
            for each in state.pending
            if each.tool_call_id not in state.decisions and each.tool_call_id not in known
        }
        call = pending.get(decision.tool_call_id)
        if call is None:
            problem = _explain_not_pending(state, decision.tool_call_id, known)
            raise DecisionError(operation_id, f"the call {decision.tool_call_id!r} {problem}", list(pending))
        if seen is not None and seen != make_seen_token(state, call):
            problem = f"the call {decision.tool_call_id!r} has changed since it was shown"
            raise DecisionError(operation_id, problem, list(pending))
        await connection.execute(
            insert(decisions).values(
                operation_id=operation_id,
                pause=state.waiting_since_unix_nano or 0,
                tool_call_id=decision.tool_call_id,
                tenant_id=state.tenant_id,
                decision=msgspec.json.encode(decision),
                decided_by=by,
                created_at=database.now_sql(),
                call=msgspec.json.encode(call),
            )
        )
        return state

    return await database.write(store)


def _explain_not_pending(
    state: OperationState, tool_call_id: str, known: dict[str, tuple[Approve | Reject, str]]
) -> str:
    """Explain why a call is not pending: who has decided about it, or that there is no such call."""
    if tool_call_id in known:
        decision, by = known[tool_call_id]
        return f"is decided already: {DECIDED[action_of(decision)]}{f' by {by}' if by else ''}"
    if tool_call_id in state.decisions:
        return f"is decided already: {DECIDED[action_of(state.decisions[tool_call_id])]}"
    return "is not pending"


async def find_decided_operations(
    connection: AsyncConnection,
    *,
    agent_ids: Sequence[str],
    limit: int,
    exclude: Container[str] = (),
    agent_versions: Sequence[str] | None = None,
) -> list[tuple[OperationState, list[Approve | Reject]]]:
    """Find operations of some agents that can be resumed, with the decisions about them."""
    query = _select_with_decisions(BATCH_SIZE, agent_versions is not None)
    given = {"agents": agent_ids, "versions": agent_versions}
    found: list[tuple[OperationState, list[Approve | Reject]]] = []
    last = ""
    while len(found) < limit:
        rows = (await connection.execute(query, {**given, "last": last})).all()
        for row in rows:
            if row.operation_id in exclude:
                continue
            with contextlib.suppress(StateFormatError):  # a newer version wrote it, and will resume it
                if known := await select_decisions(connection, decode_head(row)):
                    found.append((await complete_state(connection, row), known))
        if len(rows) < BATCH_SIZE:
            break
        last = rows[-1].operation_id
    return found[:limit]


@cache
def _select_with_decisions(limit: int, by_version: bool) -> Select[*tuple[Any, ...]]:
    """Return the query for operations of some agents that wait, after the last one, and have a new decision."""
    without_event = select(decisions.c.operation_id).where(decisions.c.event_number.is_(None))
    query = (
        select(*head_columns)
        .where(operations.c.status == "waiting_for_human")
        .where(operations.c.agent_id.in_(bindparam("agents", expanding=True)))
        .where(operations.c.operation_id.in_(without_event), operations.c.format <= FORMAT)
        .where(operations.c.operation_id > bindparam("last"))
        .order_by(operations.c.operation_id)
        .limit(limit)
    )
    if by_version:
        query = query.where(operations.c.agent_version.in_(bindparam("versions", expanding=True)))
    return query


async def read_ready_decisions(connection: AsyncConnection, operation_id: str) -> list[Approve | Reject]:
    """Return the stored decisions about an operation that waits for a person, if they suffice to resume it."""
    if not is_storable(operation_id):
        return []
    row = (await connection.execute(select(*head_columns).where(operations.c.operation_id == operation_id))).first()
    state = None if row is None else decode_head(row)
    return await select_decisions(connection, state) if state and state.status == "waiting_for_human" else []


async def select_decisions(connection: AsyncConnection, state: OperationState) -> list[Approve | Reject]:
    """Return the stored decisions if they suffice to resume: one for each pending call, or one that stops the run."""
    open_ids = {each.tool_call_id for each in state.pending} - set(state.decisions)
    known = {
        name: each for name, (each, _) in (await _read_pause_decisions(connection, state)).items() if name in open_ids
    }
    found = list(known.values())
    if any(isinstance(each, Reject) and not each.and_continue for each in found):
        return found
    return found if open_ids and open_ids <= set(known) else []


async def delete_void_decisions(database: Database, operation_id: str) -> None:
    """Delete decisions that never took effect, except those about a pause that still lasts."""

    async def delete_void(connection: AsyncConnection) -> None:
        query = select(*head_columns).where(operations.c.operation_id == operation_id)
        row = (await connection.execute(query.with_for_update())).first()  # SQLite locks the whole database instead
        void = delete(decisions).where(decisions.c.operation_id == operation_id, decisions.c.event_number.is_(None))
        if row is not None:
            with contextlib.suppress(StateFormatError):  # a process of a newer version has resumed it
                state = decode_head(row)
                if state.status == "waiting_for_human":
                    void = void.where(decisions.c.pause != (state.waiting_since_unix_nano or 0))
        await connection.execute(void)

    await database.write(delete_void)


async def link_events(connection: AsyncConnection, rows: Iterable[dict[str, Any]]) -> None:
    """Record in each stored decision the number of its event, in the transaction that writes the events.

    A decision passed to `resume_agent` is linked only if the same decision about this pause is stored.

    Args:
        connection: The transaction.
        rows: The rows of the events.
    """
    for row in rows:
        if row["type"] != HookType.AFTER_HUMAN_INTERVENTION:
            continue
        event = decode(row["wire"])
        assert isinstance(event, AfterHumanIntervention)
        call = event.tool_call_id or ""
        given = decision_of(event.action, call, event.rejection_reason or "")
        same = (
            (decisions.c.operation_id == row["operation_id"])
            & (decisions.c.tool_call_id == call)
            & (decisions.c.decision == msgspec.json.encode(given))
            & decisions.c.event_number.is_(None)
        )
        newest = select(func.max(decisions.c.pause)).where(same).scalar_subquery()
        linked = update(decisions).where(same, decisions.c.pause == newest)
        await connection.execute(linked.values(event_number=row["number"]))


async def list_decisions(connection: AsyncConnection, operation_id: str) -> list[StoredDecision]:
    """List the decisions about an operation, oldest first, with who made them if that is known.

    Decisions passed to `resume_agent` are known from their events, which name nobody. A decision that never took
    effect, because the operation was resumed in another way, is left out.
    """
    if not is_storable(operation_id):
        return []
    row = (await connection.execute(select(*head_columns).where(operations.c.operation_id == operation_id))).first()
    pause = _present_pause(row) if row is not None else None
    kept = select(decisions).where(
        decisions.c.operation_id == operation_id,
        or_(decisions.c.event_number.is_not(None), decisions.c.pause == pause),
    )
    found = [_decision_from_row(each) for each in await connection.execute(kept)]
    linked = {each.event_number for each in found}
    asked: dict[str, PendingTool] = {}
    query = (
        select(events.c.number, events.c.wire)
        .where(events.c.operation_id == operation_id, events.c.type.in_([str(each) for each in ASKING]))
        .order_by(events.c.number)
    )
    for number, wire in await fetch_events(connection, query, operation_id):
        try:
            event = decode(wire)
        except EventDecodeError:  # a newer version has written it
            continue
        if isinstance(event, BeforeHumanIntervention):
            asked |= {call.tool_call_id: call for call in event.pending_tools}
        elif isinstance(event, AfterHumanIntervention) and number not in linked:
            found.append(_decision_from_event(event, number, asked.get(event.tool_call_id or "")))
    return sorted(found, key=lambda each: each.decided_at)


async def read_decisions(
    connection: AsyncConnection, which: DecisionFilter, *, cursor: str | None, limit: int
) -> Page[DecisionRecord]:
    """Read a page of the stored decisions, newest first.

    Decisions that a program passed to `resume_agent` are known from events only, and are not among them.

    Args:
        connection: A connection.
        which: The filter.
        cursor: The cursor of the page before; `None` for the first page.
        limit: Number of decisions at most.

    Raises:
        HookUsageError: If the cursor is invalid.
    """
    column = decisions.c
    order = (column.created_at, column.operation_id, column.pause, column.tool_call_id)
    query = (
        select(decisions, operations.c.agent_id, operations.c.user_id, operations.c.status)
        .join(operations, operations.c.operation_id == column.operation_id, isouter=True)
        .where(*which.conditions())
        .order_by(*(each.desc() for each in order))
        .limit(limit + 1)
    )
    if cursor is not None:
        query = query.where(tuple_(*order) < tuple_(*parse_cursor(cursor, tuple[float, str, int, str])))
    rows = (await connection.execute(query)).all()
    found = [
        DecisionRecord(
            **msgspec.structs.asdict(_decision_from_row(row)),
            agent_id=row.agent_id or "",
            user_id=row.user_id or "",
            operation_status=row.status or "",
        )
        for row in rows[:limit]
    ]
    return Page(items=found, cursor=decision_cursor(found[-1]) if len(rows) > limit else None)


def decision_cursor(last: StoredDecision) -> str:
    """Return the cursor of the page that begins after a stored decision."""
    return encode_cursor((last.decided_at, last.operation_id, int(last.pause), last.tool_call_id))


def _present_pause(row: Row[*tuple[Any, ...]]) -> int | None:
    """Return the start of the pause that an operation is in; `None` if its state cannot be read."""
    with contextlib.suppress(StateFormatError):
        return decode_head(row).waiting_since_unix_nano or 0
    return None


def _decision_from_row(row: Row[*tuple[Any, ...]]) -> StoredDecision:
    """Build a decision from its row."""
    decision = _decode(row.decision)
    call = None if row.call is None else _decode_call(row.call)
    return StoredDecision(
        operation_id=row.operation_id,
        tenant_id=row.tenant_id,
        pause=str(row.pause),
        tool_call_id=row.tool_call_id,
        toolset="" if call is None else call.toolset,
        tool_name="" if call is None else call.tool_name,
        args={} if call is None else call.args,
        decision=action_of(decision),
        reason=decision.reason if isinstance(decision, Reject) else "",
        decided_by=row.decided_by,
        decided_at=row.created_at,
        event_number=row.event_number,
    )


def _decision_from_event(event: AfterHumanIntervention, number: int, call: PendingTool | None) -> StoredDecision:
    """Build a decision from its event, which does not say who made it."""
    return StoredDecision(
        operation_id=event.operation_id,
        tenant_id=event.tenant_id,
        pause="",
        tool_call_id=event.tool_call_id or "",
        toolset="" if call is None else call.toolset,
        tool_name="" if call is None else call.tool_name,
        args={} if call is None else call.args,
        decision=event.action,
        reason=event.rejection_reason or "",
        decided_by="",
        decided_at=event.time_unix_nano / 1e9,
        event_number=number,
    )


async def _read_pause_decisions(
    connection: AsyncConnection, state: OperationState
) -> dict[str, tuple[Approve | Reject, str]]:
    """Read the decisions about the present pause by tool call id, each with who made it."""
    given = {"its_id": state.operation_id, "its_pause": state.waiting_since_unix_nano or 0}
    found = await connection.execute(_select_of_pause(), given)
    return {name: (_decode(kept), by) for name, kept, by in found}


@cache
def _select_of_pause() -> Select[str, bytes, str]:
    return select(decisions.c.tool_call_id, decisions.c.decision, decisions.c.decided_by).where(
        decisions.c.operation_id == bindparam("its_id"), decisions.c.pause == bindparam("its_pause")
    )
