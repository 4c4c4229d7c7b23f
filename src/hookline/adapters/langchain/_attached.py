"""A run of hookline around one run of a LangChain agent: what its middleware tells, and asks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import anyio
from langchain.agents.middleware.types import ModelRequest, ModelResponse, ToolCallRequest
from langchain_core.callbacks import BaseCallbackManager
from langchain_core.messages import AIMessage, SystemMessage
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langgraph.constants import TAG_NOSTREAM
from langgraph.errors import GraphInterrupt
from langgraph.types import interrupt

from hookline.adapters._held_streams import must_hold_stream
from hookline.adapters.langchain._messages import (
    answer_of,
    answered,
    changed_request,
    kept,
    message_of,
    messages_of,
    misfit,
    model_of,
    names_of,
    pending_of,
    put,
    result_of,
    said_last,
    specs_of,
    tool_message,
    unknown,
    with_args,
)
from hookline.calls import (
    AgentCall,
    Call,
    CompactCall,
    Message,
    ModelCall,
    SubAgentCall,
    ToolCall,
    ToolRequest,
    ToolResult,
)
from hookline.calls import ModelResponse as Answer
from hookline.errors import HooklineError, HookUsageError, ToolArgumentsError, UnknownToolError
from hookline.errors import message_of as error_message
from hookline.events import PendingTool
from hookline.runtime import KINDS, AdapterRun, Capabilities, Reject

__all__ = ["DRIVES", "HELD", "Attached", "RunStopped", "held", "local", "present", "whole", "without_held"]

HELD = "hookline:held"
"""A tag of what is asked inside of hooks that may change or withhold what comes of it."""


@contextmanager
def held(run: AdapterRun, call: type[Call]) -> Iterator[None]:
    """Stream nothing of a model in here, if hooks of such calls come after it; LangGraph streams what they leave."""
    if not must_hold_stream(run, call):
        yield
        return
    config = ensure_config()
    callbacks = config.get("callbacks")
    if isinstance(callbacks, BaseCallbackManager):  # other than those of a config, its tags outlive a model's own
        callbacks = callbacks.copy()
        callbacks.add_tags([TAG_NOSTREAM, HELD])
    token = var_child_runnable_config.set({**config, "callbacks": callbacks})
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


async def without_held(events: Any) -> AsyncIterator[Any]:
    """LangChain's events, without what models said that hooks may have changed or withheld."""
    async with aclosing(events):
        async for event in events:
            if HELD not in event.get("tags", ()):
                yield event
            elif event["event"].endswith("_end"):
                yield {**event, "data": {key: each for key, each in event["data"].items() if key != "output"}}
            elif not event["event"].endswith("_stream"):
                yield event


DRIVES = Capabilities(
    framework="LangChain",
    calls={ToolCall: KINDS, ModelCall: KINDS, AgentCall: KINDS, SubAgentCall: KINDS, CompactCall: KINDS},
    asks=True,
)
"""All sixteen events. To ask a person takes a checkpointer."""

T = TypeVar("T")
AskModel = Callable[[ModelRequest[Any]], Awaitable[Any]]
CallTool = Callable[[ToolCallRequest], Awaitable[Any]]


class RunStopped(HooklineError):
    """Somebody has interrupted the run."""


