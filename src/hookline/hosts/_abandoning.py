"""End operations of coding agents that no process runs any more: interrupted ones, and those of dead processes."""

from __future__ import annotations

import logging

from hookline.errors import HooklineError, message_of
from hookline.hosts._policy import InstalledPolicy
from hookline.runtime import Agent, ScriptedModel, recover_agent

__all__ = ["abandon", "abandon_interrupted", "abandon_orphans"]

logger = logging.getLogger("hookline")

MOST_GENERATIONS = 20


async def abandon(policy: InstalledPolicy, operation_id: str, framework: str) -> None:
    """End an operation as interrupted, and the sub-agents of it that no process runs; another process may be faster.

    Questions that wait for a person are left to wait.

    Args:
        policy: The policy, whose hooks are told.
        operation_id: The operation.
        framework: The coding agent that ran it; its operations of other users are left to their processes.
    """
    await _abandon(policy, operation_id, framework, MOST_GENERATIONS)


async def _abandon(policy: InstalledPolicy, operation_id: str, framework: str, generations: int) -> None:
    sql = policy.sql
    if sql is None or generations == 0:
        return
    try:
        state = await sql.load(operation_id)
        its = (policy.tenant_id, policy.user_id, framework)
        if state is None or (state.tenant_id, state.user_id, state.framework) != its:
            return
        for child in await sql.children(operation_id):
            if child.status == "running":
                await _abandon(policy, child.operation_id, framework, generations - 1)
        agent = Agent(id=state.agent_id, model=ScriptedModel([]))
        await recover_agent(
            agent,
            operation_id,
            store=sql,
            hooks=policy.hooks(),
            dispatcher=policy.dispatcher,
            abandon=True,
        )
    except HooklineError as error:
        logger.info("Operation %s is left to others: %s", operation_id, message_of(error))


async def abandon_interrupted(policy: InstalledPolicy, host: str, framework: str) -> None:
    """End the operations whose interruption was asked for and that wait for a person, or whose process is dead.

    Args:
        policy: The policy.
        host: The name of the coding agent.
        framework: Its title.
    """
    if policy.sql is not None:
        for operation_id in await policy.sql.unattended_interrupts([host]):
            await abandon(policy, operation_id, framework)


async def abandon_orphans(policy: InstalledPolicy, host: str, framework: str) -> None:
    """End the operations of sessions whose resident process has died: a session cannot go on in another one.

    Args:
        policy: The policy.
        host: The name of the coding agent.
        framework: Its title.
    """
    if policy.sql is not None:
        for operation_id in await policy.sql.orphans(agent_ids=[host]):
            await abandon(policy, operation_id, framework)
