"""Models of a run: the `Model` protocol, streamed text, and `ScriptedModel`, which plays a script."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any, Literal, Protocol, TypeAlias, cast

import anyio

from hookline._checks import quote
from hookline._deadlines import own_cancellation
from hookline.calls import AgentCall, Call, ModelCall, ModelResponse, StepCall, ToolRequest
from hookline.errors import (
    AgentDefinitionError,
    HookDenied,
    HookUsageError,
    MissingExtraError,
    ModelAnswerError,
    ModelError,
    TransientModelError,
)
from hookline.instrumentation import Instrumentation, StreamTimes
from hookline.interceptors import Chain, FencedChain, TextJudge, judge_in_time, open_text_judge

__all__ = [
    "Model",
    "OnToken",
    "Release",
    "ScriptedModel",
    "StreamingModel",
    "make_run_text",
    "model_by_name",
]

logger = logging.getLogger("hookline")

GROUP = "hookline.models"
"""The group of entry points that make models of names: functions `(name) -> Model | None`. Each is asked, in the order
of their own names, until one knows the model."""


def model_by_name(name: str, where: str) -> Model:
    """Find a model by its name.

    Args:
        name: `provider:model`.
        where: Who wants it, for the error.

    Raises:
        AgentDefinitionError: If no adapter that is installed knows it.
        MissingExtraError: If its adapter, or the provider's package, is not installed.
    """
    for find in _finders() if ":" in name else ():
        model = find(name)
        if model is not None:
            return model
    raise AgentDefinitionError(
        where,
        f"no adapter that is installed knows the model {name!r}; use `provider:model`, such as `openai:gpt-5`",
    )


@cache
def _finders() -> tuple[Callable[[str], Model | None], ...]:
    found = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    if not found:
        raise MissingExtraError("models", "A model by its name")
    return tuple(entry.load() for entry in found)


class Model(Protocol):
    """The interface of a model.

    Attributes:
        name: The model's name, as in `ModelCall.model`.
        provider: The provider.
    """

    @property
    def name(self) -> str: ...

    @property
    def provider(self) -> str: ...

    async def respond(self, call: ModelCall) -> ModelResponse:
        """Answer a call.

        Raises:
            TransientModelError: If the call may succeed later; it is retried.
        """
        ...


class StreamingModel(Model, Protocol):
    """The interface of a model that can also stream its text. It is used if somebody reads the text."""

    def stream(self, call: ModelCall) -> AsyncIterator[str | ModelResponse]:
        """Stream the response to a call: an async generator.

        Yields:
            Pieces of text, and as the last item the whole response, as `respond` would return it.

        Raises:
            TransientModelError: If the call may succeed later; it is retried if none of its text was released.
        """
        ...


Turn: TypeAlias = str | ToolRequest | Sequence[ToolRequest] | ModelResponse | Exception
"""What a scripted model says when it is asked once."""


def as_response(turn: Turn) -> ModelResponse:
    """Return the response for a turn of a script.

    An invalid turn is returned unchanged: the run then reports it as an invalid response.

    Raises:
        Exception: The turn, if it is one.
    """
    if isinstance(turn, ModelResponse):
        return turn
    if isinstance(turn, Exception):
        raise turn
    if isinstance(turn, str):
        return ModelResponse(content=turn)
    if isinstance(turn, ToolRequest):
        return ModelResponse(tool_calls=[turn])
    if isinstance(turn, list | tuple) and turn and all(isinstance(each, ToolRequest) for each in turn):
        return ModelResponse(tool_calls=list(turn))
    return cast(ModelResponse, turn)


class ScriptedModel:
    """A model that plays a script, for tests and examples.

    ```python
    from hookline import ScriptedModel, ToolRequest

    model = ScriptedModel([ToolRequest("search", {"q": "tea"}), "Tea is 4 EUR."])
    ```

    Args:
        turns: The responses in order, or a function that returns one for each call. A turn is the final text, a tool
            call, a list of parallel tool calls, a `ModelResponse`, or an exception to raise.
        name: The model's name.

    Raises:
        HookUsageError: If `turns` is invalid.
    """

    provider = "hookline"

    def __init__(
        self,
        turns: Iterable[Turn] | Callable[[ModelCall], Turn],
        *,
        name: str = "scripted",
    ) -> None:
        if not callable(turns) and (not isinstance(turns, Iterable) or isinstance(turns, str)):
            raise HookUsageError(f"ScriptedModel takes a list of turns or a function; got {quote(turns)}.")
        self.name = name
        self._answer = turns if callable(turns) else None
        self._turns = [] if callable(turns) else list(turns)
        self._played = 0

    async def respond(self, call: ModelCall) -> ModelResponse:
        """Return the next turn.

        Raises:
            ModelError: If there are no more turns.
        """
        if self._answer is not None:
            answer = self._answer(call)
            if answer.__class__ is not ModelResponse and inspect.isawaitable(answer):
                answer = await answer
            return as_response(answer)
        if self._played == len(self._turns):
            raise ModelError(
                f"The script of {self.name!r} has only {self._played} turns, but there was one more call. Add a turn."
            )
        self._played += 1
        return as_response(self._turns[self._played - 1])

    async def stream(self, call: ModelCall) -> AsyncIterator[str | ModelResponse]:
        """Stream the next turn word by word.

        Yields:
            The words, each with the space after it, then the turn.

        Raises:
            ModelError: If there are no more turns.
        """
        answer = await self.respond(call)
        for piece in re.findall(r"\s*\S+\s*|\s+", answer.content if isinstance(answer, ModelResponse) else ""):
            yield piece
        yield answer


OnToken = Callable[[str], Awaitable[None] | None]
"""Takes the text of a run, piece by piece, in order. One that is async is waited for: a slow reader slows the model."""

Release = Literal["checked", "incremental"]
"""When text is given away: once every hook that could still change it has run, or as soon as the model writes it."""


def make_run_text(on_token: object, release: object, chain: Chain | None, tenant_id: str) -> RunText | None:
    """Return the receiver of a run's text; `None` if the caller takes none.

    Args:
        on_token: Who takes it.
        release: When.
        chain: The hooks that could change it.
        tenant_id: The tenant for whom the run is.

    Raises:
        HookUsageError: If `on_token` or `release` is invalid.
    """
    if release not in ("checked", "incremental"):
        raise HookUsageError(f'`release` must be "checked" or "incremental"; got {quote(release)}.')
    if on_token is None:
        return None
    if not callable(on_token):
        raise HookUsageError(f"`on_token` must be a function of one string; got {quote(on_token)}.")
    return RunText(on_token, chain if release == "checked" else None, tenant_id)


ENCLOSING_CALLS = (AgentCall, StepCall, ModelCall)
"""The calls whose results are text of the model, from the outside to the inside."""


def find_kept_until(chain: Chain | None, tenant_id: str, calls: Sequence[type[Call]]) -> type[Call] | None:
    """Return the first of some calls until whose end text is to be kept; `None` if no hooks judge their results."""
    return None if chain is None else next((call for call in calls if chain.judges_result(call, tenant_id)), None)


class RunText:
    """Takes what the model calls of one segment write, and gives it to the caller of the run.

    Text is kept until the outermost call with hooks that may change or withhold it has passed them; text that is kept
    for the hooks of a `ModelCall` is released in parts if these hooks judge it in parts. If a fenced change brings such
    hooks while the model writes, what follows is kept.

    Args:
        on_token: The caller's function. If it raises, that is logged, and it is called no more.
        chain: The hooks; `None` to keep nothing.
        tenant_id: The tenant for whom the run is.

    Attributes:
        bundles: The bundles that instrument the model calls of the segment.
        given: Whether the present attempt of a model call has given text away, which nobody can take back.
    """

    __slots__ = (
        "_begun",
        "_fenced",
        "_generation",
        "_held",
        "_kept_until",
        "_on_token",
        "_released",
        "_settled",
        "_silent",
        "_tenant_id",
        "_written",
        "bundles",
        "given",
    )

    def __init__(self, on_token: OnToken, chain: Chain | None, tenant_id: str) -> None:
        self._on_token: OnToken | None = on_token
        self._fenced = chain if isinstance(chain, FencedChain) else None
        self._generation = 0 if self._fenced is None else self._fenced.generation
        self._tenant_id = tenant_id
        self._kept_until = find_kept_until(chain, tenant_id, ENCLOSING_CALLS)
        self._held: list[list[str]] = []
        """What is kept back, a list of pieces for each model call."""
        self._begun = ""
        """What was released of the answer that was kept back last."""
        self._settled = 0
        """How much of that belongs to steps that have passed their hooks."""
        self._written = 0
        self._released = ""
        """What was released of the answer of the present model call, of which the rest may be kept back."""
        self._silent: set[type[Call]] = {AgentCall, StepCall}
        """In which of the present calls nothing has been given away."""
        self.bundles: Sequence[Instrumentation] = ()
        self.given = False

    def _follow_changes(self) -> None:
        """Keep text for hooks that a fenced change has brought; text that is kept stays so if they are gone."""
        if self._fenced is None or self._fenced.generation == self._generation:
            return
        self._generation = self._fenced.generation
        kept_until = self._kept_until
        outside = ENCLOSING_CALLS if kept_until is None else ENCLOSING_CALLS[: ENCLOSING_CALLS.index(kept_until)]
        self._kept_until = find_kept_until(self._fenced, self._tenant_id, outside) or kept_until

    async def read(self, model: Model, call: ModelCall) -> ModelResponse:
        """Ask a model, and take its text as it comes; of one that cannot stream, all at once.

        Raises:
            ModelAnswerError: If its stream is none, or does not end with a `ModelResponse`.
        """
        self.given, self._written, self._released = False, 0, ""
        self._follow_changes()
        stream: Any = getattr(model, "stream", None)
        if stream is None:
            answer: Any = model.respond(call)
            return await answer if inspect.isawaitable(answer) else answer  # type: ignore[no-any-return]
        times = StreamTimes() if self.bundles else None
        pieces = stream(call)
        if not hasattr(pieces, "__aiter__"):
            if inspect.iscoroutine(pieces):
                pieces.close()
            raise ModelAnswerError(model.name, f"its `stream` gave {quote(pieces)} instead of an async iterator")
        held = len(self._held)
        if self._kept_until is not None:
            self._held.append([])
        judge = open_text_judge(call) if self._kept_until is ModelCall else None
        read = partial(self._through, model, pieces, times, judge)
        try:
            if hasattr(pieces, "aclose"):
                async with aclosing(pieces):
                    return await read()
            return await read()
        except BaseException:
            self._written = 0
            del self._held[held:]
            raise
        finally:
            if times is not None:
                for hooks in self.bundles:
                    hooks.streamed(call, times)

    async def _through(
        self, model: Model, pieces: Any, times: StreamTimes | None, judge: TextJudge | None
    ) -> ModelResponse:
        if judge is None:
            return await self._read(model, pieces, times, None)
        try:
            async with judge_in_time(judge, self._give_part) as take:
                return await self._read(model, pieces, times, take)
        except Exception as error:
            is_last = self.given or not isinstance(error, TransientModelError)
            if is_last and not isinstance(error, HookDenied):
                await judge.judge_broken()
            raise

    async def _read(
        self,
        model: Model,
        pieces: Any,
        times: StreamTimes | None,
        take: Callable[[str], Awaitable[None]] | None,
    ) -> ModelResponse:
        response: ModelResponse | None = None
        kept = None if self._kept_until is None else self._held[-1]
        fenced = self._fenced
        async for piece in pieces:
            if response is not None:
                raise ModelAnswerError(model.name, f"its stream went on with {quote(piece)} after the ModelResponse")
            if isinstance(piece, ModelResponse):
                response = piece
            elif not isinstance(piece, str):
                raise ModelAnswerError(model.name, f"its stream holds {quote(piece)}; it is made of text")
            elif piece:
                self._written += 1
                if times is not None:
                    times.note_piece()
                if fenced is not None:
                    self._follow_changes()
                    if kept is None and self._kept_until is not None:
                        kept = [self._released] if self._released else []
                        self._held.append(kept)
                if kept is not None:
                    kept.append(piece)
                    if take is not None:
                        await take(piece)
                elif self._on_token is not None:
                    if fenced is not None:
                        self._released += piece
                    self.given = True
                    await self._give(piece)
        if response is None:
            raise ModelAnswerError(model.name, "its stream ended without a ModelResponse")
        return response

    async def _give_part(self, text: str) -> None:
        if self._kept_until is not ModelCall:  # a fenced change has brought hooks that judge it later
            return
        self._released += text
        self.given = True
        await self._give(text)

    async def answered(self, content: str) -> None:
        """Take the answer of a model call, which the hooks around it have seen.

        Args:
            content: The text, as those hooks have left it.
        """
        if not self._written:
            self._follow_changes()
        if self._kept_until is None:
            if not self._written and content:
                await self._give(content)
        else:
            if not self._written:
                self._held.append([content])
            elif "".join(self._held[-1]) != content:
                self._held[-1] = [content]
            if self._released:  # at the beginning of the answer, unless a hook that holds no text has changed it
                rest = content[len(self._released) :] if content.startswith(self._released) else ""
                self._held[-1] = [rest]
            self._begun = self._released
            if self._kept_until is ModelCall:
                await self._release()
        self._written, self._released = 0, ""

    @property
    def keeps(self) -> bool:
        """Whether anything is kept back."""
        return bool(self._held)

    async def passed(self, call: type[Call], content: str | None) -> None:
        """Take the end of a step or of the run, which has passed its hooks.

        Args:
            call: Which of them.
            content: What was said last in it, as those hooks have left it; `None` for nothing that was said.
        """
        if self._kept_until in (call, AgentCall):
            said = self._held[self._settled :] if call is StepCall else self._held
            begun = self._begun if said else ""
            if content is not None and content != begun + "".join(said[-1] if said else ()):
                rest = content[len(begun) :] if content.startswith(begun) else ""
                self._held[len(self._held) - bool(said) :] = [[rest]]
            self._settled = len(self._held)
            if call is self._kept_until:
                await self._release()
        elif content and call in self._silent:
            await self._give(content)
        self._silent |= {call, StepCall}

    def withheld(self, call: type[Call]) -> None:
        """Drop the text of a call that a hook denied."""
        if call is not ModelCall:
            self._held.clear()
            self._settled, self._begun = 0, ""
        elif self._written and self._held:
            self._held.pop()
        self._written, self._released = 0, ""

    async def _release(self) -> None:
        held, self._held, self._settled, self._begun = self._held, [], 0, ""
        for pieces in held:
            for piece in pieces:
                if piece:
                    await self._give(piece)

    async def _give(self, piece: str) -> None:
        self._silent.clear()
        if self._on_token is None:
            return
        try:
            waits = self._on_token(piece)
            if waits is not None and inspect.isawaitable(waits):
                await waits
        except (Exception, anyio.get_cancelled_exc_class()) as error:
            if not isinstance(error, Exception) and not own_cancellation():
                raise
            logger.exception("`on_token` raised an error and is not called again in this run")
            self._on_token = None
