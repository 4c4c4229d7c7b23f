"""A call that a person must decide about: an operation of its own, which outlives the process that asked."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable

import msgspec

from hookline.calls import Message, ToolRequest
from hookline.errors import OperationBusyError, OperationExistsError, StateFormatError, message_of
from hookline.events import PendingTool
from hookline.hosts._abandoning import abandon
from hookline.hosts._policy import InstalledPolicy
from hookline.hosts._reading import SessionEvent
from hookline.runtime import AdapterRun, Approve, Capabilities, OperationState, Reject

__all__ = ["Question", "key_of", "load_questions", "reject_forgotten"]

logger = logging.getLogger("hookline")

METADATA = "hookline.host"
"""Where the metadata of the operation say which call it is about."""
MOST_QUESTIONS = 1000
FORGOTTEN = "Nobody decided, and the session did not return."
FORGOTTEN_SECONDS = 6 * 3600.0
"""How long a question may wait for its session to return, besides the time for which the call itself waits."""


def key_of(event: SessionEvent) -> str:
    """Return what makes two calls the same one, asked twice: the agent, the tool and its arguments.

    It is a digest, because it is stored: the arguments may be the very ones that a hook has changed to hide something.
    """
    args = msgspec.json.encode(event.args, order="deterministic", enc_hook=str)
    return hashlib.sha256(b"\n".join((event.agent_id.encode(), event.tool.encode(), args))).hexdigest()


class QuestionMetadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The metadata of the operation of a question, as they are stored.

    Attributes:
        call: The key of the call.
        installation: The key of the installation whose process asked.
    """

    call: str
    installation: str


class Question:
    """A call that a person must decide about.

    With a store it is an operation of its own, which waits for a person like every other: the session goes on
    meanwhile, with other calls and sub-agents, and so may another process.

    Args:
        policy: The policy.
        capabilities: What the coding agent supports.
        asked: The call, as the person is shown it.
        operation_id: The operation that waits.
        agent_id: The agent of the operation.
    """

    def __init__(
        self,
        policy: InstalledPolicy,
        capabilities: Capabilities,
        asked: PendingTool,
        operation_id: str,
        agent_id: str,
    ) -> None:
        self.asked, self.operation_id = asked, operation_id
        self.settled = False
        self._is_new = False
        self._policy, self._capabilities, self._agent_id = policy, capabilities, agent_id

    @classmethod
    async def open(
        cls, policy: InstalledPolicy, agent_id: str, parent: AdapterRun, asked: PendingTool, key: str
    ) -> Question:
        """Put a question: pause an operation that waits for the decision. Do not cancel this.

        Args:
            policy: The policy.
            agent_id: The agent of the operation: the host's name.
            parent: The run of the agent that wants to make the call.
            asked: The call.
            key: What makes another call the same one.
        """
        run = AdapterRun(policy.hooks(), parent.capabilities, agent_id=agent_id, parent=parent, best_effort=True)
        stored = QuestionMetadata(call=key, installation=policy.installation_key)

        await run.open([Message(role="user", content=asked.prompt or f"May {asked.tool_name} run?")])
        run.run.metadata = {METADATA: msgspec.to_builtins(stored)}
        run.begin_step()
        run.pause([asked])
        await run.close()
        policy.asked_here.add(run.operation_id)
        question = cls(policy, parent.capabilities, asked, run.operation_id, agent_id)
        question._is_new = True
        return question

    async def wait(self, seconds: float, stops: Callable[[], bool]) -> Approve | Reject | None:
        """Wait for the decision of a person, from the page, the command line or the API.

        Args:
            seconds: How long at most.
            stops: Says when to wait no longer.
        """
        is_new, self._is_new = self._is_new, False
        if is_new and seconds <= 0:
            return None
        return await self._policy.decision(
            self.operation_id, self.asked.tool_call_id, seconds, stops, looks_first=not is_new
        )

    async def settle(self, decision: Approve | Reject) -> bool:
        """End the operation that waits, with the decision. A failure is logged: the decision holds all the same.

        Returns:
            Whether the decision is for the call of this question: an equal call may have used it, also in another
            process.
        """
        if self.settled:
            return False
        self.settled = True
        self._policy.asked_here.discard(self.operation_id)
        return await self._policy.finish(self._settle(decision))

    async def _settle(self, decision: Approve | Reject) -> bool:
        try:
            await self._record(decision)
        except (OperationBusyError, OperationExistsError):  # another process has ended it, or is doing so
            return False
        except Exception as error:
            logger.error("Operation %s could not be ended: %s", self.operation_id, message_of(error))
        return True

    async def _record(self, decision: Approve | Reject) -> None:
        run = AdapterRun(
            self._policy.hooks(),
            self._capabilities,
            agent_id=self._agent_id,
            operation_id=self.operation_id,
            store=self._policy.store,
            dispatcher=self._policy.dispatcher,
            best_effort=True,
            allow_missing_hooks=True,
        )
        await run.open()
        run.begin_step()
        run.decided([decision])
        if isinstance(decision, Reject) and decision.and_continue:
            asked = self.asked
            request = ToolRequest(
                toolset=asked.toolset, tool_name=asked.tool_name, args=asked.args, tool_call_id=asked.tool_call_id
            )
            run.refused(request, decision)
        if isinstance(decision, Approve) or decision.and_continue:
            run.finish("done", "")
        await run.close()

    async def interrupt(self) -> None:
        """End the operation that waits as interrupted: nobody is asked any more."""
        if not self.settled:
            self.settled = True
            self._policy.asked_here.discard(self.operation_id)
            await self._policy.finish(abandon(self._policy, self.operation_id, self._capabilities.framework))


