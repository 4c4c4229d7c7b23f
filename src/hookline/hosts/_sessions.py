"""The sessions of coding agents as operations: each hook process brings one event, and the session holds the run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from hookline.calls import AgentCall, Call, CompactCall, Message, SubAgentCall, ToolCall, ToolRequest, ToolResult
from hookline.errors import HooklineError, message_of
from hookline.events import HookType, PendingTool
from hookline.hosts._agent_runs import AgentRun, NotRun, StartedAgent, UnfinishedCall, plain_args
from hookline.hosts._answers import HookVerdict
from hookline.hosts._hosts import Host
from hookline.hosts._moments import Moment
from hookline.hosts._pending_calls import Question, key_of, load_questions
from hookline.hosts._policy import InstalledPolicy
from hookline.hosts._reading import SessionEvent
from hookline.hosts._transcripts import FORMATS, ReportedCall, SessionTranscripts
from hookline.runtime import KINDS, AdapterRun, AgentDone, Approve, Capabilities, Reject, ToolDone

__all__ = ["MAX_CONTINUES", "HostPatience", "QuestionMoved", "Session", "capabilities_of"]

logger = logging.getLogger("hookline")

MAX_CONTINUES = 3
"""How often hooks may make an agent go on that would stop; Codex and Gemini would go on for ever."""
READ_SECONDS = 0.5
"""How long one reading of transcripts may take; what is left is read the next time."""
SETTLE_SECONDS = 0.5
"""How long after a turn its transcript is read: Claude Code writes the last answer after its Stop hooks have ended."""
LATE_SECONDS, LATE_LOOK_SECONDS = 3.0, 0.1
"""How long, and how often, it is looked for the end of a transcript that Copilot CLI writes after its session ended."""
SMALLEST_COST = 1e-9


def capabilities_of(host: Host) -> Capabilities:
    """Return which hooks a coding agent can call; its model calls are its own."""
    calls: dict[type[Call], frozenset[str]] = {AgentCall: KINDS, ToolCall: KINDS, SubAgentCall: KINDS}
    if host.refuses_compaction:
        calls[CompactCall] = frozenset({"before", "guard"})
    return Capabilities(
        framework=host.title,
        events=frozenset(HookType) - {HookType.ON_COMPACT_ERROR},
        calls=calls,
        asks=True,
        adds_context=frozenset({AgentCall, ToolCall}),
        raises_stopped=False,
    )


class HostToolError(Exception):
    """A tool of a coding agent failed; its error text is all that is known."""


class NotStarted(Exception):
    """Hooks of `AgentCall` refused to let a sub-agent run."""


class HostPatience(NamedTuple):
    """How long a coding agent waits for an answer.

    Attributes:
        seconds: How long.
        announce_wait: Called when a person is asked, whose decision another process can take over from now on.
    """

    seconds: float
    announce_wait: Callable[[], None] = lambda: None


class QuestionMoved(Exception):
    """A question was left to the process that replaces this one, which ends while a person is asked."""


def context_of(done: ToolDone | AgentDone | None) -> str:
    """Return the text that hooks want the model to read besides a result; after a denial it is part of the reason."""
    return done.added if isinstance(done, ToolDone) else ""


class Session:
    """A session of a coding agent: its operation, those of its sub-agents, and the calls under way.

    Args:
        host: The coding agent.
        session_id: The session, by the host's id.
        policy: The hooks, and where operations are kept.
        leaves: Says whether this process is about to end, so that another one takes over questions.
    """

    def __init__(
        self, host: Host, session_id: str, policy: InstalledPolicy, leaves: Callable[[], bool] = lambda: False
    ) -> None:
        self.session_id = session_id
        self.used = monotonic()
        self.judging = 0
        self.unmatched = 0
        self._host, self._policy, self._leaves = host, policy, leaves
        self._capabilities = capabilities_of(host)
        self._opening, self._restoring = asyncio.Lock(), asyncio.Lock()
        self._restored = False
        self._main: AgentRun | None = None
        self._agents: dict[str, AgentRun] = {}
        self._ending: dict[str, AgentRun] = {}
        self._started: list[StartedAgent] = []
        self._questions: dict[str, Question] = {}
        self._asking: dict[str, asyncio.Task[Question]] = {}
        self._known_questions: set[str] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._ended: asyncio.Task[None] | None = None
        self._transcripts = SessionTranscripts(FORMATS.get(host.name), time.time())
        self._is_whole = False
        self._known_cost = 0.0

    @property
    def operation_id(self) -> str:
        """The id of the session's operation; `""` between two of them."""
        return self._main.run.operation_id if self._main is not None else ""

    def is_idle(self, seconds: float) -> bool:
        """Return whether nothing has happened in it for some time, and nothing is under way."""
        return not self.judging and monotonic() - self.used > seconds

    async def judge(self, event: SessionEvent, patience: HostPatience) -> HookVerdict:
        """Run the hooks of an event.

        Args:
            event: The event.
            patience: How long the host waits for the answer.

        Raises:
            QuestionMoved: If this process ends while a person is asked.
        """
        self.used, self.judging = monotonic(), self.judging + 1
        try:
            await self._restore_questions()
            self._transcripts.note_session(event.transcript, event.agent_id)
            self._transcripts.note(event.agent_transcript, event.agent_id)
            return await self._judge(event, patience)
        finally:
            self.used, self.judging = monotonic(), self.judging - 1

    async def _judge(self, event: SessionEvent, patience: HostPatience) -> HookVerdict:
        match event.moment:
            case Moment.SESSION_START:
                self._is_whole = event.source in ("startup", "new")
                await self._open_main(event)
                return HookVerdict()
            case Moment.PROMPT:
                return await self._begin_turn(event)
            case Moment.BEFORE_TOOL:
                return await self._before_tool(event, patience)
            case Moment.AFTER_TOOL | Moment.FAILED_TOOL:
                return await self._after_tool(event)
            case Moment.AGENT_START:
                agent = await self._agent_of(event)
                return HookVerdict(context=agent.take_added() if agent is not self._main else "")
            case Moment.AGENT_STOP:
                return await self._stop_agent(event)
            case Moment.BEFORE_COMPACT:
                return await self._before_compact(event)
            case Moment.AFTER_COMPACT:
                await (await self._agent_of(event)).end_compaction(event.summary)
                return HookVerdict()
            case Moment.STOP if event.agent_id:  # Copilot CLI tells the end of a sub-agent twice
                return HookVerdict()
            case Moment.STOP:
                return await self._end_turn(await self._agent_of(event), event)
            case Moment.SESSION_END:
                if self._ended is None or self._ended.done():
                    self._ended = self._policy.start(self._end())
                if not self._transcripts.is_late:  # else the host writes the rest when its hooks have answered
                    await asyncio.shield(self._ended)  # also if the host does not wait for it
                return HookVerdict()
            case _:
                return HookVerdict()

    async def close(self, *, done: bool) -> None:
        """End the session's operations, and the questions that nobody has answered.

        Args:
            done: Whether the host ended the session; otherwise its operation counts as interrupted.
        """
        await self._reject_questions("The session ended.")
        await self._close_runs(done=done)

    async def _end(self) -> None:
        """End the session because the host did, when its transcript is complete."""
        end = monotonic() + LATE_SECONDS
        await self._read_transcripts()
        while self._transcripts.is_unfinished and monotonic() < end and not self._leaves():
            await asyncio.sleep(LATE_LOOK_SECONDS)
            await self._read_transcripts()
        await self.close(done=True)

    async def leave(self) -> None:
        """End the session's operations, because this process ends; another one takes over its questions."""
        if self._ended is not None:
            await self._ended
        if self._policy.sql is None:
            await self._reject_questions("The resident process of hookline ended.")
        self._questions.clear()
        await self._close_runs(done=False)

    async def _close_runs(self, *, done: bool) -> None:
        self._closing.set()
        await asyncio.gather(*self._background)
        await self._read_transcripts()
        started, self._started = self._started, []
        for call in started:
            await call.end(error=NotRun("The session ended before the sub-agent did."))
        agents, self._agents = list(self._agents.values()), {}
        for agent in agents:
            self._count_untold(agent)
            await agent.close(done=done)
        main = self._main
        if main is not None:
            self._count_untold(main)
            self._add_untold_cost(main)
            self._main = None
            await main.close(done=done)
        await asyncio.gather(*self._background)

    # Runs.

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something after the host has its answer. The session ends only after it."""

        async def run() -> None:
            try:
                await work
            except Exception as error:
                logger.error("Session %s: %s", self.session_id, message_of(error), exc_info=error)

        task = self._policy.start(run())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _write_soon(self, agent: AgentRun) -> None:
        """Write the run after the host has its answer: a commit takes longer than all hooks together."""
        self._in_background(self._write(agent))

    async def _write(self, agent: AgentRun) -> None:
        try:
            await agent.write()
        except HooklineError as error:
            logger.error("Operation %s could not be written: %s", agent.run.operation_id, message_of(error))

    async def _open_main(self, event: SessionEvent) -> AgentRun:
        """Return the session's own agent, and open its run if there is none."""
        async with self._opening:
            if self._main is None:
                policy = self._policy
                run = AdapterRun(
                    policy.hooks(),
                    self._capabilities,
                    agent_id=self._host.name,
                    model=event.model,
                    user_id=policy.user_id,
                    tenant_id=policy.tenant_id,
                    conversation_id=self.session_id,
                    dispatcher=policy.dispatcher,
                    store=policy.store,
                    best_effort=True,
                    writes_ahead=False,
                    on_interrupt=lambda: self._in_background(self._end_interrupted(run)),
                )
                await run.open([Message(role="user", content=event.text)] if event.moment is Moment.PROMPT else [])
                self._main = AgentRun(run, event.at)
            return self._main

    async def _open_child(
        self, parent: AgentRun, callee: str, task: str, operation_id: str | None, at: float, *, has_started: bool
    ) -> tuple[AgentRun, AgentDone | None]:
        """Open the run of a sub-agent, and run the hooks of `AgentCall` up to it.

        All hooks hold in it, whether they ask to be inherited or not.

        Args:
            parent: The agent that called it.
            callee: The kind of the sub-agent.
            task: Its task.
            operation_id: The id of its operation; a new one by default.
            at: When it was given the task, in unix seconds.
            has_started: Whether it runs already, so that hooks can no longer change its task.

        Returns:
            The run, and the answer of the hooks if they let the sub-agent not run.
        """
        policy = self._policy
        run = AdapterRun(
            policy.hooks(),
            self._capabilities,
            agent_id=callee,
            operation_id=operation_id,
            parent=parent.run,
            best_effort=True,
            writes_ahead=False,
            on_interrupt=lambda: self._in_background(self._end_interrupted(run)),
        )
        await run.open([Message(role="user", content=task)])
        child = AgentRun(run, at)
        try:
            refused = await child.begin_turn(task, at, can_change=not has_started)
        except BaseException:  # the client went away: nobody else knows of the run
            await policy.finish(child.close(done=False))
            raise
        return child, refused

    async def _agent_of(self, event: SessionEvent) -> AgentRun:
        """Return the agent in which an event happened."""
        main = await self._open_main(event)
        if event.agent_id:
            async with self._opening:
                found = self._agents.get(event.agent_id)
                if found is None:
                    found = self._bind(event)
                if found is None and not main.is_open:  # an interrupted session starts no further agents
                    return main
                if found is None:  # nobody saw it start
                    callee = event.agent_type or "agent"
                    found, _ = await self._open_child(main, callee, event.text, None, event.at, has_started=True)
                    self._agents[event.agent_id] = found
                return found
        if not self._host.names_agents:
            running = [each for each in self._started if each.agent is not None and not each.stopped]
            if len(running) == 1 and event.tool not in self._host.spawns and running[0].agent is not None:
                return running[0].agent
        return main

    def _bind(self, event: SessionEvent) -> AgentRun | None:
        """Find the call that started a sub-agent: by its task, else the oldest for its kind, else the oldest of all."""
        waiting = [each for each in self._started if not each.agent_id and each.agent is not None]
        by_task = (each for each in waiting if event.moment is Moment.PROMPT and each.given == event.text)
        by_kind = (each for each in waiting if each.callee == event.agent_type)
        started = next(by_task, next(by_kind, waiting[0] if waiting else None))
        if started is None:
            return None
        self._assign(started, event.agent_id)
        return started.agent

    def _assign(self, started: StartedAgent, agent_id: str) -> None:
        """Note which sub-agent a call has started; one that another call was thought to have started changes places."""
        other = next((each for each in self._started if each.agent_id == agent_id and each is not started), None)
        if other is not None:
            other.agent_id, other.stopped, started.stopped = started.agent_id, started.stopped, other.stopped
            if other.agent_id and other.agent is not None:
                self._agents[other.agent_id] = other.agent
        started.agent_id = agent_id
        if started.agent is not None:
            known = self._agents.get(agent_id)
            if known is not None and all(known is not each.agent for each in self._started):  # its start came later
                self._in_background(known.close(done=True))
            self._agents[agent_id] = started.agent

    async def _end_interrupted(self, run: AdapterRun) -> None:
        """End an agent that somebody has interrupted; the calls that it still makes are denied."""
        main = self._main
        if main is None or main.run is not run:
            agent = next((each for each in (*self._agents.values(), *self._open_children()) if each.run is run), None)
            if agent is not None:
                await agent.close(done=False)
            return
        questions, self._questions = list(self._questions.values()), {}
        for question in questions:
            await question.interrupt()
        await self._read_transcripts()
        started, self._started = self._started, []
        for call in started:
            await call.end(error=NotRun("The session was interrupted."))
        for agent in list(self._agents.values()):
            self._count_untold(agent)
            await agent.close(done=False)
        self._count_untold(main)
        await main.close(done=False)

    def _open_children(self) -> list[AgentRun]:
        return [each.agent for each in self._started if each.agent is not None]

    # Tokens.

    async def _read_transcripts(self) -> None:
        """Record the model calls that transcripts tell of, and that are new; a file that hangs is given up."""
        if not self._transcripts.has_tokens:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_SECONDS * 2):
                while self._reading is not None and not self._reading.done():
                    await asyncio.shield(self._reading)
                self._reading = asyncio.create_task(self._read_transcripts_now())
                await asyncio.shield(self._reading)

    async def _read_transcripts_now(self) -> None:
        try:
            found = await asyncio.to_thread(self._transcripts.read, self.session_id, READ_SECONDS)
        except Exception as error:  # figures are not worth a failed call
            problem = message_of(error)
            logger.warning("The transcripts of session %s could not be read: %s", self.session_id, problem)
            return
        for call in found:
            agent = self._caller_of(call)
            if agent is not None and agent.is_open:
                agent.count_calls([call], self._transcripts.provider)
                self._known_cost += call.cost_usd

    def _caller_of(self, call: ReportedCall) -> AgentRun | None:
        """Return the agent that made a model call; the session's own for a sub-agent that has ended."""
        name = call.agent_id or ""
        found = self._agents.get(name) or self._ending.get(name)
        if found is None and call.task:
            found = next((each.agent for each in self._started if each.given == call.task), None)
        return found if found is not None and found.is_open else self._main

    async def _settle_transcripts(self) -> None:
        """Wait until the coding agent has written the end of a turn, but not for longer than the session lasts."""
        if self._transcripts.has_tokens:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), SETTLE_SECONDS)
        await self._read_transcripts()

    async def _write_settled(self, agent: AgentRun) -> None:
        await self._settle_transcripts()
        await self._write(agent)

    def _count_untold(self, agent: AgentRun) -> None:
        """Count the model calls of which nothing is told, unless it may still be told."""
        if self._transcripts.is_late and agent is not self._main:
            return
        model = getattr(agent.run.run.agent.model, "name", "") if agent.is_open else ""
        agent.count_untold_calls(self._transcripts.provider, model)

    def _add_untold_cost(self, main: AgentRun) -> None:
        """Add what the coding agent counts beyond the prices that are known here, if the whole session was seen."""
        total = self._transcripts.cost_usd
        if self._is_whole and total is not None and total - self._known_cost > SMALLEST_COST:
            main.add_cost(total - self._known_cost)
            self._known_cost = total

    # Turns.

    async def _begin_turn(self, event: SessionEvent) -> HookVerdict:
        if event.agent_id:  # Codex and Copilot CLI tell the prompt of a sub-agent, too
            agent = await self._agent_of(event)
            if agent.stop_reason is not None:
                return HookVerdict(decision="deny", reason=_stopped_text(agent.stop_reason))
            if agent.turn is None:
                await agent.begin_turn(event.text, event.at)
            return HookVerdict(context=agent.take_added())
        main = await self._open_main(event)
        stopped = main.stop_reason
        if stopped is not None and event.text.startswith(self._host.own_prompts):
            return HookVerdict(decision="deny", reason=_stopped_text(stopped))
        if stopped is not None:  # the turn that was stopped is over: this is another one
            self._main = None
            await main.close(done=False)
            main = await self._open_main(event)
        if main.continuation and event.text == main.continuation:
            # Gemini CLI tells what a hook made it go on with as another prompt; it is the same turn.
            main.continuation = ""
            return HookVerdict(context=main.added)
        main.continuation = ""
        if self._host.asks:
            # The question was put to the person in front of the host, who went on.
            await self._reject_questions("The person went on with another prompt.")
        await self._read_transcripts()
        self._count_untold(main)
        main.continues = 0
        done = await main.begin_turn(event.text, event.at)
        self._write_soon(main)
        if done is None:
            return HookVerdict(context=main.added)
        self._main = None
        await main.close(done=False)
        reason = done.denied.reason if done.denied is not None else done.output
        return HookVerdict(decision="deny", reason=reason)

    async def _end_turn(self, agent: AgentRun, event: SessionEvent) -> HookVerdict:
        if not agent.is_open:  # it was interrupted: it stops, as it is to
            return HookVerdict()
        if agent is self._main and self._host.asks:
            await self._reject_questions("The call was not approved.")
        done = await agent.end_turn(event.text, event.at)
        if not self._transcripts.has_tokens:
            self._count_untold(agent)
        self._write_soon(agent)
        if self._transcripts.has_tokens:
            self._in_background(self._write_settled(agent))
        if agent.stop_reason is not None:
            if agent is self._main:
                await self._read_transcripts()
                self._count_untold(agent)
                await agent.close(done=False)
            return HookVerdict()
        if done is None or not done.continues:
            return HookVerdict()
        agent.continues += 1
        if agent.continues > MAX_CONTINUES:
            logger.warning(
                "Operation %s: a hook returned Continue, but %s was already continued %d times in this turn",
                agent.run.operation_id,
                self._host.title,
                MAX_CONTINUES,
            )
            return HookVerdict()
        reason = "\n\n".join(done.continues)
        refused = await agent.begin_turn(reason, time.time())
        agent.continuation = reason
        return HookVerdict() if refused is not None else HookVerdict(decision="continue", reason=reason)

    async def _stop_agent(self, event: SessionEvent) -> HookVerdict:
        agent = await self._agent_of(event)
        verdict = await self._end_turn(agent, event)
        if verdict.decision == "continue" or agent is self._main:
            return verdict
        started = next((each for each in self._started if each.agent is agent), None)
        if started is not None:
            started.stopped = True
        if started is None or started.detached:
            self._agents.pop(event.agent_id, None)
            self._ending[event.agent_id] = agent
            if started is not None:
                self._started.remove(started)
            self._in_background(self._end_agent(event, agent, started))
        return verdict

    async def _end_agent(self, event: SessionEvent, agent: AgentRun, started: StartedAgent | None) -> None:
        """End a sub-agent that nobody waits for, when its transcript is complete."""
        await self._settle_transcripts()
        self._count_untold(agent)
        if started is not None:
            await started.end(event.text)
        else:
            await agent.close(done=True)
        self._ending.pop(event.agent_id, None)

    # Tools.

    async def _before_tool(self, event: SessionEvent, patience: HostPatience) -> HookVerdict:
        agent = await self._agent_of(event)
        stopped = self._stop_reason_of(agent)
        if stopped is not None:
            return _deny_stopped(stopped)
        question = self._questions.get(key_of(event))
        if question is not None:
            return await self._decide(agent, event, question, patience)
        if event.tool in self._host.spawns:
            return await self._start_agent(agent, event)
        return await self._call_tool(agent, event, patience)

    def _stop_reason_of(self, agent: AgentRun) -> str | None:
        """Return why an agent, or the session, was ended; `None` if it was not."""
        if agent.stop_reason is not None or self._main is None:
            return agent.stop_reason
        return self._main.stop_reason

    async def _call_tool(
        self,
        agent: AgentRun,
        event: SessionEvent,
        patience: HostPatience,
        *,
        approved: bool = False,
    ) -> HookVerdict:
        """Run the hooks of a call up to the tool."""
        agent.begin_step(event.at)
        request = _request_for(event)
        agent.note_call(request)
        call = UnfinishedCall(event)
        reached = await call.begin(agent.run.call_tool(request, call.work, approved=approved))
        if not agent.is_open:  # it was interrupted meanwhile
            await call.end(error=NotRun("The session was interrupted."))
            return _deny_stopped(self._stop_reason_of(agent) or "")
        if reached:
            agent.calls.append(call)
            self._write_soon(agent)
            final = plain_args(call.given)
            return HookVerdict(args=final if final != event.args else None)
        done: ToolDone = call.result
        if done.asked is not None:
            agent.run.step.asked.pop(done.asked.tool_call_id, None)
            question = await self._ask(agent, done.asked, key_of(event))
            return await self._decide(agent, event, question, patience)
        agent.note(Message(role="tool", content=done.result.content, tool_call_id=request.tool_call_id))
        agent.note_informed(time.time())
        self._write_soon(agent)
        stop = done.stop.reason if done.stop is not None else None
        return HookVerdict(decision="deny", reason=_refusal(event, done), stop=stop)

    async def _approve_changed(
        self,
        agent: AgentRun,
        event: SessionEvent,
        asked: PendingTool,
        patience: HostPatience,
    ) -> HookVerdict:
        """Run an approved call, whose arguments hooks may have changed before the person saw them."""
        final = dict(asked.args)
        changed = msgspec.structs.replace(event, args=final)
        verdict = await self._call_tool(agent, changed, patience, approved=True)
        if final == event.args or verdict.decision or verdict.args is not None:
            return verdict
        return msgspec.structs.replace(verdict, args=final)

    async def _after_tool(self, event: SessionEvent) -> HookVerdict:
        agent = await self._agent_of(event)
        if not agent.is_open:
            return HookVerdict(stop=_stopped_text(self._stop_reason_of(agent) or ""))
        if event.tool in self._host.spawns:
            started = self._find_started(event)
            if started is not None:
                return await self._agent_started(agent, started, event)
        call = agent.find_call(event)
        done: ToolDone
        if call is not None:
            failed = event.moment is Moment.FAILED_TOOL
            done = await call.end(
                None if failed else ToolResult(content=event.result), HostToolError(event.error) if failed else None
            )
        else:
            done = await self._report_call(agent, event)
        agent.note(Message(role="tool", content=done.result.content, tool_call_id=event.call_id or None))
        agent.note_informed(time.time())
        self._write_soon(agent)
        stop = done.stop.reason if done.stop is not None else None
        added = context_of(done)
        result = done.result.content if done.changed and not added else None
        return HookVerdict(result=result, tool=event.tool, response=event.response, stop=stop, context=added)

    async def _report_call(self, agent: AgentRun, event: SessionEvent) -> ToolDone:
        """Report a call that ran without a question: a person approved it in the host, or the session is new here."""
        question = self._take_question(event)
        if question is not None:
            await question.settle(Approve(question.asked.tool_call_id))
        else:
            self.unmatched += 1
        agent.begin_step(event.at)
        request = _request_for(event)
        agent.note_call(request)

        async def ran(_: Mapping[str, Any]) -> ToolResult:
            if event.moment is Moment.FAILED_TOOL:
                raise HostToolError(event.error)
            return ToolResult(content=event.result)

        return await agent.run.call_tool(request, ran, approved=question is not None)

    # Sub-agents.

    async def _start_agent(self, agent: AgentRun, event: SessionEvent) -> HookVerdict:
        agent.begin_step(event.at)
        agent.note_call(_request_for(event))
        started = StartedAgent(event)

        async def work(task: str, operation_id: str) -> str:
            child, refused = await self._open_child(
                agent, started.callee, task, operation_id, event.at, has_started=False
            )
            if refused is not None:
                await child.close(done=refused.denied is None)
                denied = refused.denied
                raise NotStarted(denied.reason if denied is not None else _unusable(event.tool, refused.output))
            started.agent = child
            given = child.task
            if child.added and self._host.adds_context_to_task:
                given = f"{given}\n\n{child.take_added()}"
            try:
                output: str = await started.work(given)
                if child.stop_reason is not None:
                    raise NotRun(child.stop_reason)
                return output
            finally:
                await child.close(done=started.stopped)

        task = str(event.args.get(started.field, ""))
        try:
            reached = await started.begin(agent.run.call_agent(started.callee, task, work))
        except NotStarted as refusal:
            agent.note_informed(time.time())
            return HookVerdict(decision="deny", reason=str(refusal))
        if not agent.is_open:  # it was interrupted meanwhile
            await started.end(error=NotRun("The session was interrupted."))
            return _deny_stopped(self._stop_reason_of(agent) or "")
        if reached:
            self._started.append(started)
            final = {**event.args, started.field: started.given}
            return HookVerdict(args=final if started.given != task else None)
        done: AgentDone = started.result
        reason = done.denied.reason if done.denied is not None else _unusable(event.tool, done.output)
        agent.note_informed(time.time())
        return HookVerdict(decision="deny", reason=reason, stop=agent.stop_reason)

    def _find_started(self, event: SessionEvent) -> StartedAgent | None:
        same = [each for each in self._started if each.event.tool == event.tool and not each.detached]
        if event.call_id:
            return next((each for each in same if each.event.call_id == event.call_id), None)
        return next((each for each in same if each.event.args == event.args), same[0] if same else None)

    async def _agent_started(self, agent: AgentRun, started: StartedAgent, event: SessionEvent) -> HookVerdict:
        """Take note of the end of the call that started a sub-agent; the sub-agent may run on."""
        if event.started_agent and started.agent_id != event.started_agent:
            self._assign(started, event.started_agent)
        agent.note_informed(time.time())
        if started.agent_id and not started.stopped:
            started.detached = True
            return HookVerdict()
        child, failed = started.agent, event.moment is Moment.FAILED_TOOL
        if child is not None and child.turn is not None and not failed:  # nothing told that it stopped
            await child.end_turn(event.result, event.at)
        await self._read_transcripts()
        self._started.remove(started)
        self._agents.pop(started.agent_id, None)
        if child is not None:
            self._count_untold(child)
        changed = child.output if child is not None else None
        started.stopped = True
        done: AgentDone | None = await started.end(
            None if failed else event.result if changed is None else changed,
            HostToolError(event.error) if failed else None,
        )
        if done is not None and done.changed:
            changed = done.output
        return HookVerdict(result=changed, tool=event.tool, response=event.response)

    # Compaction.

    async def _before_compact(self, event: SessionEvent) -> HookVerdict:
        agent = await self._agent_of(event)
        if not agent.is_open or await agent.compact(event.at):
            return HookVerdict()
        return HookVerdict(decision="deny", reason="A hook denied the compaction.")

    # Questions.

    async def _restore_questions(self) -> None:
        """Take over the questions that another process has put, once, before the first event."""
        async with self._restoring:
            if self._restored:
                return
            self._restored = True
            try:
                self._questions |= await self._load_questions()
            except HooklineError as error:  # the calls are judged and asked about anew
                logger.error("The questions of session %s cannot be read: %s", self.session_id, message_of(error))

    async def _load_questions(self) -> dict[str, Question]:
        known, host = self._known_questions, self._host.name
        return await load_questions(self._policy, host, self._capabilities, self.session_id, known)

    async def _ask(self, agent: AgentRun, asked: PendingTool, key: str) -> Question:
        """Put a question, once for each call, also if the client goes away while that is done."""
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = self._policy.start(self._open_question(agent, asked, key))
            asking.add_done_callback(lambda _: self._asking.pop(key))
        return await asyncio.shield(asking)

    async def _open_question(self, agent: AgentRun, asked: PendingTool, key: str) -> Question:
        found = (await self._load_questions()).get(key)  # another process may have put the same one a moment ago
        if found is None or (found.asked.args, found.asked.prompt) != (asked.args, asked.prompt):
            found = await Question.open(self._policy, self._host.name, agent.run, asked, key)
            # It is in the store until its end is recorded; read from there, its approval would hold for a second call.
            self._known_questions.add(found.operation_id)
        self._questions[key] = found
        return found

    async def _decide(
        self,
        agent: AgentRun,
        event: SessionEvent,
        question: Question,
        patience: HostPatience,
    ) -> HookVerdict:
        """Have a person decide about a call: elsewhere, for as long as the host waits; else in front of the host."""
        asked = question.asked
        seconds = 0.0
        if self._policy.sql is not None:
            seconds = min(self._policy.ask_seconds, max(patience.seconds - 1.0, 0.0))
        if seconds > 0:
            patience.announce_wait()
        decision = await question.wait(seconds, lambda: self._leaves() or self._stop_reason_of(agent) is not None)
        stopped = self._stop_reason_of(agent)
        if stopped is not None:
            return _deny_stopped(stopped)
        if decision is None and seconds > 0 and self._leaves():
            raise QuestionMoved
        if decision is None:
            prompt = asked.prompt or f"{asked.tool_name} needs the approval of a person."
            if self._host.asks:
                final = dict(asked.args)
                args = final if final != event.args else None
                return HookVerdict(decision="ask", reason=prompt, args=args)
            return HookVerdict(decision="deny", reason=f"{prompt} {self._policy.explain(question.operation_id, asked)}")
        if self._questions.get(key_of(event)) is question:
            del self._questions[key_of(event)]
        is_first = await question.settle(decision)
        if isinstance(decision, Approve) and not is_first:  # the same call at the same time has used the approval
            return await self._call_tool(agent, event, patience)
        if isinstance(decision, Approve):
            return await self._approve_changed(agent, event, asked, patience)
        agent.note_informed(time.time())
        reason = f"A person refused this call: {decision.reason}" if decision.reason else "A person refused this call."
        if decision.and_continue:
            return HookVerdict(decision="deny", reason=reason)
        agent.stopped = reason
        return HookVerdict(decision="deny", reason=reason, stop=reason)

    def _take_question(self, event: SessionEvent) -> Question | None:
        """Return the question that a call was asked about, and take it out: by its id, else by its arguments."""
        for key, question in self._questions.items():
            if key == key_of(event) or (event.call_id and question.asked.tool_call_id == event.call_id):
                return self._questions.pop(key)
        return None

    async def _reject_questions(self, reason: str) -> None:
        """Reject the questions that nobody has answered."""
        questions, self._questions = self._questions, {}
        for question in questions.values():
            await question.settle(Reject(question.asked.tool_call_id, reason=reason, and_continue=True))


def _request_for(event: SessionEvent) -> ToolRequest:
    return ToolRequest(toolset=event.toolset, tool_name=event.tool_name, args=event.args, tool_call_id=event.call_id)


def _stopped_text(reason: str) -> str:
    return f"The run was stopped: {reason}"


def _deny_stopped(reason: str) -> HookVerdict:
    """Return the answer to a call of an agent that was ended."""
    return HookVerdict(decision="deny", reason=_stopped_text(reason), stop=reason)


def _refusal(event: SessionEvent, done: ToolDone) -> str:
    return _unusable(event.tool, done.result.content) if done.result.success else done.result.content


def _unusable(tool: str, answer: str) -> str:
    """Return how the model learns an answer that a hook gave in the tool's place."""
    return (
        f"{tool} was not called, because a hook answered in its place, which coding agents show as a refusal. "
        f"The answer was: {answer}"
    )
