"""Bind one run of a LangChain agent to hookline's `AdapterRun`; the middleware finds the binding here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import aclosing, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import msgspec
from langchain.agents.middleware.types import ModelRequest, ModelResponse, ToolCallRequest
from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.messages import AIMessage, SystemMessage, ToolMessage
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langgraph.constants import TAG_NOSTREAM
from langgraph.errors import GraphInterrupt
from langgraph.types import interrupt

from hookline.adapters._streams import must_hold_stream
from hookline.adapters.langchain._conversion import (
    add_text,
    apply_model_call,
    argument_error,
    from_langchain_message,
    from_model_request,
    is_unknown_tool,
    last_answer_text,
    merge_response,
    model_name,
    replace_args,
    to_ai_message,
    to_langchain_messages,
    to_model_response,
    to_pending_tools,
    to_tool_result,
    to_tool_specs,
    tool_message,
    tool_names,
)
from hookline.adapters.langchain._parts import JudgedReading, read_in_parts
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
from hookline.errors import HookUsageError, RunStopped, ToolArgumentsError, UnknownToolError
from hookline.errors import message_of as error_message
from hookline.events import PendingTool
from hookline.execution import Portal
from hookline.runtime import KINDS, AdapterRun, Capabilities, Reject

__all__ = [
    "DRIVES",
    "HELD_TAG",
    "InThread",
    "LangChainBinding",
    "current_binding",
    "drop_held_output",
    "hold_stream",
    "identify_as_local",
    "time_stream",
    "wait_for_graph",
]

HELD_TAG = "hookline:held"
"""The tag of model calls whose output hooks may still change or withhold."""


@asynccontextmanager
async def hold_stream(run: AdapterRun, call: type[Call]) -> AsyncIterator[None]:
    """Keep models from streaming in this block, if hooks of such calls run afterwards.

    LangGraph then streams what the hooks leave.
    """
    if not must_hold_stream(run, call):
        yield
        return
    config = ensure_config()
    callbacks = config.get("callbacks")
    # Unlike the tags of a config, those of a manager survive a model's own.
    if isinstance(callbacks, BaseCallbackManager):
        callbacks = callbacks.copy()
        callbacks.add_tags([TAG_NOSTREAM, HELD_TAG])
    token = var_child_runnable_config.set({**config, "callbacks": callbacks})
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


class InThread:
    """A sync handler of a middleware, as an async function that calls it in a thread, with the present context.

    Args:
        handler: The sync handler.
    """

    def __init__(self, handler: Callable[[Any], Any]) -> None:
        self._handler = handler

    async def __call__(self, request: Any) -> Any:
        """Call the handler."""
        return await anyio.to_thread.run_sync(self._handler, request)


class PieceHandler(BaseCallbackHandler):
    """Calls a function for each piece of an answer that a model streams.

    Args:
        note_piece: The function.
    """

    run_inline = True  # else LangChain has a thread call it, later

    def __init__(self, note_piece: Callable[[], None]) -> None:
        self._note_piece = note_piece

    def on_llm_new_token(self, *_: Any, **__: Any) -> None:
        self._note_piece()


@contextmanager
def time_stream(run: AdapterRun) -> Iterator[None]:
    """Note when the pieces of a model's answer arrive in this block, if telemetry measures the run."""
    if ModelCall not in run.run.enclosing:
        yield
        return
    config, handler = ensure_config(), PieceHandler(run.begin_stream(known_to_stream=False))
    callbacks: Any = config.get("callbacks")
    if isinstance(callbacks, BaseCallbackManager):
        callbacks = callbacks.copy()
        callbacks.add_handler(handler)
    else:
        callbacks = [*(callbacks or ()), handler]
    token = var_child_runnable_config.set({**config, "callbacks": callbacks})
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


async def drop_held_output(events: Any) -> AsyncIterator[Any]:
    """Yield LangChain's events without the output of model calls that hooks may have changed or withheld."""
    async with aclosing(events):
        async for event in events:
            if HELD_TAG not in event.get("tags", ()):
                yield event
            elif event["event"].endswith("_end"):
                yield {**event, "data": {key: each for key, each in event["data"].items() if key != "output"}}
            elif not event["event"].endswith("_stream"):
                yield event