async def load_questions(
    policy: InstalledPolicy, host: str, capabilities: Capabilities, session_id: str, known: set[str]
) -> dict[str, Question]:
    """Load the questions of a session that another process has put, by the keys of their calls.

    Args:
        policy: The policy.
        host: The name of the coding agent.
        capabilities: What it supports.
        session_id: The session.
        known: The operations that were loaded before, which are left out; those of this call are added.
    """
    found = {}

    def is_known(operation_id: str) -> bool:
        return operation_id in known or operation_id in policy.asked_here

    for state in await _waiting_states(policy, host, capabilities, is_known):
        known.add(state.operation_id)
        stored = _read_metadata(state)
        if state.conversation_id == session_id and stored is not None and state.pending:
            asked = state.pending[0]
            found[stored.call] = Question(policy, capabilities, asked, state.operation_id, host)
    return found


async def reject_forgotten(policy: InstalledPolicy, host: str, capabilities: Capabilities, seconds: float) -> None:
    """Reject the questions of an installation whose session has not come back, and that nobody has decided.

    Args:
        policy: The policy.
        host: The name of the coding agent.
        capabilities: What it supports.
        seconds: How long a call itself waits for a decision.
    """
    before = time.time() - seconds - FORGOTTEN_SECONDS
    for state in await _waiting_states(policy, host, capabilities):
        stored = _read_metadata(state)
        if stored is None or stored.installation != policy.installation_key or not state.pending:
            continue
        if (state.waiting_since_unix_nano or 0) / 1e9 < before:
            question = Question(policy, capabilities, state.pending[0], state.operation_id, host)
            await question.settle(Reject(question.asked.tool_call_id, reason=FORGOTTEN, and_continue=True))


async def _waiting_states(
    policy: InstalledPolicy,
    host: str,
    capabilities: Capabilities,
    is_known: Callable[[str], bool] = lambda operation_id: False,
) -> list[OperationState]:
    """Return the states of the operations of a coding agent that wait for a person, without those that are known."""
    sql = policy.sql
    if sql is None:
        return []
    found = []
    async with policy.reading:
        page = await sql.operations(
            policy.tenant_id, "waiting_for_human", agent_id=host, user_id=policy.user_id, limit=MOST_QUESTIONS
        )
        for operation_id in [each.operation_id for each in page.items if not is_known(each.operation_id)]:
            try:
                state = await sql.load(operation_id)
            except StateFormatError:  # a newer version wrote it
                continue
            if state is not None and state.status == "waiting_for_human" and state.framework == capabilities.framework:
                found.append(state)
    return found


def _read_metadata(state: OperationState) -> QuestionMetadata | None:
    given = state.steering.metadata.get(METADATA) if state.steering is not None else None
    try:
        return msgspec.convert(given, QuestionMetadata)
    except msgspec.ValidationError:
        return None
