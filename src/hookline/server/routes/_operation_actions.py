"""Routes that act on an operation: interrupt it, and retry it."""

from __future__ import annotations

from hashlib import sha256

from hookline.errors import OperationFinishedError, StaleStateError
from hookline.runtime import find_prompt, make_retry, new_operation_id
from hookline.server._audit import write_audit_alone
from hookline.server._callers import Caller, Req, caller_of
from hookline.server._parts import ServerParts, parts_of
from hookline.server._problems import ApiError
from hookline.server.routes._operations import read_visible_operation
from hookline.server.routes._shared import Id, route
from hookline.store import LIVE, StoredOperation

__all__ = [
    "OPERATION_ACTION_ROUTES",
    "explain_no_retry",
    "interrupt_stored_operation",
    "retry_stored_operation",
]

ENDED = {
    "done": "is done",
    "error": "ended with an error",
    "interrupted": "was interrupted",
    "max_steps": "reached its limit of steps",
    "cost_limit": "reached its limit of cost",
}


@route(
    "POST",
    "/v1/operations/{id:str}/interrupt",
    scope="operations:manage",
    summary="Interrupt an operation",
    errors=[409],
)
async def interrupt_operation(request: Req, id: Id) -> StoredOperation:  # noqa: A002
    """Ask for the interruption of an operation and its sub-agents. To ask again changes nothing.

    The process that runs it stops it at once. An operation that waits for a person is ended by a worker that has its
    agent.
    """
    return await interrupt_stored_operation(parts_of(request), caller_of(request), id)


@route(
    "POST",
    "/v1/operations/{id:str}/retry",
    scope="operations:manage",
    summary="Retry an operation",
    errors=[409],
    status_code=201,
)
async def retry_operation(request: Req, id: Id) -> StoredOperation:  # noqa: A002
    """Start a new operation with the agent, prompt, user and tenant of one that has ended. It names the old one.

    It needs the same hooks as the old one, and runs in a worker that has the agent, such as this server's.
    """
    return await retry_stored_operation(parts_of(request), caller_of(request), id)


async def interrupt_stored_operation(parts: ServerParts, caller: Caller, id: str) -> StoredOperation:  # noqa: A002
    """Ask for the interruption of an operation that the caller may see.

    Returns:
        The operation, with who asked first and when.

    Raises:
        ApiError: 404, if the caller may not see it; 409, if it has ended.
    """
    await read_visible_operation(parts, caller, id)
    try:
        return await parts.store.request_interrupt(id, by=caller.actor, tenant_id=caller.tenant())
    except OperationFinishedError as error:
        how = ENDED.get(error.reason, f"ended with {error.reason}")
        raise ApiError(409, "ended", f"The operation {how} already, so there is nothing to interrupt.") from None


def explain_no_retry(parts: ServerParts, operation: StoredOperation) -> str:
    """Explain why an operation cannot be retried; `""` if nothing in its summary speaks against it.

    Args:
        parts: The parts of the server.
        operation: The operation.
    """
    if operation.parent_operation_id is not None:
        return "It is the operation of a sub-agent. Retry the operation that called it."
    if operation.status in LIVE:
        return "It has not ended. Interrupt it first, so that it does not run twice at the same time."
    if operation.agent_id not in parts.agents:
        return "This server does not have its agent. Start the server with the agent, or retry it where the agent is."
    return ""


async def retry_stored_operation(
    parts: ServerParts,
    caller: Caller,
    id: str,  # noqa: A002
    *,
    key: str = "",
) -> StoredOperation:
    """Store a new operation that retries one which the caller may see, for a worker to run.

    Args:
        parts: The parts of the server.
        caller: The caller.
        id: The id of the operation to retry.
        key: Names this retry: the same key never starts a second operation.

    Returns:
        The new operation.

    Raises:
        ApiError: 404, if the caller may not see it; 409, if it cannot be retried.
        StateFormatError: If a newer version of hookline stored it.
    """
    operation = await read_visible_operation(parts, caller, id)
    problem = explain_no_retry(parts, operation)
    if problem:
        raise ApiError(409, "no_retry", f"The operation cannot be retried. {problem}")
    state = await parts.store.load(id)
    if state is not None and state.framework:
        problem = f"{state.framework} ran it, and hookline cannot start that framework."
    prompt = None if state is None else find_prompt(state, operation.prompt)
    if prompt is None:
        problem = problem or "Its conversation was compacted, so that its prompt is no longer known as a whole."
    if state is None or prompt is None or problem:
        raise ApiError(409, "no_retry", f"The operation cannot be retried. {problem}")
    new_id = f"op_{sha256(f'{id} {key}'.encode()).hexdigest()[:32]}" if key else new_operation_id()
    new = make_retry(parts.agents[operation.agent_id], state, prompt, new_id)
    try:
        await parts.store.commit(new, expected_version=None, entries=())
    except StaleStateError:
        return await read_visible_operation(parts, caller, new_id)  # the same form was sent twice
    await write_audit_alone(
        parts.store, operation.tenant_id, caller.actor, "operation.retry", id, detail={"operationId": new_id}
    )
    await parts.store.release(new_id)
    return await read_visible_operation(parts, caller, new_id)


OPERATION_ACTION_ROUTES = [interrupt_operation, retry_operation]
