"""Text of a run as the model writes it: kept back until no hook can change it any more, then given to the caller."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal

import anyio

from hookline._checks import shown
from hookline._deadlines import own_cancellation
from hookline.calls import AgentCall, Call, ModelCall, ModelResponse, StepCall
from hookline.errors import HookUsageError, ModelAnswerError

if TYPE_CHECKING:
    from hookline.interceptors import Chain
    from hookline.runtime._models import Model

__all__ = ["OnToken", "Release", "RunText", "run_text"]

logger = logging.getLogger("hookline")

OnToken = Callable[[str], Awaitable[None] | None]
"""Takes the text of a run, piece by piece, in order. One that is async is waited for: a slow reader slows the model."""

Release = Literal["checked", "incremental"]
"""When text is given away: once every hook that could still change it has run, or as soon as the model writes it."""


def run_text(on_token: object, release: object, chain: Chain | None, tenant_id: str) -> RunText | None:
    """Where the text of a run goes; `None` if nobody takes it.

    Args:
        on_token: Who takes it.
        release: When.
        chain: The hooks that could change it.
        tenant_id: The tenant for whom the run is.

    Raises:
        HookUsageError: If one of the first two cannot work.
    """
    if release not in ("checked", "incremental"):
        raise HookUsageError(f'`release` is "checked" or "incremental"; got {shown(release)}.')
    if on_token is None:
        return None
    if not callable(on_token):
        raise HookUsageError(f"`on_token` is a function that takes text; got {shown(on_token)}.")
    kept_until: type[Call] | None = None
    if chain is not None and release == "checked":
        judged = (call for call in (AgentCall, StepCall, ModelCall) if chain.judges_result(call, tenant_id))
        kept_until = next(judged, None)
    return RunText(on_token, kept_until)


class RunText:
    """Takes what the model calls of one segment write, and gives it to the caller of the run.

    Args:
        on_token: The caller's function. If it raises, that is logged, and it is called no more.
        kept_until: The outermost call with hooks that may change or withhold what was written; `None` to keep nothing.
    """

    __slots__ = ("_held", "_kept_until", "_on_token", "_settled", "_silent", "_written", "given")

    def __init__(self, on_token: OnToken, kept_until: type[Call] | None) -> None:
        self._on_token: OnToken | None = on_token
        self._kept_until = kept_until
        self._held: list[list[str]] = []
        """What is kept back, a list of pieces for each model call."""
        self._settled = 0
        """How much of that belongs to steps that have passed their hooks."""
        self._written = 0
        self._silent: set[type[Call]] = {AgentCall, StepCall}
        """In which of the present calls nothing has been given away."""
        self.given = False
        """Whether the present attempt of a model call has given text away, which nobody can take back."""

    async def read(self, model: Model, call: ModelCall) -> ModelResponse:
        """Ask a model, and take its text as it comes; of one that cannot stream, all at once.

        Raises:
            ModelAnswerError: If its stream is none, or does not end with a `ModelResponse`.
        """
        self.given, self._written = False, 0
        stream: Any = getattr(model, "stream", None)
        if stream is None:
            answer: Any = model.respond(call)
            return await answer if inspect.isawaitable(answer) else answer  # type: ignore[no-any-return]
        pieces = stream(call)
        if not hasattr(pieces, "__aiter__"):
            if inspect.iscoroutine(pieces):
                pieces.close()
            raise ModelAnswerError(model.name, f"its `stream` gave {shown(pieces)} instead of an async iterator")
        kept: list[str] | None = None
        if self._kept_until is not None:
            kept = []
            self._held.append(kept)
        try:
            if hasattr(pieces, "aclose"):
                async with aclosing(pieces):
                    return await self._through(model, pieces, kept)
            return await self._through(model, pieces, kept)
        except BaseException:
            self._written = 0
            if kept is not None:
                self._held.pop()
            raise

    async def _through(self, model: Model, pieces: Any, kept: list[str] | None) -> ModelResponse:
        response: ModelResponse | None = None
        async for piece in pieces:
            if response is not None:
                raise ModelAnswerError(model.name, f"its stream went on with {shown(piece)} after the ModelResponse")
            if isinstance(piece, ModelResponse):
                response = piece
            elif not isinstance(piece, str):
                raise ModelAnswerError(model.name, f"its stream holds {shown(piece)}; it is made of text")
            elif piece:
                self._written += 1
                if kept is not None:
                    kept.append(piece)
                elif self._on_token is not None:
                    self.given = True
                    await self._give(piece)
        if response is None:
            raise ModelAnswerError(model.name, "its stream ended without a ModelResponse")
        return response

    async def answered(self, content: str) -> None:
        """A model call has ended, and the hooks around it have seen its answer.

        Args:
            content: The text, as those hooks have left it.
        """
        if self._kept_until is None:
            if not self._written and content:
                await self._give(content)
        else:
            if not self._written:
                self._held.append([content])
            elif "".join(self._held[-1]) != content:
                self._held[-1] = [content]
            if self._kept_until is ModelCall:
                await self._release()
        self._written = 0

    @property
    def keeps(self) -> bool:
        """Whether anything is kept back."""
        return bool(self._held)

    async def passed(self, call: type[Call], content: str | None) -> None:
        """A step or the run has passed its hooks.

        Args:
            call: Which of them.
            content: What was said last in it, as those hooks have left it; `None` for nothing that was said.
        """
        if self._kept_until in (call, AgentCall):
            said = self._held[self._settled :] if call is StepCall else self._held
            if content is not None and content != "".join(said[-1] if said else ()):
                self._held[len(self._held) - bool(said) :] = [[content]]
            self._settled = len(self._held)
            if call is self._kept_until:
                await self._release()
        elif content and call in self._silent:
            await self._give(content)
        self._silent |= {call, StepCall}

    def withheld(self, call: type[Call]) -> None:
        """A hook has denied a call, and nobody is to see what was kept back of it."""
        if call is not ModelCall:
            self._held.clear()
            self._settled = 0
        elif self._written and self._held:
            self._held.pop()
        self._written = 0

    async def _release(self) -> None:
        held, self._held, self._settled = self._held, [], 0
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
            logger.exception("`on_token` raised an error; it gets no more text of this run")
            self._on_token = None
