"""Release a model's stream to its readers in parts that hooks have judged.

LangChain gives the pieces of a model's stream to callback handlers, and some of these are the readers' own: those of
`astream(stream_mode="messages")`, `astream_events` and `astream_log`. For a model call that hooks judge in parts, one
more handler reads the pieces, and gives the readers those that hooks let pass.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.callbacks.manager import ahandle_event
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables.config import ensure_config, var_child_runnable_config

# LangGraph takes these from there too.
from langchain_core.tracers import _streaming
from langchain_core.tracers._streaming import _StreamingCallbackHandler

from hookline.adapters.langchain._pieces import EventPieces, Piece, PieceForm, TokenPieces
from hookline.calls import ModelCall, ModelResponse, Usage
from hookline.errors import HookDenied
from hookline.runtime import HeldEvents

__all__ = ["JudgedReading", "read_in_parts"]

T = TypeVar("T")
EventReader: Any = getattr(_streaming, "_V2StreamingCallbackHandler", None)
"""The handlers of `version="v3"`, with which a model gives events in place of tokens; `None` in older versions."""


def read_in_parts(
    call: ModelCall,
    last: BaseMessage | None,
    held_tags: Sequence[str],
    run_in_loop: Callable[[Coroutine[Any, Any, Any]], Any] | None,
) -> JudgedReading | None:
    """Return the reading of a model call by those who read its stream now; `None` if nobody does.

    Args:
        call: The call as `ask` of `AdapterRun.ask_model` got it.
        last: The last message that the model is given.
        held_tags: The tags of other model calls within this one, which are held whole.
        run_in_loop: Runs a coroutine in the loop of the hooks, if the model is called in another thread.
    """
    config = ensure_config()
    manager = config.get("callbacks")
    if not isinstance(manager, BaseCallbackManager):
        return None
    readers = [each for each in manager.handlers if isinstance(each, _StreamingCallbackHandler)]
    if not readers:
        return None
    return JudgedReading(call, last, manager, readers, held_tags, run_in_loop)


class JudgedReading:
    """The reading of a model's stream, of which readers get what hooks have judged.

    Args:
        call: The call.
        last: The last message that the model is given.
        manager: The callbacks of the model call.
        readers: Those of its handlers who read the stream.
        held_tags: The tags of other model calls within this one.
        run_in_loop: Runs a coroutine in the loop of the hooks, if the model is called in another thread.

    Attributes:
        run_id: The run of the model whose stream is read; `None` before it begins.
        form: The form of the pieces.
    """

    def __init__(
        self,
        call: ModelCall,
        last: BaseMessage | None,
        manager: BaseCallbackManager,
        readers: Sequence[BaseCallbackHandler],
        held_tags: Sequence[str],
        run_in_loop: Callable[[Coroutine[Any, Any, Any]], Any] | None,
    ) -> None:
        self.run_id: UUID | None = None
        self.held_tags = list(held_tags)
        self._manager, self._readers, self._run_in_loop = manager, list(readers), run_in_loop
        events = [each for each in readers if is_event_reader(each)]
        # A model gives either tokens or events. Readers of tokens among readers of events get the whole answer.
        self.form: PieceForm = EventPieces() if events else TokenPieces()
        self._piece_readers = events or self._readers
        self._last = last.content if last is not None else None
        self._place: object = None
        self._usage = Usage()
        self._parts = HeldEvents[Piece](
            call,
            text_of=self._text_of,
            with_text=self.form.with_text,
            is_frame=self.form.is_frame,
            read_so_far=lambda: ModelResponse(usage=self._usage, cost_known=False),
        )
        self._add: Callable[[Piece], Awaitable[None]] | None = None
        self._refusal: HookDenied | None = None
        self._started: dict[str, Any] = {}
        self._end: LLMResult | None = None

    @property
    def is_timed(self) -> bool:
        """Whether a hook can deny the answer while the model sends nothing."""
        return self._parts.is_timed

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Let the models in this block be read.

        Raises:
            HookDenied: If a hook denies the answer.
        """
        manager = self._manager.copy()
        muted = {
            id(each): (MutedEventReader if is_event_reader(each) else MutedReader)(each, self) for each in self._readers
        }
        kind = AsyncPieceReader if self._run_in_loop is None else PieceReader
        for name in ("handlers", "inheritable_handlers"):
            handlers = [muted.get(id(each), each) for each in getattr(manager, name)]
            setattr(manager, name, [kind(self), *handlers, DeniedModels(self)])
        token = var_child_runnable_config.set({**ensure_config(), "callbacks": manager})
        try:
            async with self._parts.open(self._give) as self._add:
                yield
                self.check_denied()
        finally:
            var_child_runnable_config.reset(token)

    def check_denied(self) -> None:
        """Raise the denial of the answer again, if something within the call has suppressed it."""
        if self._refusal is not None:
            raise self._refusal

    def begin(self, run_id: UUID, parent_run_id: UUID | None, messages: Sequence[BaseMessage], rest: Any) -> None:
        """Take the beginning of a model run, and read it if it is the one that answers the call."""
        same = not messages or self._last is None or messages[-1].content == self._last
        if self.run_id is None and parent_run_id == self._manager.parent_run_id and same:
            self.run_id = run_id
            self._started = {"run_id": run_id, "parent_run_id": parent_run_id, "tags": rest.get("tags")}

    def end(self, run_id: UUID, response: LLMResult) -> None:
        """Keep the end of a run until hooks have judged the whole answer."""
        if run_id == self.run_id:
            self._end = response

    async def take(self, piece: Piece) -> None:
        """Take a piece of the stream.

        Raises:
            HookDenied: If a hook denies the answer.
        """
        assert self._add is not None
        self.check_denied()
        used = getattr(piece.message, "usage_metadata", None)
        if used:
            self._usage += Usage(input_tokens=used["input_tokens"], output_tokens=used["output_tokens"])
        try:
            await self._add(piece)
        except HookDenied as refusal:
            self._refusal = refusal
            raise

    def take_in_loop(self, piece: Piece) -> None:
        """Take a piece of a stream that is read in another thread than that of the hooks; see `take`."""
        assert self._run_in_loop is not None
        self._run_in_loop(self.take(piece))

    async def finish(self, answer: BaseMessage | None, *, changed: bool) -> None:
        """Give the readers the rest of the answer as hooks left it, and end the run for them.

        Args:
            answer: The answer; `None` if hooks have denied or discarded it.
            changed: Whether it differs from the model's.
        """
        if self.run_id is None:
            return
        if answer is None or self._end is None:
            error = self._refusal or HookDenied("", "the answer was withheld")
            await ahandle_event(self._readers, "on_llm_error", "ignore_llm", error, **self._started)
            return
        end = self._end
        if changed:
            for piece in self.form.write_rest(answer, self._parts.released, self._place):
                await self._give(piece)
            end = LLMResult(generations=[[ChatGeneration(message=answer)]], llm_output=end.llm_output)
        else:
            for piece in self._parts.rest():
                await self._give(piece)
        await ahandle_event(self._readers, "on_llm_end", "ignore_llm", end, **self._started)

    async def _give(self, piece: Piece) -> None:
        given = {**self._started, **piece.given}
        await ahandle_event(self._piece_readers, self.form.callback, "ignore_llm", piece.value, **given)

    def _text_of(self, piece: Piece) -> str | None:
        found = self.form.read_text(piece)
        if found is None:
            return None
        place, text = found
        if self._place is None and text:
            self._place = place
        return text if place == self._place or not text else None