DRIVES = Capabilities(
    framework="LangChain",
    calls={ToolCall: KINDS, ModelCall: KINDS, AgentCall: KINDS, SubAgentCall: KINDS, CompactCall: KINDS},
    asks=True,
    adds_context=frozenset({ToolCall, AgentCall}),
    guides=True,
)
"""All sixteen events. Asking a person needs a checkpointer."""

T = TypeVar("T")
AskModel = Callable[[ModelRequest[Any]], Awaitable[Any]]
CallTool = Callable[[ToolCallRequest], Awaitable[Any]]


class LangChainBinding:
    """Connects the middleware of an agent with the hooks of one run."""

    def __init__(self, run: AdapterRun) -> None:
        self.run = run
        self.loop = asyncio.get_running_loop()
        self._portal = Portal(self.loop)
        self.instructions: str | None = None
        """The system message that hooks set; `None` if they did not."""
        self._owner: Any = None
        self._needs_model_name = not getattr(run.run.agent.model, "name", "")
        self._step_begun = False
        self._stopped = False
        self._waiting: set[Future[Any]] = set()

    def claim(self, middleware: Any) -> bool:
        """Return whether this run belongs to the agent with this middleware, and not to an agent inside it."""
        if self._owner is None:
            self._owner = middleware
        return self._owner is middleware

    def identify(self, tool: str) -> tuple[str, str]:
        """Return a tool's toolset and name, given the model's name for it."""
        return identify_as_local(tool) if self._owner is None else self._owner.named(tool)

    def run_in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop of the run, from sync code in another thread."""
        if self._portal.is_own_thread:
            work.close()
            raise HookUsageError(
                "A sync call of an agent inside a hooked async run would block the event loop that its hooks need. "
                "Call the inner agent with `ainvoke`."
            )
        waiting: Future[T] = self._portal.start(self._unless_interrupted, work)
        self._waiting.add(waiting)
        if self._stopped:  # checked after adding it, or `stop` might miss it
            waiting.cancel()
        try:
            return waiting.result()
        except CancelledError:
            if not self._stopped and not self._is_interrupted:
                raise  # a tool raised it
            raise RunStopped("The run was interrupted.") from None
        finally:
            self._waiting.discard(waiting)

    async def _unless_interrupted(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of another thread, unless the run is interrupted.

        Such a call may come after the interrupt and before the cancellation that follows it.
        """
        if self._is_interrupted:
            work.close()
            raise asyncio.CancelledError
        return await work

    @property
    def _is_interrupted(self) -> bool:
        return self.run.is_open and self.run.interrupted

    def stop(self) -> None:
        """End a sync run: calls that wait for hooks raise, and so does every later call."""
        self._stopped = True
        for each in tuple(self._waiting):
            each.cancel()

    def _begin_step(self) -> None:
        """Begin a step, unless a compaction or a failed model call has begun it."""
        if not self._step_begun:
            self.run.begin_step()
        self._step_begun = True

    # Called by the middleware.

    async def ask_model(self, request: ModelRequest[Any], handler: AskModel) -> Any:
        """Make a model call through the hooks."""
        run, identify = self.run, self.identify
        if run.denied is not None:
            return ModelResponse(result=[AIMessage(run.denied.reason)])
        self._begin_step()
        if self.instructions is not None:
            request = request.override(system_message=SystemMessage(self.instructions))
        if not run.leads(ModelCall):
            run.begin_model_call()
            response = await handler(request)
            run.asked_model(to_model_response(response.result, identify))
            self._step_begun = False
            return response
        if self._needs_model_name:
            run.name_model(model_name(request))
        given, specs = from_model_request(request, identify), to_tool_specs(request.tools, identify)
        own: list[tuple[Any, Answer]] = []
        readings: list[JudgedReading] = []

        async def ask(call: ModelCall) -> Answer:
            final = apply_model_call(request, call, given, specs, identify)
            while readings:  # hooks have discarded the answer of the one before
                await readings.pop().finish(None, changed=True)
            reading = self._read_in_parts(call, final, handler)
            if reading is not None:
                readings.append(reading)
            with time_stream(run):
                async with hold_stream(run, ModelCall) if reading is None else reading.open():
                    # LangChain does not bear the repeated cancellation of a scope.
                    is_timed = reading is not None and reading.is_timed
                    response = await (wait_for_graph(handler(final)) if is_timed else handler(final))
            own.append((response, to_model_response(response.result, identify)))
            return own[-1][1]

        try:
            answer = await run.ask_model(given, ask, tools=specs, settings=request.model_settings)
        except Exception:
            for reading in readings:
                await reading.finish(None, changed=True)
            raise
        self._step_begun = False
        unchanged = bool(own) and answer is not None and own[-1][1] == answer
        if answer is None:
            reason = run.denied.reason if run.denied is not None else ""
            response = ModelResponse(result=[AIMessage(reason)])
        elif unchanged:
            response = own[-1][0]
        else:
            names = tool_names(request.tools, identify)
            changed = merge_response(*own[-1], answer, names) if own else None
            response = changed or ModelResponse(result=[to_ai_message(answer, names)])
        for reading in readings:
            await reading.finish(None if answer is None else response.result[0], changed=not unchanged)
        return response

    def _read_in_parts(self, call: ModelCall, request: ModelRequest[Any], handler: AskModel) -> JudgedReading | None:
        """Return the reading of a model call whose stream hooks judge in parts; `None` if the stream is held whole."""
        if not self.run.judges_parts() or not must_hold_stream(self.run, ModelCall):
            return None
        last = request.messages[-1] if request.messages else None
        run_in_loop = self.run_in_loop if isinstance(handler, InThread) else None
        return read_in_parts(call, last, [TAG_NOSTREAM, HELD_TAG], run_in_loop)

    async def call_tool(self, request: ToolCallRequest, handler: CallTool, toolset: str, name: str) -> Any:
        """Call a tool through the hooks; if they change nothing, return or raise what the tool does."""
        run, call = self.run, request.tool_call
        own: list[Any] = []
        cancelled: list[asyncio.CancelledError] = []
        approved, args = False, call["args"]
        if call["id"] in run.run.waiting:  # the node runs again from its start, with the person's decision
            decision = self._ask_person(
                request, next(each for each in run.run.pending if each.tool_call_id == call["id"])
            )
            if decision.get("type") not in ("approve", "edit"):
                return self._refuse_call(request, toolset, name, decision)
            approved, args = True, decision.get("edited_action", {}).get("args", args)

        async def work(final: Mapping[str, Any]) -> ToolResult:
            same = final == call["args"]
            try:
                own.append(await handler(request if same else replace_args(request, final)))
            except asyncio.CancelledError as error:
                cancelled.append(error)
                raise
            if is_unknown_tool(request, own[0]):
                raise UnknownToolError(name, sorted(tool.name for tool in request.runtime.tools))
            if (reason := argument_error(request, own[0])) is not None:
                raise ToolArgumentsError(name, reason)
            return to_tool_result(own[0])

        calling = ToolRequest(toolset=toolset, tool_name=name, args=args, tool_call_id=call["id"] or "")
        done = await run.call_tool(calling, work, approved=approved)
        if done.asked is not None:
            # A sub-agent whose caller is resumed runs again as a new operation, which has not waited: the decision is
            # at hand, and the question is taken back.
            decision = self._ask_person(request, done.asked)
            del run.step.asked[calling.tool_call_id]
            run.step.calling.remove(calling)
            if decision.get("type") not in ("approve", "edit"):
                return self._refuse_call(request, toolset, name, decision)
            args = decision.get("edited_action", {}).get("args", done.asked.args)
            done = await run.call_tool(msgspec.structs.replace(calling, args=args), work, approved=True)
        if done.error is not None and not own:
            raise done.error
        if cancelled and done.result.content == f"{type(cancelled[0]).__name__}: {error_message(cancelled[0])}":
            raise cancelled[0]  # the tool cancelled itself: the graph decides what that means
        if own and not done.changed:
            return own[0]
        if own and done.added:
            return add_text(own[0], done.added)
        return tool_message(call, done.result.content, success=done.result.success)

    def _refuse_call(
        self, request: ToolCallRequest, toolset: str, name: str, decision: Mapping[str, Any]
    ) -> ToolMessage:
        """Record a call that a person refused, and return what the model reads."""
        call_id, args = request.tool_call["id"] or "", request.tool_call["args"]
        self.run.run.waiting.pop(call_id, None)
        refused = Reject(call_id, reason=decision.get("message") or "", and_continue=True)
        calling = ToolRequest(toolset=toolset, tool_name=name, args=args, tool_call_id=call_id)
        return tool_message(request.tool_call, self.run.refused(calling, refused), success=False)

    def _ask_person(self, request: ToolCallRequest, asked: PendingTool) -> Mapping[str, Any]:
        """Interrupt the graph to ask a person, in the form of `HumanInTheLoopMiddleware`.

        Returns the decision once there is one; until then the interrupt raises.
        """
        name = request.tool_call["name"]
        action = {"name": name, "args": asked.args, "description": asked.prompt, "tool_call_id": asked.tool_call_id}
        review = {"action_name": name, "allowed_decisions": ["approve", "edit", "reject"]}
        answer = interrupt({"action_requests": [action], "review_configs": [review]})
        decision: Mapping[str, Any] = answer["decisions"][0]
        return decision

    async def call_agent(self, request: ToolCallRequest, handler: CallTool, callee: str) -> Any:
        """Call an agent as a tool, through the hooks of `SubAgentCall`."""
        parent, call, own = self.run, request.tool_call, list[Any]()
        key = _instruction_key(call["args"])
        asked = str(call["args"].get(key, ""))

        async def work(instruction: str, child: str) -> str:
            async with AdapterRun((), DRIVES, agent_id=callee, operation_id=child, parent=parent) as run:
                binding = LangChainBinding(run)

                async def run_once(final: str) -> str:
                    args = {**call["args"], key: final}
                    changed = request if final == asked else request.override(tool_call={**call, "args": args})
                    try:
                        token = current_binding.set(binding)
                        try:
                            own.append(await wait_for_graph(handler(changed)))
                        finally:
                            current_binding.reset(token)
                    except GraphInterrupt as error:
                        run.pause([pending for _, pending in to_pending_tools(error.args[0], [], identify_as_local)])
                        run.end_step(should_continue=False)
                        raise
                    return to_tool_result(own[0]).content

                if AgentCall not in run.run.intercepted:
                    output = await run_once(instruction)
                else:
                    prompt = [Message(role="user", content=instruction)]
                    done = await run.lead_run(
                        prompt, lambda call: run_once("\n\n".join(each.content for each in call.input))
                    )
                    output = done.output if done.denied is None else done.denied.reason
                run.finish("interrupted" if run.denied is not None else "done", output)
                return output
            return "The agent was interrupted."

        done = await parent.call_agent(callee, asked, work)
        if own and not done.changed and to_tool_result(own[0]).content == done.output:
            return own[0]
        return tool_message(call, done.output, success=done.denied is None)

    async def compact(
        self, messages: list[Any], tokens: int, summarize: Callable[[list[Any]], Awaitable[str]]
    ) -> str | None:
        """Compact a conversation through the hooks, in the step of the model call that follows."""
        self._begin_step()
        shown = [from_langchain_message(each, identify_as_local) for each in messages]
        failures: list[Exception] = []

        async def work(given: list[Message]) -> str:
            own = to_langchain_messages(given, shown, messages, {})
            try:
                async with hold_stream(self.run, CompactCall):
                    return await summarize(own)
            except Exception as error:
                failures.append(error)
                raise

        summary = await self.run.compact(shown, tokens, work)
        if failures:
            raise failures[0]
        return summary

    def output_text(self, result: Any) -> str:
        """Return the agent's last text; with a structured response, the content of the last model answer."""
        if not isinstance(result, Mapping):
            return self.run.run.last_content
        structured = result.get("structured_response") is not None
        return last_answer_text(result) or (self.run.run.last_content if structured else "")


current_binding: ContextVar[LangChainBinding | None] = ContextVar("hookline_langchain", default=None)
"""The binding of the present run."""


async def wait_for_graph(work: Awaitable[T]) -> T:
    """Wait until a graph has ended, also when this task is cancelled.

    A graph passes a cancellation on to everything it runs, but only if it is cancelled once.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # mark as retrieved, or asyncio would log it
        raise
    return task.result()


def identify_as_local(name: str) -> tuple[str, str]:
    """Return the toolset `"local"` and the name of a tool about which nothing else is known."""
    return "local", name


def _instruction_key(args: Mapping[str, Any]) -> str:
    """Return the argument that holds the instruction, for a tool that calls an agent."""
    texts = [key for key, value in args.items() if isinstance(value, str)]
    usual = ("instruction", "description", "input", "query", "task", "prompt", "request")
    return next((key for key in usual if key in texts), texts[0] if texts else "instruction")
