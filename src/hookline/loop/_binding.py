"""Bind a loop of your own to hookline's `AdapterRun`: its model calls, tool calls and decisions of people."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

import msgspec
from msgspec.structs import force_setattr

from hookline._checks import quote
from hookline._readonly import ReadOnlyList, writable
from hookline.calls import (
    CompactCall,
    Denial,
    Message,
    ModelCall,
    ModelResponse,
    SubAgentCall,
    ToolCall,
    ToolRequest,
    ToolResult,
)
from hookline.errors import HookDenied, HookUsageError, RunPaused, RunStopped, UnknownToolError
from hookline.events import BeforeHumanIntervention, PendingTool, ToolOutcome
from hookline.execution import SteppedCall
from hookline.loop._client import Exchange, format_named, format_of_answer
from hookline.loop._format import Format, Told, plain
from hookline.loop._judged_streams import JudgedStream, Take
from hookline.loop._names import ToolNames
from hookline.loop._prices import cost_of
from hookline.loop._streams import End, OpenStream
from hookline.runtime import (
    KINDS,
    AdapterRun,
    Approve,
    Capabilities,
    OperationState,
    Reject,
    Tool,
    ToolDone,
    assign_call_ids,
    check_decisions,
    run_overlapping,
)

__all__ = ["DRIVES", "Decide", "LoopBinding", "Surroundings"]

DRIVES = Capabilities(
    framework="hookline.loop",
    calls={ToolCall: KINDS, ModelCall: KINDS, CompactCall: KINDS, SubAgentCall: KINDS},
    asks=True,
    guides=True,
)
"""All sixteen events. The prompt belongs to the loop, so that hooks of an `AgentCall` are refused."""

Decide: TypeAlias = Callable[[PendingTool], Approve | Reject | Awaitable[Approve | Reject]]
"""Asks a person about a tool call."""

DETAILS_KEY = "hookline.loop"
"""Key in the `details` of a paused run's last message for the conversation in the client's own JSON."""


class Surroundings(Protocol):
    """The operations that differ between an async and a sync loop.

    Attributes:
        thread: The only thread that may use the run; `None` if any may.
    """

    @property
    def thread(self) -> int | None: ...

    def reader(self) -> object:
        """Return the task or thread that makes a call."""
        ...

    async def send(self, exchange: Exchange, body: Mapping[str, Any]) -> Any:
        """Send a request with the client."""
        ...

    async def read(self, http: Any) -> bytes:
        """Read an HTTP response to its end."""
        ...

    async def make_result(self, exchange: Exchange, answer: Mapping[str, Any]) -> Any:
        """Make an answer as the client's method would return it."""
        ...

    async def run_tool(self, tool: Tool, args: Mapping[str, Any]) -> object:
        """Run a tool."""
        ...

    async def decide(self, decide: Decide, pending: PendingTool) -> Approve | Reject:
        """Ask a person."""
        ...

    def watch(self, stream: OpenStream, end: End) -> None:
        """Register a function to call at the end of a stream."""
        ...

    def judge(self, stream: JudgedStream, take: Take, end: End) -> None:
        """Register the functions that decide which bytes of a stream are released, and that end it."""
        ...

    async def close(self, http: Any) -> None:
        """Close a stream before its end."""
        ...


