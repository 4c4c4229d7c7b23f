"""Release a framework's stream of events in parts that hooks have judged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

from hookline.calls import ModelCall
from hookline.errors import HookDenied
from hookline.interceptors import open_text_judge

__all__ = ["PartsStream"]

E = TypeVar("E")


class PartsStream(Generic[E]):
    """Holds the events of a model's stream until hooks have judged its answer; text is released in parts if they do so.

    Text is released as long as nothing but text has come after its first piece, and only events without content before
    it. All else waits for the end. Use it as `async with` around the reading of the stream.

    Args:
        call: The call that the stream answers, as `ask` of `AdapterRun.ask_model` got it.
        emit: Gives an event to the readers; `None` to hold all of them.
        text_of: Returns the text of an event that is nothing but text; `None` for any other event.
        with_text: Returns an event like another one, with other text.
        is_frame: Returns whether an event has no content of the model.
        strips: Whether the framework removes white space around the answer, so that hooks do not see it.

    Attributes:
        released: The text that readers have.
    """

    def __init__(
        self,
        call: ModelCall,
        emit: Callable[[E], Awaitable[None]] | None,
        *,
        text_of: Callable[[E], str | None],
        with_text: Callable[[E, str], E],
        is_frame: Callable[[E], bool],
        strips: bool = False,
    ) -> None:
        self._judge = open_text_judge(call) if emit is not None else None
        self._emit, self._text_of, self._with_text, self._is_frame = emit, text_of, with_text, is_frame
        self._frames: list[E] = []
        self._held: list[E] = []
        self._strips, self._space = strips, ""
        self._text = ""
        self._template: E | None = None
        self.released = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, HookDenied):
            await self.judge_broken()

    async def judge_broken(self) -> None:
        """Let the hooks judge the rest of a stream that broke, of which nothing is released.

        Raises:
            HookDenied: If a hook denies the answer.
        """
        if self._judge is not None:
            await self._judge.judge_broken()

    async def add(self, event: E) -> None:
        """Take an event of the stream, and release the text that may be released now.

        Raises:
            HookDenied: If a hook denies the answer. Stop reading.
        """
        if self._judge is None or self._held:
            self._held.append(event)
            return
        text = self._text_of(event)
        if text is None:
            waits = bool(self._text) or not self._is_frame(event)
            (self._held if waits else self._frames).append(event)
        elif text:
            self._template = event
            if self._strips:
                text = self._strip(text)
            self._text += text
            await self._release(await self._judge.add(text))

    def _strip(self, text: str) -> str:
        """Return text without white space at its end, which waits for further text, or at the begin of the answer."""
        text = self._space + text if self._text else text.lstrip()
        inner = text.rstrip()
        self._space = text[len(inner) :]
        return inner

    async def _release(self, text: str) -> None:
        if text and self._template is not None and self._emit is not None:
            self.released += text
            for frame in self._frames:
                await self._emit(frame)
            self._frames.clear()
            await self._emit(self._with_text(self._template, text))

    def rest(self) -> list[E]:
        """Return the events that were not released, for an answer that no hook has changed."""
        text = (self._text + self._space)[len(self.released) :]
        pending = [self._with_text(self._template, text)] if text and self._template is not None else []
        return [*self._frames, *pending, *self._held]

    def rest_of(self, content: str) -> list[E]:
        """Return the event with the text that was not released of an answer that a hook has changed, if parts were."""
        text = content[len(self.released) :] if self.released else ""
        return [self._with_text(self._template, text)] if text and self._template is not None else []
