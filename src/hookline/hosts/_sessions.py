"""The sessions of coding agents as operations: each hook process brings one event, and the session holds the run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from time import monotonic
from typing import Any

import msgspec

from hookline._readonly import writable
from hookline.calls import (
    AgentCall,
    Call,
    CompactCall,
    Message,
    ModelResponse,
    SubAgentCall,
    ToolCall,
    ToolRequest,
    ToolResult,
)
from hookline.errors import HookDenied, message_of
from hookline.events import HookType, PendingTool
from hookline.hosts._answers import HookVerdict
from hookline.hosts._hosts import Host
from hookline.hosts._moments import Moment
from hookline.hosts._policy import InstalledPolicy
from hookline.hosts._reading import SessionEvent
from hookline.hosts._suspended import SuspendedCall
from hookline.runtime import KINDS, AdapterRun, AgentDone, Approve, Capabilities, Reject, ToolDone

__all__ = ["MAX_CONTINUES", "Session", "capabilities_of"]

logger = logging.getLogger("hookline")

MAX_CONTINUES = 3
"""How often hooks may make an agent go on that would stop; Codex and Gemini would go on for ever."""
INSTRUCTIONS = ("prompt", "message", "instruction", "task", "description")
CALLEES = ("subagent_type", "agent_name", "agent_type", "agent")
"""Arguments of the tools that start a sub-agent."""


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


class NotRun(Exception):
    """A coding agent did not make a call that hooks let happen."""


def context_of(done: ToolDone | AgentDone | None) -> str:
    """Return the text that hooks want the model to read besides a result; after a denial it is part of the reason."""
    return done.added if isinstance(done, ToolDone) else ""


def split_input(call: AgentCall, prompt: Message) -> tuple[str | None, str]:
    """Split the input that hooks left: the prompt, if they changed it, and the text that they added to it."""
    added = [each for each in call.input if "hookline.hooks" in each.details]
    rest = [each for each in call.input if each not in added]
    changed = None if rest == [prompt] else "\n\n".join(each.content for each in rest)
    return changed, "\n\n".join(each.content for each in added)


class UnfinishedCall(SuspendedCall):
    """A tool call between its two events.

    Attributes:
        event: The event that announced it.
    """

    def __init__(self, event: SessionEvent) -> None:
        super().__init__()
        self.event = event


class StartedAgent(UnfinishedCall):
    """The call that starts a sub-agent.

    Attributes:
        callee: The kind of the sub-agent.
        field: The argument that holds its task.
        agent: The sub-agent, once hooks let it start.
        agent_id: The host's id of the sub-agent, once it is known.
        detached: Whether the agent that started it goes on meanwhile.
        stopped: Whether it has ended.
    """

    def __init__(self, event: SessionEvent) -> None:
        super().__init__(event)
        args = event.args
        self.callee = next((str(args[name]) for name in CALLEES if args.get(name)), "agent")
        self.field = next((name for name in INSTRUCTIONS if isinstance(args.get(name), str)), "prompt")
        self.agent: AgentRun | None = None
        self.agent_id = ""
        self.detached = self.stopped = False


class AgentRun:
    """The run of one agent: the session's own, or a sub-agent's.

    Args:
        run: The open run.
    """

    def __init__(self, run: AdapterRun) -> None:
        self.run = run
        self.calls: list[UnfinishedCall] = []
        self.turn: SuspendedCall | None = None
        self.compaction: SuspendedCall | None = None
        self.continues = 0
        self.stopped = self.added = self.continuation = ""
        self._messages: list[Message] = []
        self._step_has_calls = False
        self._has_step = False

    @property
    def stop_reason(self) -> str | None:
        """Why a hook or a person ended the run; `None` if nobody did."""
        if self.run.denied is not None:
            return self.run.denied.reason
        return self.stopped or ("The run was interrupted." if self.run.interrupted else None)

    def begin_step(self) -> None:
        """Begin a step, unless the call belongs to the one that runs: hosts make parallel calls one by one."""
        if self._has_step and (self.calls or not self._step_has_calls):
            return
        self.run.begin_step()
        self.run.asked_model(ModelResponse())
        self._has_step, self._step_has_calls = True, False

    def note_call(self, request: ToolRequest) -> None:
        """Add a call to the conversation."""
        self._step_has_calls = True
        self.note(Message(role="assistant", content="", tool_calls=[request]))

    def note(self, message: Message) -> None:
        """Add a message to the conversation, as far as events tell it."""
        self._messages.append(message)
        run = self.run.run
        run.messages = run.journal.storable_messages(self._messages)

    def find_call(self, event: SessionEvent) -> UnfinishedCall | None:
        """Return the open call that an event is about, and take it out: by its id, else by its arguments."""
        same = [call for call in self.calls if call.event.tool == event.tool]
        if event.call_id:
            found = next((call for call in same if call.event.call_id == event.call_id), None)
        else:
            exact = (call for call in same if event.args in (call.event.args, _plain(call.given)))
            found = next(exact, same[0] if same else None)
        if found is not None:
            self.calls.remove(found)
        return found

    async def end_calls(self, reason: str) -> None:
        """End the calls whose end nobody told."""
        calls, self.calls = self.calls, []
        for call in calls:
            await call.end(error=NotRun(reason))
        if self.compaction is not None:
            compaction, self.compaction = self.compaction, None
            await compaction.end(error=NotRun(reason))

    async def begin_turn(self, text: str) -> AgentDone | None:
        """Run the hooks of `AgentCall` up to the agent; return their answer if they let it not run.

        What they add to the prompt is in `added`.
        """
        self.added = ""
        await self.end_turn_unasked()
        prompt = Message(role="user", content=text)
        self.note(prompt)
        turn = SuspendedCall()
        if await turn.begin(self.run.lead_run([prompt], turn.work)):
            changed, self.added = split_input(turn.given, prompt)
            if changed is not None:
                await turn.end(error=HookDenied("The prompt was changed.", ""))
                return AgentDone(output=f"A hook wants the prompt changed. Send it as: {changed}", ran=False)
            self.turn = turn
            return None
        done: AgentDone = turn.result
        return done

    async def end_turn_unasked(self) -> None:
        """End a turn that the host broke off without a word."""
        if self.turn is not None:
            turn, self.turn = self.turn, None
            await turn.end(error=NotRun("The turn was broken off."))

    async def end_turn(self, text: str) -> AgentDone | None:
        """Record the last answer of a turn, and run the hooks after the agent."""
        await self.end_calls("The coding agent did not make this call.")
        self.begin_step()
        self.run.asked_model(ModelResponse(content=text))
        self.note(Message(role="assistant", content=text))
        self.run.end_step(should_continue=False)
        self._has_step = False
        turn, self.turn = self.turn, None
        if turn is None:
            return None
        done: AgentDone | None = await turn.end(text)
        return done

    async def close(self, *, done: bool) -> None:
        """End the run.

        Args:
            done: Whether the agent came to its end.
        """
        await self.end_calls("The session ended before the call did.")
        await self.end_turn_unasked()
        if self.run.is_open:
            if not done or self.stopped:
                self.run.finish("interrupted")
            await self.run.close()


class Question:
    """A call that a person must decide about.

    With a store it is an operation of its own, which waits for a person like every other: the session goes on
    meanwhile, with other calls and sub-agents.

    Args:
        policy: The policy.
        asked: The call, as the person is shown it.
        run: The run of the operation that waits.
    """

    def __init__(self, policy: InstalledPolicy, asked: PendingTool, run: AdapterRun) -> None:
        self.asked, self.operation_id = asked, run.operation_id
        self.settled = False
        self._policy, self._capabilities, self._agent_id = policy, run.capabilities, run.run.agent.id

    @classmethod
    async def open(cls, policy: InstalledPolicy, host: Host, agent: AgentRun, asked: PendingTool) -> Question:
        """Put a question: pause an operation that waits for the decision."""
        run = AdapterRun(policy.hooks(), agent.run.capabilities, agent_id=host.name, parent=agent.run, best_effort=True)
        await run.open([Message(role="user", content=asked.prompt or f"May {asked.tool_name} run?")])
        run.begin_step()
        run.pause([asked])
        await run.close()
        return cls(policy, asked, run)

    async def wait(self, seconds: float) -> Approve | Reject | None:
        """Wait for the decision of a person, from the page, the command line or the API.

        Args:
            seconds: How long at most.
        """
        return await self._policy.decision(self.operation_id, self.asked.tool_call_id, seconds)

    async def settle(self, decision: Approve | Reject) -> None:
        """End the operation that waits, with the decision."""
        if self.settled:
            return
        self.settled = True
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
            run.refused(_request_of(self.asked), decision)
        if isinstance(decision, Approve) or decision.and_continue:
            run.finish("done", "")
        await run.close()


class Session:
    """A session of a coding agent: its operation, those of its sub-agents, and the calls under way.

    Args:
        host: The coding agent.
        session_id: The session, by the host's id.
        policy: The hooks, and where operations are kept.
    """

    def __init__(self, host: Host, session_id: str, policy: InstalledPolicy) -> None:
        self.session_id = session_id
        self.used = monotonic()
        self.unmatched = 0
        self._host, self._policy = host, policy
        self._capabilities = capabilities_of(host)
        self._opening = asyncio.Lock()
        self._main: AgentRun | None = None
        self._agents: dict[str, AgentRun] = {}
        self._started: list[StartedAgent] = []
        self._questions: dict[str, Question] = {}
        self._writing: set[asyncio.Task[None]] = set()

    @property
    def operation_id(self) -> str:
        """The id of the session's operation; `""` between two of them."""
        return self._main.run.operation_id if self._main is not None else ""

    async def judge(self, event: SessionEvent, seconds: float) -> HookVerdict:
        """Run the hooks of an event.

        Args:
            event: The event.
            seconds: How long the host waits for the answer.
        """
        self.used = monotonic()
        match event.moment:
            case Moment.SESSION_START:
                await self._open_main(event)
                return HookVerdict()
            case Moment.PROMPT:
                return await self._begin_turn(event)
            case Moment.BEFORE_TOOL:
                return await self._before_tool(event, seconds)
            case Moment.AFTER_TOOL | Moment.FAILED_TOOL:
                return await self._after_tool(event)
            case Moment.AGENT_START:
                return HookVerdict(context=(await self._agent_of(event)).added)
            case Moment.AGENT_STOP:
                return await self._stop_agent(event)
            case Moment.BEFORE_COMPACT:
                return await self._before_compact(event)
            case Moment.AFTER_COMPACT:
                return await self._after_compact(event)
            case Moment.STOP:
                return await self._end_turn(await self._agent_of(event), event)
            case Moment.SESSION_END:
                await self.close(done=True)
                return HookVerdict()
            case _:
                return HookVerdict()

    async def close(self, *, done: bool) -> None:
        """End the session's operations.

        Args:
            done: Whether the host ended the session; otherwise its operation counts as interrupted.
        """
        for question in list(self._questions.values()):
            reject = Reject(question.asked.tool_call_id, reason="The session ended.", and_continue=True)
            await self._settle(question, reject)
        self._questions.clear()
        started, self._started = self._started, []
        for call in started:
            await call.end(error=NotRun("The session ended before the sub-agent did."))
        agents, self._agents = list(self._agents.values()), {}
        for agent in agents:
            await agent.close(done=done)
        main, self._main = self._main, None
        if main is not None:
            await main.close(done=done)
        await asyncio.gather(*self._writing)

    # Runs.

    def _write_soon(self, agent: AgentRun) -> None:
        """Write the run after the host has its answer: a commit takes longer than all hooks together."""
        task = asyncio.create_task(self._write(agent))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, agent: AgentRun) -> None:
        try:
            if agent.run.is_open:
                await agent.run.checkpoint()
        except Exception as error:
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
                )
                await run.open([Message(role="user", content=event.text)] if event.moment is Moment.PROMPT else [])
                self._main = AgentRun(run)
            return self._main

    async def _open_child(self, parent: AgentRun, callee: str, task: str, operation_id: str | None) -> AgentRun:
        """Open the run of a sub-agent. All hooks hold in it, whether they ask to be inherited or not."""
        run = AdapterRun(
            self._policy.hooks(),
            self._capabilities,
            agent_id=callee,
            operation_id=operation_id,
            parent=parent.run,
            best_effort=True,
            writes_ahead=False,
        )
        await run.open([Message(role="user", content=task)])
        child = AgentRun(run)
        await child.begin_turn(task)
        return child

    async def _agent_of(self, event: SessionEvent) -> AgentRun:
        """Return the agent in which an event happened."""
        main = await self._open_main(event)
        if event.agent_id:
            async with self._opening:
                found = self._agents.get(event.agent_id)
                if found is None:
                    found = self._bind(event.agent_id, event.agent_type)
                if found is None:  # nobody saw it start
                    found = await self._open_child(main, event.agent_type or "agent", event.text, None)
                    self._agents[event.agent_id] = found
                return found
        if not self._host.names_agents:
            running = [each for each in self._started if each.agent is not None and not each.stopped]
            if len(running) == 1 and event.tool not in self._host.spawns and running[0].agent is not None:
                return running[0].agent
        return main

    def _bind(self, agent_id: str, kind: str) -> AgentRun | None:
        """Find the call that started a sub-agent: the oldest for its kind, else the oldest of all."""
        waiting = [each for each in self._started if not each.agent_id and each.agent is not None]
        started = next((each for each in waiting if each.callee == kind), waiting[0] if waiting else None)
        if started is None or started.agent is None:
            return None
        started.agent_id = agent_id
        self._agents[agent_id] = started.agent
        return started.agent

    # Turns.

    async def _begin_turn(self, event: SessionEvent) -> HookVerdict:
        if event.agent_id:  # Codex tells the prompt of a sub-agent, too
            agent = await self._agent_of(event)
            if agent.turn is None:
                await agent.begin_turn(event.text)
            return HookVerdict(context=agent.added)
        main = await self._open_main(event)
        if main.stop_reason is not None:  # the turn that was stopped is over: this is another one
            self._main = None
            await main.close(done=False)
            main = await self._open_main(event)
        if main.continuation and event.text == main.continuation:
            # Gemini CLI tells what a hook made it go on with as another prompt; it is the same turn.
            main.continuation = ""
            return HookVerdict(context=main.added)
        main.continuation = ""
        await self._close_questions("The person went on with another prompt.")
        main.continues = 0
        done = await main.begin_turn(event.text)
        self._write_soon(main)
        if done is None:
            return HookVerdict(context=main.added)
        self._main = None
        await main.close(done=False)
        reason = done.denied.reason if done.denied is not None else done.output
        return HookVerdict(decision="deny", reason=reason)

    async def _end_turn(self, agent: AgentRun, event: SessionEvent) -> HookVerdict:
        if agent is self._main:
            await self._close_questions("The call was not approved.")
        done = await agent.end_turn(event.text)
        self._write_soon(agent)
        if agent.stop_reason is not None:
            if agent is self._main:
                self._main = None
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
        refused = await agent.begin_turn(reason)
        agent.continuation = reason
        return HookVerdict() if refused is not None else HookVerdict(decision="continue", reason=reason)

    async def _stop_agent(self, event: SessionEvent) -> HookVerdict:
        agent = await self._agent_of(event)
        verdict = await self._end_turn(agent, event)
        if verdict.decision == "continue":
            return verdict
        self._agents.pop(event.agent_id, None)
        started = next((each for each in self._started if each.agent is agent), None)
        if started is None:
            await agent.close(done=True)
            return verdict
        started.stopped = True
        if started.detached:
            self._started.remove(started)
            await started.end(event.text)
        return verdict

    # Tools.

    async def _before_tool(self, event: SessionEvent, seconds: float) -> HookVerdict:
        agent = await self._agent_of(event)
        stopped = agent.stop_reason
        if stopped is None and self._main is not None:
            stopped = self._main.stop_reason
        if stopped is not None:
            return HookVerdict(decision="deny", reason=f"The run was stopped: {stopped}", stop=stopped)
        question = self._questions.get(_key_of(event))
        if question is not None:
            return await self._decide(agent, event, question, seconds)
        if event.tool in self._host.spawns:
            return await self._start_agent(agent, event)
        return await self._call_tool(agent, event, seconds)

    async def _call_tool(
        self, agent: AgentRun, event: SessionEvent, seconds: float, *, approved: bool = False
    ) -> HookVerdict:
        """Run the hooks of a call up to the tool."""
        agent.begin_step()
        request = _request_for(event)
        agent.note_call(request)
        call = UnfinishedCall(event)
        reached = await call.begin(agent.run.call_tool(request, call.work, approved=approved))
        if reached:
            agent.calls.append(call)
            self._write_soon(agent)
            final = _plain(call.given)
            return HookVerdict(args=final if final != event.args else None)
        done: ToolDone = call.result
        if done.asked is not None:
            agent.run.step.asked.pop(done.asked.tool_call_id, None)
            question = await Question.open(self._policy, self._host, agent, done.asked)
            self._questions[_key_of(event)] = question
            return await self._decide(agent, event, question, seconds)
        agent.note(Message(role="tool", content=done.result.content, tool_call_id=request.tool_call_id))
        self._write_soon(agent)
        stop = done.stop.reason if done.stop is not None else None
        return HookVerdict(decision="deny", reason=_refusal(event, done), stop=stop)

    async def _decide(self, agent: AgentRun, event: SessionEvent, question: Question, seconds: float) -> HookVerdict:
        """Have a person decide about a call: elsewhere, for as long as the host waits; else in front of the host."""
        asked = question.asked
        decision = await question.wait(min(self._policy.ask_seconds, max(seconds - 1.0, 0.0)))
        if decision is None:
            prompt = asked.prompt or f"{asked.tool_name} needs the approval of a person."
            if self._host.asks:
                final = dict(asked.args)
                args = final if final != event.args else None
                return HookVerdict(decision="ask", reason=prompt, args=args)
            return HookVerdict(decision="deny", reason=f"{prompt} {self._policy.explain(question.operation_id, asked)}")
        self._questions.pop(_key_of(event), None)
        await self._settle(question, decision)
        if isinstance(decision, Approve):
            return (
                await self._call_tool(
                    agent, msgspec.structs.replace(event, args=dict(asked.args)), seconds, approved=True
                )
                if dict(asked.args) == event.args
                else await self._approve_changed(agent, event, asked, seconds)
            )
        reason = f"A person refused this call: {decision.reason}" if decision.reason else "A person refused this call."
        if decision.and_continue:
            return HookVerdict(decision="deny", reason=reason)
        agent.stopped = reason
        return HookVerdict(decision="deny", reason=reason, stop=reason)

    async def _approve_changed(
        self, agent: AgentRun, event: SessionEvent, asked: PendingTool, seconds: float
    ) -> HookVerdict:
        """Run an approved call whose arguments hooks had changed before the person saw them."""
        final = dict(asked.args)
        verdict = await self._call_tool(agent, msgspec.structs.replace(event, args=final), seconds, approved=True)
        if verdict.decision or verdict.args is not None:
            return verdict
        return msgspec.structs.replace(verdict, args=final)

    async def _after_tool(self, event: SessionEvent) -> HookVerdict:
        agent = await self._agent_of(event)
        if event.tool in self._host.spawns:
            started = self._find_started(event)
            if started is not None:
                return await self._agent_started(started, event)
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
        self._write_soon(agent)
        stop = done.stop.reason if done.stop is not None else None
        added = context_of(done)
        result = done.result.content if done.changed and not added else None
        return HookVerdict(result=result, tool=event.tool, stop=stop, context=added)

    async def _report_call(self, agent: AgentRun, event: SessionEvent) -> ToolDone:
        """Report a call that ran without a question: a person approved it in the host, or the session is new here."""
        question = self._take_question(event)
        if question is not None:
            await self._settle(question, Approve(question.asked.tool_call_id))
        else:
            self.unmatched += 1
        agent.begin_step()
        request = _request_for(event)
        agent.note_call(request)

        async def ran(_: Mapping[str, Any]) -> ToolResult:
            if event.moment is Moment.FAILED_TOOL:
                raise HostToolError(event.error)
            return ToolResult(content=event.result)

        return await agent.run.call_tool(request, ran, approved=question is not None)

    # Sub-agents.

    async def _start_agent(self, agent: AgentRun, event: SessionEvent) -> HookVerdict:
        agent.begin_step()
        agent.note_call(_request_for(event))
        started = StartedAgent(event)

        async def work(task: str, operation_id: str) -> str:
            child = started.agent = await self._open_child(agent, started.callee, task, operation_id)
            try:
                output: str = await started.work(task)
                return output
            finally:
                await child.close(done=started.stopped)

        task = str(event.args.get(started.field, ""))
        if await started.begin(agent.run.call_agent(started.callee, task, work)):
            self._started.append(started)
            final = {**event.args, started.field: started.given}
            return HookVerdict(args=final if started.given != task else None)
        done: AgentDone = started.result
        reason = done.denied.reason if done.denied is not None else _unusable(event.tool, done.output)
        stopped = agent.stop_reason
        return HookVerdict(decision="deny", reason=reason, stop=stopped)

    def _find_started(self, event: SessionEvent) -> StartedAgent | None:
        same = [each for each in self._started if each.event.tool == event.tool and not each.detached]
        if event.call_id:
            return next((each for each in same if each.event.call_id == event.call_id), None)
        return next((each for each in same if each.event.args == event.args), same[0] if same else None)

    async def _agent_started(self, started: StartedAgent, event: SessionEvent) -> HookVerdict:
        """Take note of the end of the call that started a sub-agent; the sub-agent may run on."""
        if event.started_agent and not started.agent_id and started.agent is not None:
            started.agent_id = event.started_agent
            self._agents[event.started_agent] = started.agent
        if started.agent_id and not started.stopped:
            started.detached = True
            return HookVerdict()
        self._started.remove(started)
        failed = event.moment is Moment.FAILED_TOOL
        started.stopped = True
        done: AgentDone | None = await started.end(
            None if failed else event.result, HostToolError(event.error) if failed else None
        )
        if done is None:  # it failed, and hooks kept its error
            return HookVerdict()
        return HookVerdict(result=done.output if done.changed else None, tool=event.tool)

    # Compaction.

    async def _before_compact(self, event: SessionEvent) -> HookVerdict:
        agent = await self._agent_of(event)
        agent.begin_step()
        compaction = SuspendedCall()
        if await compaction.begin(agent.run.compact([], 0, compaction.work)):
            agent.compaction = compaction
            return HookVerdict()
        return HookVerdict(decision="deny", reason="A hook denied the compaction.")

    async def _after_compact(self, event: SessionEvent) -> HookVerdict:
        agent = await self._agent_of(event)
        if agent.compaction is not None:
            compaction, agent.compaction = agent.compaction, None
            await compaction.end(event.summary)
        return HookVerdict()

    # Questions.

    def _take_question(self, event: SessionEvent) -> Question | None:
        """Return the question that a call was asked about, and take it out: by its id, else by its arguments."""
        for key, question in self._questions.items():
            if key == _key_of(event) or (event.call_id and question.asked.tool_call_id == event.call_id):
                return self._questions.pop(key)
        return None

    async def _close_questions(self, reason: str) -> None:
        """Close the questions that the host put to the person in front of it, and that came to nothing."""
        if self._host.asks:
            questions, self._questions = self._questions, {}
            for question in questions.values():
                reject = Reject(question.asked.tool_call_id, reason=reason, and_continue=True)
                await self._settle(question, reject)

    async def _settle(self, question: Question, decision: Approve | Reject) -> None:
        try:
            await question.settle(decision)
        except Exception as error:
            logger.error("Operation %s could not be ended: %s", question.operation_id, message_of(error))


def _request_for(event: SessionEvent) -> ToolRequest:
    return ToolRequest(toolset=event.toolset, tool_name=event.tool_name, args=event.args, tool_call_id=event.call_id)


def _request_of(asked: PendingTool) -> ToolRequest:
    return ToolRequest(
        toolset=asked.toolset, tool_name=asked.tool_name, args=asked.args, tool_call_id=asked.tool_call_id
    )


def _key_of(event: SessionEvent) -> str:
    """Return what makes two calls the same one, asked twice: the agent, the tool and its arguments."""
    args = msgspec.json.encode(event.args, order="deterministic", enc_hook=str).decode()
    return f"{event.agent_id}\n{event.tool}\n{args}"


def _plain(given: Any) -> Any:
    return dict(writable(given)) if isinstance(given, Mapping) else given


def _refusal(event: SessionEvent, done: ToolDone) -> str:
    return _unusable(event.tool, done.result.content) if done.result.success else done.result.content


def _unusable(tool: str, answer: str) -> str:
    """Return how the model learns an answer that a hook gave in the tool's place."""
    return (
        f"{tool} was not called, because a hook answered in its place, which coding agents show as a refusal. "
        f"The answer was: {answer}"
    )