class Attached:
    """Stands between the middleware of an agent and the hooks of one run."""

    def __init__(self, run: AdapterRun) -> None:
        self.run = run
        self.loop, self.thread = asyncio.get_running_loop(), threading.get_ident()
        self.instructions: str | None = None
        """The system message, where hooks have changed it."""
        self._owner: Any = None
        self._unnamed = not getattr(run.run.agent.model, "name", "")
        self._begun = False
        self._stopped = False
        self._waiting: set[Future[Any]] = set()

    def serves(self, middleware: Any) -> bool:
        """Whether this is the run of the agent that has this middleware, not of one that begins inside of it."""
        if self._owner is None:
            self._owner = middleware
        return self._owner is middleware

    def named(self, tool: str) -> tuple[str, str]:
        """Where a tool comes from, and its name there."""
        return local(tool) if self._owner is None else self._owner.named(tool)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Do what takes the loop of the run from code that is not async, in another thread."""
        if threading.get_ident() == self.thread:
            work.close()
            raise HookUsageError(
                "A sync call of an agent inside of a hooked async run blocks the loop that its hooks need. "
                "Call the inner agent with `ainvoke`."
            )
        waiting = asyncio.run_coroutine_threadsafe(self._unless_interrupted(work), self.loop)
        self._waiting.add(waiting)
        if self._stopped:  # asked after it was added, or `stop` might overlook it
            waiting.cancel()
        try:
            return waiting.result()
        except CancelledError:
            if not self._stopped and not self._is_interrupted:
                raise  # a tool has raised it
            raise RunStopped("The run was interrupted.") from None
        finally:
            self._waiting.discard(waiting)

    async def _unless_interrupted(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work of another thread, which may come between an interrupt and the cancellation that follows it."""
        if self._is_interrupted:
            work.close()
            raise asyncio.CancelledError
        return await work

    @property
    def _is_interrupted(self) -> bool:
        return self.run.is_open and self.run.interrupted

    def stop(self) -> None:
        """End a run that is not async: what waits for hooks, and what comes to them from now on, raises."""
        self._stopped = True
        for each in tuple(self._waiting):
            each.cancel()

    def _step(self) -> None:
        """A step begins, unless a compaction or a model call that failed has begun it."""
        if not self._begun:
            self.run.begin_step()
        self._begun = True

    # What the middleware calls.

    async def ask(self, request: ModelRequest[Any], handler: AskModel) -> Any:
        """A model is asked."""
        run, named = self.run, self.named
        if run.denied is not None:
            return ModelResponse(result=[AIMessage(run.denied.reason)])
        self._step()
        if self.instructions is not None:
            request = request.override(system_message=SystemMessage(self.instructions))
        if not run.leads(ModelCall):
            run.begin_model_call()
            response = await handler(request)
            run.asked_model(answer_of(response.result, named))
            self._begun = False
            return response
        if self._unnamed:
            run.name_model(model_of(request))
        given, specs = messages_of(request, named), specs_of(request.tools, named)
        own: list[tuple[Any, Answer]] = []

        async def ask(call: ModelCall) -> Answer:
            with held(run, ModelCall):
                response = await handler(changed_request(request, call, given, specs, named))
            own.append((response, answer_of(response.result, named)))
            return own[-1][1]

        answer = await run.ask_model(given, ask, tools=specs, settings=request.model_settings)
        self._begun = False
        if answer is None:
            reason = run.denied.reason if run.denied is not None else ""
            return ModelResponse(result=[AIMessage(reason)])
        if own and own[-1][1] == answer:
            return own[-1][0]
        names = names_of(request.tools, named)
        return kept(*own[-1], answer, names) if own else ModelResponse(result=[answered(answer, names)])

    async def call(self, request: ToolCallRequest, handler: CallTool, toolset: str, name: str) -> Any:
        """A tool is called; one that runs unchanged gives what it gives, or raises what it raises."""
        run, call = self.run, request.tool_call
        own: list[Any] = []
        cancelled: list[asyncio.CancelledError] = []
        approved, args = False, call["args"]
        if call["id"] in run.run.waiting:  # the node is run again from its start, with a person's decision
            decision = self._person(request, next(each for each in run.run.pending if each.tool_call_id == call["id"]))
            if decision.get("type") not in ("approve", "edit"):
                del run.run.waiting[call["id"]]
                refused = Reject(call["id"] or "", reason=decision.get("message") or "", and_continue=True)
                calling = ToolRequest(toolset=toolset, tool_name=name, args=args, tool_call_id=call["id"] or "")
                return tool_message(call, run.refused(calling, refused), success=False)
            approved, args = True, decision.get("edited_action", {}).get("args", args)

        async def work(final: Mapping[str, Any]) -> ToolResult:
            same = final == call["args"]
            try:
                own.append(await handler(request if same else with_args(request, final)))
            except asyncio.CancelledError as error:
                cancelled.append(error)
                raise
            if unknown(request, own[0]):
                raise UnknownToolError(name, sorted(tool.name for tool in request.runtime.tools))
            if (reason := misfit(request, own[0])) is not None:
                raise ToolArgumentsError(name, reason)
            return result_of(own[0])

        calling = ToolRequest(toolset=toolset, tool_name=name, args=args, tool_call_id=call["id"] or "")
        done = await run.call_tool(calling, work, approved=approved)
        if done.asked is not None:
            self._person(request, done.asked)
        if done.error is not None and not own:
            raise done.error
        if cancelled and done.result.content == f"{type(cancelled[0]).__name__}: {error_message(cancelled[0])}":
            raise cancelled[0]  # the tool's own: what a graph makes of that is its affair
        if own and not done.changed:
            return own[0]
        return tool_message(call, done.result.content, success=done.result.success)

    def _person(self, request: ToolCallRequest, asked: PendingTool) -> Mapping[str, Any]:
        """Ask a person, in the form of `HumanInTheLoopMiddleware`; raises until there is a decision."""
        name = request.tool_call["name"]
        action = {"name": name, "args": asked.args, "description": asked.prompt, "tool_call_id": asked.tool_call_id}
        review = {"action_name": name, "allowed_decisions": ["approve", "edit", "reject"]}
        answer = interrupt({"action_requests": [action], "review_configs": [review]})
        decision: Mapping[str, Any] = answer["decisions"][0]
        return decision

    async def call_agent(self, request: ToolCallRequest, handler: CallTool, callee: str) -> Any:
        """An agent is called by a tool."""
        parent, call, own = self.run, request.tool_call, list[Any]()
        key = _key_of(call["args"])
        asked = str(call["args"].get(key, ""))

        async def work(instruction: str, child: str) -> str:
            async with AdapterRun((), DRIVES, agent_id=callee, operation_id=child, parent=parent) as run:
                attached = Attached(run)

                async def play(final: str) -> str:
                    args = {**call["args"], key: final}
                    changed = request if final == asked else request.override(tool_call={**call, "args": args})
                    try:
                        with attached.standing():
                            own.append(await whole(handler(changed)))
                    except GraphInterrupt as error:
                        run.pause([pending for _, pending in pending_of(error.args[0], [], local)])
                        run.end_step(should_continue=False)
                        raise
                    return result_of(own[0]).content

                if AgentCall not in run.run.intercepted:
                    output = await play(instruction)
                else:
                    prompt = [Message(role="user", content=instruction)]
                    done = await run.lead_run(prompt, lambda call: play(call.input[-1].content if call.input else ""))
                    output = done.output if done.denied is None else done.denied.reason
                run.finish("interrupted" if run.denied is not None else "done", output)
                return output
            return "The agent was interrupted."

        done = await parent.call_agent(callee, asked, work)
        if own and not done.changed and result_of(own[0]).content == done.output:
            return own[0]
        return tool_message(call, done.output, success=done.denied is None)

    async def compact(
        self, messages: list[Any], tokens: int, summarize: Callable[[list[Any]], Awaitable[str]]
    ) -> str | None:
        """A conversation is compacted, in the step whose model call it makes room for."""
        self._step()
        shown = [message_of(each, local) for each in messages]
        failures: list[Exception] = []

        async def work(given: list[Message]) -> str:
            left = list(zip(shown, messages, strict=True))
            own = [next((theirs for each, theirs in left if each == one), None) or put(one, {}) for one in given]
            try:
                with held(self.run, CompactCall):
                    return await summarize(own)
            except Exception as error:
                failures.append(error)
                raise

        summary = await self.run.compact(shown, tokens, work)
        if failures:
            raise failures[0]
        return summary

    def said(self, result: Any) -> str:
        """What was said last; a structured response may have been given by a call."""
        if not isinstance(result, Mapping):
            return self.run.run.last_content
        structured = result.get("structured_response") is not None
        return said_last(result) or (self.run.run.last_content if structured else "")

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Let the middleware find it."""
        token = present.set(self)
        try:
            yield
        finally:
            present.reset(token)


present: ContextVar[Attached | None] = ContextVar("hookline_langchain", default=None)
"""The run in which the middleware is."""


async def whole(work: Awaitable[T]) -> T:
    """Wait for a graph to its very end: it takes a cancellation to all that it runs, if it comes once and no more."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # seen, or asyncio would complain
        raise
    return task.result()


def local(name: str) -> tuple[str, str]:
    """Where a tool comes from that nobody says more about, and its name."""
    return "local", name


def _key_of(args: Mapping[str, Any]) -> str:
    """Which argument of a tool that calls an agent says what the agent is to do."""
    texts = [key for key, value in args.items() if isinstance(value, str)]
    usual = ("instruction", "description", "input", "query", "task", "prompt", "request")
    return next((key for key in usual if key in texts), texts[0] if texts else "instruction")