class LastAnswer(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The last model call and its answer.

    Attributes:
        exchange: The model call.
        body: The request, as hooks left it.
        answer: The answer, as an object of the client or as JSON.
    """

    exchange: Exchange
    body: Mapping[str, Any]
    answer: Any


class ToolCalls(NamedTuple):
    """The tool calls of an answer.

    Attributes:
        format: The protocol of the answer.
        given: The calls as the client has them.
        requests: The calls.
    """

    format: Format
    given: list[Any]
    requests: list[ToolRequest]


class StoredConversation(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation of a run that waits for a person.

    Attributes:
        format: The name of its protocol.
        entries: Its entries, in the client's own JSON.
        answered: The number of entries at the end that are the answer whose calls wait.
    """

    format: Format
    entries: list[Any]
    answered: int


class LoopBinding:
    """Connects the client of a loop with the hooks of its run.

    Args:
        run: The run.
        names: The tools of the run.
        surroundings: The operations that differ between an async and a sync loop.
        decide: Asks a person about a tool call; `None` to pause the run instead.
        native: The protocol that the client usually speaks.
        provider: The provider of the model.
    """

    def __init__(
        self,
        run: AdapterRun,
        names: ToolNames,
        surroundings: Surroundings,
        decide: Decide | None,
        *,
        native: Format,
        provider: str,
    ) -> None:
        self.run, self.names, self.native = run, names, native
        self.last: LastAnswer | None = None
        self.paused: RunPaused | None = None
        self._surroundings, self._provider, self._decide = surroundings, provider, decide
        self._thread = surroundings.thread
        self._model = ""
        self._asking = 0
        self._answered = False
        """Whether the last answer is one of the open step."""
        self._step_begun = False
        self._resumed = False
        self._stored: StoredConversation | None = None
        self._streams: list[OpenStream] = []
        self._stepped: set[SteppedCall] = set()
        self._ran: set[tuple[int, str]] = set()
        """The calls that `call_tools` has run, by step and id."""

    # Its life.

    def check(self, *, resumes: bool = False) -> None:
        """Raise unless the run can continue.

        Raises:
            RunStopped: If a hook, a person or `interrupt` has ended the run.
            RunPaused: If the run waits for a person.
            HookUsageError: If the block has not begun or has ended, or if the run belongs to another thread.
        """
        if self.paused is not None:
            raise self.paused
        if not self.run.is_open:
            raise HookUsageError(
                f"Run {self.run.operation_id!r} is not open: its client and its methods work inside of its block, "
                "`async with wrap(client, ...) as run:` or `with` for a sync client. Outside of it use the client that "
                "you made."
            )
        segment = self.run.run
        if segment.denied is not None:
            raise _stopped_error(segment.denied)
        if segment.interrupted:
            raise RunStopped("The run was interrupted.")
        if not resumes and not self._resumed and segment.pending:
            names = ", ".join(repr(each.tool_call_id) for each in segment.undecided())
            raise HookUsageError(
                f"Run {self.run.operation_id!r} waits for a person to decide about {names}. Before it goes on, call "
                "`messages = run.messages` and `messages += run.resume([Approve(...)])`."
            )
        if self._thread is not None and self._thread != threading.get_ident():
            raise HookUsageError(
                "This run was opened in the event loop of another thread, and cannot be used in this one. Open a run "
                "in each thread, with `async with wrap(...)`."
            )

    @property
    def has_streams(self) -> bool:
        """Whether the run has streams that were not read to their end."""
        return bool(self._streams)

    async def end_streams(self, *, of: object = None) -> None:
        """Close the streams that were not read to their end.

        Args:
            of: The task or thread whose streams to close; all unless given.
        """
        for stream in list(self._streams):
            if of is None or stream.reader == of:
                await self._surroundings.close(stream.http)
                await self._end_stream(stream, None)

    # Model calls.

    async def ask_model(self, exchange: Exchange) -> Any:
        """Make a model call through the hooks, and return the client's own result."""
        body = self.begin_direct_call(exchange)
        if body is not None:
            return await self._ask_directly(exchange, body)
        if self._streams:
            await self.end_streams(of=self._surroundings.reader())
        self._begin_call(exchange)
        try:
            # A durable store keeps the conversation, so that it has to be known.
            if not self.run.leads(ModelCall) and not self.run.run.journal.durable:
                return await self._stream_directly(exchange)
            if exchange.streams and not self.run.hold_stream(ModelCall):
                return await self._ask_for_stream(exchange)
            if exchange.streams and self.run.judges_parts():
                return await self._ask_in_parts(exchange)
            return await self._ask_through_hooks(exchange)
        finally:
            self._asking -= 1

    def _begin_call(self, exchange: Exchange) -> None:
        """Begin a model call, and a step unless the call belongs to one that is under way."""
        if not self._asking and not self._streams:
            self._begin_step()
            self._answered = False
        self._asking += 1
        self._name_model(exchange)

    def _begin_step(self) -> None:
        """Begin a step, unless a compaction has begun it."""
        if not self._step_begun:
            self.run.begin_step()
            self._ran.clear()
        self._step_begun = False

    def _name_model(self, exchange: Exchange) -> None:
        model = exchange.body.get("model")
        if isinstance(model, str) and model != self._model:
            self._model = model
            self.run.name_model(model)

    def begin_direct_call(self, exchange: Exchange) -> Mapping[str, Any] | None:
        """Begin a model call that no interceptor wraps.

        Returns:
            The request, which the caller sends before it calls `end_direct_call`; `None` if the call has to go through
            `ask_model`.
        """
        self.check()
        if exchange.streams or self._streams or self.run.leads(ModelCall) or self.run.run.journal.durable:
            return None
        self._begin_call(exchange)
        self.run.begin_model_call()
        return _with_own_list(exchange.format, exchange.body)

    def end_direct_call(self, answered: LastAnswer | None) -> None:
        """End a call that `begin_direct_call` has begun. No hook hears of it.

        Args:
            answered: The answer; `None` if the call has failed.

        Raises:
            RunStopped: If the run was interrupted meanwhile.
        """
        self._asking -= 1
        if answered is not None:
            self.check()
            self.last, self._answered = answered, True
            self.run.asked_model(self._to_response(answered.exchange.format, answered.answer))

    async def _ask_directly(self, exchange: Exchange, body: Mapping[str, Any]) -> Any:
        answered: LastAnswer | None = None
        try:
            result = await self._surroundings.send(exchange, body)
            http = exchange.http_response(result)
            answer = result if http is None else exchange.decode_answer(await self._surroundings.read(http))
            answered = LastAnswer(exchange=exchange, body=body, answer=answer)
        finally:
            self.end_direct_call(answered)
        return result

    async def _stream_directly(self, exchange: Exchange) -> Any:
        """Make a model call that no interceptor wraps, and whose answer is usually a stream."""
        self.run.begin_model_call()
        body = _with_own_list(exchange.format, exchange.body)
        result = await self._surroundings.send(exchange, body)
        http = exchange.http_response(result)
        if exchange.streams and http is not None:
            self._watch(exchange, http, body, None, self.run.begin_stream())
            return result
        answer = result if http is None else exchange.decode_answer(await self._surroundings.read(http))
        self._note(exchange, body, answer)
        self.run.asked_model(self._to_response(exchange.format, answer))
        return result

    async def _ask_for_stream(self, exchange: Exchange) -> Any:
        """Make a streamed model call whose hooks see only the request, so that the stream is passed on at once."""
        format_, parts = exchange.format, exchange.format.read_parts(exchange.body, self.names)
        stepped = SteppedCall(self._stepped)
        asking = self.run.ask_model(parts.messages, stepped.work, tools=parts.tools, settings=parts.settings)
        if not await stepped.begin(asking):
            return await self._make_result(exchange, exchange.body, stepped.result, None)
        note_piece = self.run.begin_stream()
        body = _with_own_list(format_, format_.apply(exchange.body, parts, stepped.given, self.names))
        try:
            result = await self._surroundings.send(exchange, body)
        except BaseException as error:
            await stepped.fail(error)
            raise
        self._watch(exchange, exchange.http_response(result), body, stepped, note_piece)
        return result

    async def _ask_in_parts(self, exchange: Exchange) -> Any:
        """Make a streamed model call whose hooks judge the answer in parts."""
        format_, parts = exchange.format, exchange.format.read_parts(exchange.body, self.names)
        stepped, again = SteppedCall(self._stepped), list[Any]()
        asked = False

        async def ask(call: ModelCall) -> ModelResponse:
            nonlocal asked
            if not asked:  # between its two halves the client reads the stream
                asked = True
                first: ModelResponse = await stepped.work(call)
                return first
            body = _with_own_list(format_, format_.apply(exchange.body, parts, call, self.names))
            result = await self._surroundings.send(exchange, body)
            again.append(exchange.decode_answer(await self._surroundings.read(exchange.http_response(result))))
            return self._to_response(format_, again[-1])

        asking = self.run.ask_model(parts.messages, ask, tools=parts.tools, settings=parts.settings)
        if not await stepped.begin(asking):
            return await self._make_result(exchange, exchange.body, stepped.result, None)
        note_piece = self.run.begin_stream()
        body = _with_own_list(format_, format_.apply(exchange.body, parts, stepped.given, self.names))
        try:
            result = await self._surroundings.send(exchange, body)
            http = exchange.http_response(result)
            if http.headers.get("content-encoding", "identity") != "identity":
                answer = exchange.decode_answer(await self._surroundings.read(http))
                final = await stepped.end(self._to_response(format_, answer))
                return await self._make_result(exchange, body, final, plain(again[-1] if again else answer))
        except BaseException as error:
            await stepped.fail(error)
            raise
        to_response, reader = partial(self._to_response, format_), self._surroundings.reader()
        stream = JudgedStream(stepped.given, to_response, exchange, body, http, reader, stepped, note_piece)
        stream.again = again
        self._streams.append(stream)
        self._surroundings.judge(stream, self._take_part, self._end_stream)
        return result

    async def _take_part(self, stream: JudgedStream, chunk: bytes | None, error: BaseException | None) -> bytes:
        """Take bytes of a stream that is judged in parts, or its end, and return the bytes to release.

        Raises:
            RunStopped: If a hook denied the answer.
        """
        assert stream.stepped is not None
        data = b""
        try:
            if chunk is not None:
                data = await stream.take(chunk)
                if not stream.whole:
                    return data
            elif error is not None:
                if not isinstance(error, Exception):
                    await self._end_stream(stream, error)
                    return b""
                await stream.parts.judge_broken()
                await self._end_stream(stream, error)
                return b""
        except HookDenied as refusal:
            self._drop_stream(stream)
            await stream.stepped.fail(refusal)
            raise _stopped_error(self.run.denied) from None
        return data + await self._finish_part(stream)

    async def _finish_part(self, stream: JudgedStream) -> bytes:
        """Let the hooks judge the whole answer, and return the bytes that the client has not got."""
        assert stream.stepped is not None
        self._drop_stream(stream)
        exchange, own = stream.exchange, stream.join()
        response = self._to_response(exchange.format, own)
        self._note(exchange, stream.body, own)
        final: ModelResponse | None = await stream.stepped.end(response)
        if final is None:
            raise _stopped_error(self.run.denied)
        if final == response and not stream.again:
            return stream.write_rest(None)
        own = plain(stream.again[-1] if stream.again else own)
        answer = exchange.format.write_answer(final, own, str(exchange.body.get("model", "")), self.names)
        self._note(exchange, stream.body, answer)
        return stream.write_rest(answer)

    def _drop_stream(self, stream: OpenStream) -> None:
        stream.ended = True
        self._streams.remove(stream)

    async def _ask_through_hooks(self, exchange: Exchange) -> Any:
        """Make a model call through hooks that may change its request and its answer."""
        format_, parts = exchange.format, exchange.format.read_parts(exchange.body, self.names)
        own: list[tuple[Any, Mapping[str, Any], Any, ModelResponse]] = []

        async def ask(call: ModelCall) -> ModelResponse:
            body = _with_own_list(format_, format_.apply(exchange.body, parts, call, self.names))
            result = await self._surroundings.send(exchange, body)
            http = exchange.http_response(result)
            answer = result if http is None else exchange.decode_answer(await self._surroundings.read(http))
            own.append((result, body, answer, self._to_response(format_, answer)))
            return own[-1][3]

        response = await self.run.ask_model(parts.messages, ask, tools=parts.tools, settings=parts.settings)
        if own and response == own[-1][3]:
            self._note(exchange, own[-1][1], own[-1][2])
            return own[-1][0]
        if not own:
            return await self._make_result(exchange, exchange.body, response, None)
        return await self._make_result(exchange, own[-1][1], response, plain(own[-1][2]))

    async def _make_result(
        self, exchange: Exchange, body: Mapping[str, Any], response: ModelResponse | None, own: dict[str, Any] | None
    ) -> Any:
        """Convert an answer that hooks provided or changed to the client's own result."""
        if response is None:
            raise _stopped_error(self.run.denied)
        calls = assign_call_ids(response.tool_calls, self.run.step.index)
        if calls != list(response.tool_calls):
            response = msgspec.structs.replace(response, tool_calls=calls)
        answer = exchange.format.write_answer(response, own, str(exchange.body.get("model", "")), self.names)
        self._note(exchange, _with_own_list(exchange.format, body), answer)
        return await self._surroundings.make_result(exchange, answer)

    def _note(self, exchange: Exchange, body: Mapping[str, Any], answer: Any) -> None:
        self.last, self._answered = LastAnswer(exchange=exchange, body=body, answer=answer), True

    def _to_response(self, format_: Format, answer: Any) -> ModelResponse:
        """Convert an answer to the response that hooks see, with its cost."""
        response = format_.read_answer(answer, self.names, self._price)
        if response.tool_calls:  # nobody has seen the response yet, and a copy takes half as long as to read the answer
            calls = assign_call_ids(response.tool_calls, self.run.step.index)
            force_setattr(response, "tool_calls", ReadOnlyList(calls))
        return response

    def _price(self, tokens: Mapping[str, int], model: str) -> float | None:
        """Return the cost of an answer in US dollars; `None` if it is not known."""
        return cost_of(tokens, model or self._model, self._provider)

    # Streams.

    def _watch(
        self,
        exchange: Exchange,
        http: Any,
        body: Mapping[str, Any],
        stepped: SteppedCall | None,
        note_piece: Callable[[], None],
    ) -> None:
        stream = OpenStream(exchange, body, http, self._surroundings.reader(), stepped, note_piece)
        self._streams.append(stream)
        self._surroundings.watch(stream, self._end_stream)

    async def _end_stream(self, stream: OpenStream, error: BaseException | None) -> None:
        """Record the answer of a stream that was read or closed, or the error that ended it."""
        if stream.ended:
            return
        self._drop_stream(stream)
        # Clients that drain a finished stream, to use its connection again, give up on that after a moment.
        if error is not None and not stream.is_whole():
            if stream.stepped is not None:
                await stream.stepped.fail(error)
            return
        answer = stream.join()
        self._note(stream.exchange, stream.body, answer)
        response = self._to_response(stream.exchange.format, answer)
        if stream.stepped is not None:
            await stream.stepped.end(response)
        elif self.run.is_open:
            self.run.asked_model(response)

    # Tools.

    def read_calls(self, answer: Any) -> ToolCalls:
        """Return the tool calls of an answer.

        Args:
            answer: The answer; `None` for the last one.
        """
        self.check()
        format_, answer = self._find_answer(answer)
        given = format_.read_calls(answer)
        return ToolCalls(format_, given, [format_.read_call(call, self.names) for call in given])

    def read_call(self, call: Any) -> ToolCalls:
        """Return one tool call of the last answer."""
        self.check()
        format_ = self.last.exchange.format if self.last is not None else self.native
        return ToolCalls(format_, [call], [format_.read_call(call, self.names)])

    def calls_at_once(self, calls: ToolCalls, is_plain: Callable[[Tool], bool]) -> bool:
        """Return whether nothing in tool calls waits, but for the tool if that is a plain function.

        Args:
            calls: The calls.
            is_plain: Returns whether a tool is a plain function.
        """
        if len(calls.requests) != 1 or self._decide is not None:
            return False
        tool = self._tool_of(calls.requests[0])
        if tool is not None and not (tool.needs_approval.__class__ is bool and is_plain(tool)):
            return False
        return self.run._calls_tools_at_once

    async def call_tools(self, calls: ToolCalls) -> list[Any]:
        """Run tool calls, and return the results in the client's own form."""
        return calls.format.write_results(await self._call_each(calls))

    async def call_tool(self, calls: ToolCalls) -> Any:
        """Run one tool call, and return its result in the client's own form."""
        (told,) = await self._call_each(calls)
        return calls.format.write_result(told)

    def _find_answer(self, answer: Any) -> tuple[Format, Any]:
        last = self.last
        if last is not None and (self._answered if answer is None else answer is last.answer):
            return last.exchange.format, last.answer
        if answer is None:
            why = "the stream of the answer was not read to its end" if self._streams else "the model has not answered"
            raise HookUsageError(f"There are no tool calls yet: {why}.")
        found = format_of_answer(answer)
        if found is None:
            raise HookUsageError(
                f"`call_tools` takes what the client returned, such as a ChatCompletion, a Response or a Message; got "
                f"{quote(answer)}. Of a stream, give its final answer, or leave the argument out for the last answer."
            )
        return found, answer

    async def _call_each(self, calls: ToolCalls) -> list[Told]:
        """Run calls concurrently, and ask a person about those that need approval."""
        step = self.run.step.index
        requests = assign_call_ids(calls.requests, step)
        for request in requests:
            if (step, request.tool_call_id) in self._ran:
                raise HookUsageError(
                    f"Tool call {request.tool_call_id!r} ({request.tool_name}) has run already, and would run a "
                    "second time. Call `run.call_tools` once for each answer."
                )
        for request in requests:
            self._ran.add((step, request.tool_call_id))
        found = await self._run_all([(request, False) for request in requests])
        while asked := [done.asked for done in found.values() if done.asked is not None]:
            if self._decide is None:
                self._pause(asked)
            found |= await self._ask_in_place(self._decide, asked)
        told: list[Told] = []
        for call, request in zip(calls.given, requests, strict=True):
            result = found[request.tool_call_id].result
            told.append(Told(call=call, content=result.content, success=result.success))
        return told

    async def _run_all(self, requests: Sequence[tuple[ToolRequest, bool]]) -> dict[str, ToolDone]:
        """Run calls concurrently.

        Args:
            requests: The calls, each with whether a person has approved it.

        Raises:
            RunStopped: If a hook ends the run.
        """
        found: dict[str, ToolDone] = {}
        calls = {request.tool_call_id: self._prepare(request, approved=approved) for request, approved in requests}

        async def make(name: str) -> None:
            found[name] = await calls[name]()

        await run_overlapping(self.run.run, [partial(make, name) for name in calls])
        for done in found.values():
            if done.stop is not None:
                raise _stopped_error(done.stop)
        return found

    def _tool_of(self, request: ToolRequest) -> Tool | None:
        return self.names.tools.get(self.names.name(request.toolset, request.tool_name))

    def _prepare(self, request: ToolRequest, *, approved: bool) -> Callable[[], Awaitable[ToolDone]]:
        tool = self._tool_of(request)

        async def work(args: Mapping[str, Any]) -> Any:
            if tool is None:
                known = [f"{each.toolset}/{each.name}" for each in self.names.tools.values()]
                raise UnknownToolError(f"{request.toolset}/{request.tool_name}", known)
            return await self._surroundings.run_tool(tool, args)

        approval = tool.needs_approval if tool is not None else False
        return self.run.prepare_tool_call(request, work, approved=approved, needs_approval=approval)

    # People.

    async def _ask_in_place(self, decide: Decide, asked: Sequence[PendingTool]) -> dict[str, ToolDone]:
        """Ask a person about calls while the run waits, and run the approved ones."""
        run, step = self.run.run, self.run.step
        if run.hooked(BeforeHumanIntervention):
            run.emit(BeforeHumanIntervention(**run.ids, step_index=step.index, pending_tools=list(asked)))
        decisions: list[Approve | Reject] = []
        for pending in asked:
            decision = await self._surroundings.decide(decide, pending)
            if not isinstance(decision, Approve | Reject) or decision.tool_call_id != pending.tool_call_id:
                raise HookUsageError(
                    f"`ask` must return Approve({pending.tool_call_id!r}) or Reject({pending.tool_call_id!r}, ...); "
                    f"got {quote(decision)}."
                )
            decisions.append(decision)
            del step.asked[pending.tool_call_id]
            if isinstance(decision, Reject) and not decision.and_continue:
                break
        self.run.decided(decisions)
        return await self._apply(decisions, asked)

    async def _apply(
        self, decisions: Sequence[Approve | Reject], pending: Sequence[PendingTool]
    ) -> dict[str, ToolDone]:
        """Run the calls that a person approved, and record the rejected ones.

        Raises:
            RunStopped: If a `Reject` without `and_continue` ends the run.
        """
        stop = next((each for each in decisions if isinstance(each, Reject) and not each.and_continue), None)
        if stop is not None:
            self.run.finish("interrupted")
            raise RunStopped(stop.reason or "A person rejected a tool call.")
        waiting = {each.tool_call_id: each for each in pending}
        approved: list[tuple[ToolRequest, bool]] = []
        found: dict[str, ToolDone] = {}
        for decision in decisions:
            request = _to_request(waiting[decision.tool_call_id])
            if isinstance(decision, Reject):
                content = self._refuse(request, decision)
                found[request.tool_call_id] = ToolDone(result=ToolResult(content=content, success=False), ran=False)
            else:
                approved.append((request, True))
        self.run.step.type = "call_tool"
        return found | await self._run_all(approved)

    def _refuse(self, request: ToolRequest, decision: Reject) -> str:
        """Record a rejected call, which the step may already know."""
        step = self.run.step
        step.calling = [each for each in step.calling if each.tool_call_id != request.tool_call_id]
        content = self.run.refused(request, decision)
        self.run.run.outcomes[request.tool_call_id] = step.outcomes[request.tool_call_id]
        self.run.run.waiting.pop(request.tool_call_id, None)
        return content

    def _pause(self, asked: Sequence[PendingTool]) -> NoReturn:
        """Pause the run until a person has decided.

        Raises:
            RunPaused: Always.
        """
        if self.last is not None:
            self.run.run.messages = self._storable_conversation(self.last)
        self.run.pause(asked)
        self._raise_pause(asked)

    def _storable_conversation(self, last: LastAnswer) -> list[Message]:
        """Return the conversation for the store, as hooks see it and in the client's own JSON."""
        format_ = last.exchange.format
        answer = format_.write_entries(last.answer)
        entries = [*plain(format_.list_entries(last.body)), *answer]
        shown = format_.read_conversation({**last.body, format_.conversation: entries}, self.names)
        messages = [message for group in shown for message in group.ours]
        own = {DETAILS_KEY: {"format": format_.name, "entries": entries, "answered": len(answer)}}
        return [*messages[:-1], msgspec.structs.replace(messages[-1], details=own)]

    def stored(self) -> StoredConversation | None:
        """Return the stored conversation of a resumed run; `None` for a new run."""
        if self._stored is not None or not self.run.run.pending:
            return self._stored
        for message in reversed(self.run.run.messages):
            own = message.details.get(DETAILS_KEY)
            format_ = format_named(str(own["format"])) if own is not None else None
            if own is not None and format_ is not None:
                entries, answered = writable(own["entries"]), int(own["answered"])
                self._stored = StoredConversation(format=format_, entries=entries, answered=answered)
                break
        return self._stored

    async def resume(self, decisions: Sequence[Approve | Reject]) -> list[Any]:
        """Apply a person's decisions, and return the results of all calls of the paused step."""
        self.check(resumes=True)
        run = self.run.run
        stored = self.stored()
        if stored is None or self._resumed:
            raise HookUsageError(
                f"Run {self.run.operation_id!r} waits for nobody. Give `wrap` the operation_id and the store of a run "
                "that raised RunPaused, and call `run.resume` once."
            )
        checked = check_decisions(
            OperationState(
                operation_id=run.operation_id, agent_id=run.agent.id, pending=run.pending, decisions=run.decisions
            ),
            decisions,
        )
        self._resumed = True
        self.run.begin_step()
        self.run.decided(checked)
        run.decisions |= {decision.tool_call_id: decision for decision in checked}
        stops = any(isinstance(each, Reject) and not each.and_continue for each in checked)
        if not stops and run.undecided():
            self.run.step.type = "request_human_approve"
            self.run.finish("waiting_for_human")
            self._raise_pause(run.undecided())
        open_calls, known = list(run.open_calls), dict(run.outcomes)
        found = await self._apply(list(run.decisions.values()), run.pending)
        while asked := [done.asked for done in found.values() if done.asked is not None]:  # a control changed a call
            if self._decide is None:
                for each in asked:
                    del run.decisions[each.tool_call_id]
                self.run.pause(asked)
                run.open_calls = open_calls
                self._raise_pause(asked)
            found |= await self._ask_in_place(self._decide, asked)
        run.pending, run.open_calls, run.decisions = [], [], {}
        calls = stored.format.read_calls(stored.format.join_entries(stored.entries[-stored.answered :]))
        told: list[Told] = []
        for call, request in zip(calls, open_calls, strict=True):
            done = found.get(request.tool_call_id)
            outcome: ToolResult | ToolOutcome = done.result if done is not None else known[request.tool_call_id]
            told.append(Told(call=call, content=outcome.content, success=outcome.success))
        return stored.format.write_results(told)

    def _raise_pause(self, pending: Sequence[PendingTool]) -> NoReturn:
        self.paused = RunPaused(self.run.operation_id, tuple(pending))
        raise self.paused

    # Compaction, sub-agents.

    async def compact(
        self, entries: Sequence[Any], token_count: int, summarize: Callable[[list[Any]], Awaitable[str]]
    ) -> str | None:
        """Compact entries of a conversation through the hooks, in the step of the model call that follows."""
        self.check()
        format_ = self.last.exchange.format if self.last is not None else self.native
        groups = format_.read_conversation({format_.conversation: list(entries)}, self.names)
        messages = [message for group in groups for message in group.ours]
        self._begin_step()
        self._step_begun = True

        async def work(given: list[Message]) -> str:
            if given == messages:
                return await summarize(list(entries))
            return await summarize(format_.restore(given, groups, self.names))

        return await self.run.compact(messages, token_count, work)


def _with_own_list(format_: Format, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a request with a copy of its list of messages, because the loop adds to the original list."""
    entries = body.get(format_.conversation)
    return {**body, format_.conversation: list(entries)} if isinstance(entries, list) else body


def _stopped_error(denial: Denial | None) -> RunStopped:
    if denial is None:
        return RunStopped("The run was interrupted.")
    return RunStopped(denial.reason, denial.hook_id)


def _to_request(pending: PendingTool) -> ToolRequest:
    return ToolRequest(
        toolset=pending.toolset, tool_name=pending.tool_name, args=pending.args, tool_call_id=pending.tool_call_id
    )