class PieceReader(BaseCallbackHandler):
    """Reads the stream of a model that is called in another thread than that of the hooks.

    Args:
        reading: The reading.
    """

    run_inline = True  # else LangChain would not wait for the hooks
    raise_error = True  # so that a denial ends the stream

    def __init__(self, reading: JudgedReading) -> None:
        self._reading = reading

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **given: Any
    ) -> None:
        self._reading.begin(run_id, parent_run_id, messages[0] if messages else (), given)

    def on_llm_new_token(self, token: Any, *, run_id: UUID, **given: Any) -> Any:
        if self._reads("on_llm_new_token", run_id):
            self._reading.take_in_loop(Piece(token, given))

    def on_stream_event(self, event: Any, *, run_id: UUID, **given: Any) -> Any:
        if self._reads("on_stream_event", run_id):
            self._reading.take_in_loop(Piece(event, given))

    def _reads(self, callback: str, run_id: UUID) -> bool:
        return run_id == self._reading.run_id and callback == self._reading.form.callback

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **given: Any) -> None:
        self._reading.end(run_id, response)


class DeniedModels(BaseCallbackHandler):
    """Keeps models from being asked again after hooks have denied an answer.

    The last of the handlers, since LangChain does not call those after one that raises.

    Args:
        reading: The reading.
    """

    run_inline = raise_error = True

    def __init__(self, reading: JudgedReading) -> None:
        self._reading = reading

    def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        self._reading.check_denied()


