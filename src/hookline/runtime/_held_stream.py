"""`HeldEvents`: hold back a model's stream until hooks have judged its text, and release it in parts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from hookline.calls import ModelCall, ModelResponse
from hookline.errors import HookDenied
from hookline.interceptors import judge_in_time, open_text_judge

__all__ = ["HeldEvents"]

E = TypeVar("E")


class HeldEvents(Generic[E]):
    """Holds the events of a model's stream until hooks have judged its answer; text is released in parts if they do so.

    Text is released as long as nothing but text has come after its first piece, and only events without content before
    it. All else waits for the end.

    Args:
        call: The call that the stream answers, as `ask` of `AdapterRun.ask_model` got it.
        text_of: Returns the text of an event that is nothing but text; `None` for any other event.
        with_text: Returns an event like another one, with other text.
        is_frame: Returns whether an event has no content of the model.
        has_reader: Whether somebody reads the stream while it is written. If not, all events are held.
        strips: Whether the framework removes white space around the answer, so that hooks do not see it.
        read_so_far: Returns the answer as far as it was received, with the usage that the model has reported, for an
            answer that hooks deny meanwhile; `None` if no usage is known before the end.

    Attributes:
        released: The text that readers have.
        is_timed: Whether a hook must judge after some time also if no event comes, so that `feed` is to read the
            stream, or `judge_waiting` to be called.
    """

    def __init__(
        self,
        call: ModelCall,
        *,
        text_of: Callable[[E], str | None],
        with_text: Callable[[E, str], E],
        is_frame: Callable[[E], bool],
        has_reader: bool = True,
        strips: bool = False,
        read_so_far: Callable[[], ModelResponse] | None = None,
    ) -> None:
        self._judge = open_text_judge(call) if has_reader else None
        if self._judge is not None:
            self._judge.read_so_far = read_so_far
        self._text_of, self._with_text, self._is_frame = text_of, with_text, is_frame
        self._frames: list[E] = []
        self._held: list[E] = []
        self._strips, self._space = strips, ""
        self._text = ""
        self._template: E | None = None
        self.released = ""
        self.is_timed = self._judge is not None and self._judge.is_timed

    async def feed(self, events: AsyncIterable[E], give: Callable[[E], Awaitable[None]]) -> None:
        """Read a stream to its end, and give the events that may be released, also while no further event comes.

        Args:
            events: The stream.
            give: Gives an event to the readers; called in the present task or in one beside it.

        Raises:
            HookDenied: If a hook denies the answer.
        """
        async with self.open(give) as add:
            async for event in events:
                await add(event)

    @asynccontextmanager
    async def open(self, give: Callable[[E], Awaitable[None]]) -> AsyncGenerator[Callable[[E], Awaitable[None]]]:
        """Take the events that are read inside of the block, and give those that may be released.

        If the block raises, the hooks judge what they have not judged.

        Args:
            give: Gives an event to the readers; called in the present task or in one beside it.

        Yields:
            The function that takes each event of the stream. It raises `HookDenied` if a hook denies the answer.

        Raises:
            HookDenied: If a hook denies the answer; the block is cancelled if it waits for events meanwhile.
        """

        async def release(text: str) -> None:
            for event in self._release(text):
                await give(event)

        assert self._judge is not None
        try:
            async with judge_in_time(self._judge, release) as take:

                async def add(event: E) -> None:
                    if text := self._hold_or_read(event):
                        await take(text)

                yield add
        except HookDenied:
            raise
        except Exception:
            await self.judge_broken()
            raise

    async def judge_broken(self) -> None:
        """Let the hooks judge the rest of a stream that broke, of which nothing is released.

        Raises:
            HookDenied: If a hook denies the answer.
        """
        if self._judge is not None:
            await self._judge.judge_broken()

    async def add(self, event: E) -> list[E]:
        """Take an event of the stream, and return the events that may be released now.

        Raises:
            HookDenied: If a hook denies the answer. Stop reading.
        """
        text = self._hold_or_read(event)
        return self._release(await self._judge.add(text)) if text and self._judge is not None else []

    def seconds_left(self) -> float | None:
        """Return the seconds after which `judge_waiting` must be called if no event comes; `None` for no limit."""
        return self._judge.seconds_left() if self._judge is not None else None

    async def judge_waiting(self) -> list[E]:
        """Let the hooks judge the text that they have not judged, and return the events that may be released now.

        Raises:
            HookDenied: If a hook denies the answer. Stop reading.
        """
        return self._release(await self._judge.judge_now()) if self._judge is not None else []

    def _hold_or_read(self, event: E) -> str:
        """Return the text of an event that hooks are to judge now; hold any other event."""
        if self._judge is None or self._held:
            self._held.append(event)
            return ""
        text = self._text_of(event)
        if text is None:
            waits = bool(self._text) or not self._is_frame(event)
            (self._held if waits else self._frames).append(event)
            return ""
        if text:
            self._template = event
            if self._strips:
                text = self._strip(text)
            self._text += text
        return text

    def _strip(self, text: str) -> str:
        """Return text without white space at its end, which waits for further text, or at the begin of the answer."""
        text = self._space + text if self._text else text.lstrip()
        inner = text.rstrip()
        self._space = text[len(inner) :]
        return inner

    def _release(self, text: str) -> list[E]:
        if not text or self._template is None:
            return []
        self.released += text
        frames, self._frames = self._frames, []
        return [*frames, self._with_text(self._template, text)]

    def rest(self) -> list[E]:
        """Return the events that were not released, for an answer that no hook has changed."""
        text = (self._text + self._space)[len(self.released) :]
        pending = [self._with_text(self._template, text)] if text and self._template is not None else []
        return [*self._frames, *pending, *self._held]

    def rest_of(self, content: str) -> list[E]:
        """Return the event with the text that was not released of an answer that a hook has changed, if parts were."""
        text = content[len(self.released) :] if self.released and content.startswith(self.released) else ""
        return [self._with_text(self._template, text)] if text and self._template is not None else []