class AsyncPieceReader(PieceReader):
    """Reads the stream of a model in the task of the hooks."""

    async def on_llm_new_token(self, token: Any, *, run_id: UUID, **given: Any) -> None:
        if self._reads("on_llm_new_token", run_id):
            await self._reading.take(Piece(token, given))

    async def on_stream_event(self, event: Any, *, run_id: UUID, **given: Any) -> None:
        if self._reads("on_stream_event", run_id):
            await self._reading.take(Piece(event, given))


class MutedReader(_StreamingCallbackHandler[Any]):
    """A reader of streams who gets nothing of the judged stream from LangChain itself.

    Args:
        reader: The reader.
        reading: The judged stream.
    """

    def __init__(self, reader: Any, reading: JudgedReading) -> None:
        self._reader, self._reading = reader, reading

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def tap_output_aiter(self, run_id: UUID, output: AsyncIterator[T]) -> AsyncIterator[T]:
        found: AsyncIterator[T] = self._reader.tap_output_aiter(run_id, output)
        return found

    def tap_output_iter(self, run_id: UUID, output: Iterator[T]) -> Iterator[T]:
        found: Iterator[T] = self._reader.tap_output_iter(run_id, output)
        return found

    @property
    def on_chat_model_start(self) -> Callable[..., Any]:
        """Tell the reader of a model run; one that is not judged in parts is tagged as held."""

        def held(run_id: UUID, given: dict[str, Any]) -> dict[str, Any]:
            if run_id == self._reading.run_id:
                return given
            return {**given, "tags": [*(given.get("tags") or ()), *self._reading.held_tags]}

        return _filter_method(self._reader.on_chat_model_start, held)

    @property
    def on_llm_new_token(self) -> Callable[..., Any]:
        """Tell the reader of a piece of another run."""
        return _filter_method(self._reader.on_llm_new_token, self._unless_judged)

    @property
    def on_stream_event(self) -> Callable[..., Any]:
        """Tell the reader of an event of another run."""
        return _filter_method(self._reader.on_stream_event, self._unless_judged)

    @property
    def on_llm_end(self) -> Callable[..., Any]:
        """Tell the reader of the end of another run."""
        return _filter_method(self._reader.on_llm_end, self._unless_judged)

    @property
    def on_llm_error(self) -> Callable[..., Any]:
        """Tell the reader of the failure of another run."""
        return _filter_method(self._reader.on_llm_error, self._unless_judged)

    def _unless_judged(self, run_id: UUID, given: dict[str, Any]) -> dict[str, Any] | None:
        return None if run_id == self._reading.run_id else given


class MutedEventReader(MutedReader, EventReader or object):  # type: ignore[misc]  # what LangChain has
    """A reader of events; LangChain looks for the class to have a model give them."""


def is_event_reader(reader: object) -> bool:
    """Return whether a reader of streams reads events."""
    return EventReader is not None and isinstance(reader, EventReader)


def _filter_method(
    method: Callable[..., Any], change: Callable[[UUID, dict[str, Any]], dict[str, Any] | None]
) -> Callable[..., Any]:
    """Return a method of a handler that is called with changed options, or not at all if they are `None`."""
    if inspect.iscoroutinefunction(method):

        async def acall(*args: Any, run_id: UUID, **given: Any) -> Any:
            changed = change(run_id, given)
            return None if changed is None else await method(*args, run_id=run_id, **changed)

        return acall

    def call(*args: Any, run_id: UUID, **given: Any) -> Any:
        changed = change(run_id, given)
        return None if changed is None else method(*args, run_id=run_id, **changed)

    return call
