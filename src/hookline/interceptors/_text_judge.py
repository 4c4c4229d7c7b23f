"""`TextJudge`: judge the text of a model's answer in parts while it is written, and release what hooks let pass."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import anyio
import msgspec

from hookline._deadlines import runs_on_asyncio
from hookline.calls import Call, ModelResponse, PartialResponse
from hookline.errors import HookDenied
from hookline.execution import announce_execution
from hookline.interceptors._clock import Clock, ScopedClock, drive_through
from hookline.interceptors._failures import fail, return_error
from hookline.interceptors._traversal import CompiledInterceptor, Traversal, executions_of
from hookline.signals import HookExecution

__all__ = ["TextJudge", "check_released", "cut_answer", "judge_in_time", "judged_calls", "open_text_judge"]

SENTENCE_END = re.compile(r"[.!?…。！？]+[\"'”’)\]]*(?=\s)\s+|\n+|[。！？]+")  # noqa: RUF001
"""The end of a sentence with the space after it."""

judged_calls: dict[int, tuple[Traversal, Sequence[CompiledInterceptor]]] = {}
"""The model calls whose answers hooks judge in parts, with those hooks in their order, by the id of the `metadata`."""


def open_text_judge(call: Call) -> TextJudge | None:
    """Return the judge of the text of a model call that is running; `None` if its hooks judge only whole answers.

    Args:
        call: The call as its terminal got it.
    """
    found = judged_calls.get(id(call.metadata))
    if found is None:
        return None
    traversal, hooks = found
    # A new judge for each attempt: what an attempt that failed has released ends the call.
    traversal.released = {hook.index: "" for hook in hooks}
    return TextJudge(traversal, hooks)


CUT_KEY = "hookline.cut_answer"
"""Key in a call's `metadata` for what is known of an answer that hooks denied while the model wrote it."""


def cut_answer(call: Call) -> ModelResponse | None:
    """Return what is known of the answer of a model call that hooks denied while the model wrote it.

    Args:
        call: The call.

    Returns:
        The beginning of the answer as the model wrote it, with the `usage` that the model had reported until then;
        `None` if none was denied.
    """
    found: ModelResponse | None = call.metadata.get(CUT_KEY)
    return found


class TextJudge:
    """Judges the text of one model call while it is written.

    Each hook judges what the hooks inside of it have released. Readers get what the outermost hook has released.

    Args:
        traversal: The model call.
        hooks: The hooks that judge parts, from the inside to the outside.

    Attributes:
        released: The text that readers got so far.
        read_so_far: Returns the answer as far as it was received, with the usage that the model has reported; `None` if
            that is not known.
    """

    def __init__(self, traversal: Traversal, hooks: Sequence[CompiledInterceptor]) -> None:
        self._traversal = traversal
        self._stages = [_Stage(hook) for hook in hooks]
        self.released = ""
        self.read_so_far: Callable[[], ModelResponse] | None = None
        self._refusal: HookDenied | None = None

    @property
    def is_timed(self) -> bool:
        """Whether a hook has a limit of time, so that `judge_now` must be called even if no text comes."""
        return any(stage.seconds is not None for stage in self._stages)

    async def add(self, text: str) -> str:
        """Take new text of the model, and let the hooks judge if they have enough.

        Args:
            text: The text, which nobody has seen.

        Returns:
            The text to release now; it may be empty.

        Raises:
            HookDenied: If a hook denies the answer, or fails and fails closed. Stop reading; the call is denied.
        """
        return await self._pass(text, now=False)

    async def judge_now(self) -> str:
        """Let the hooks judge all text that they have not judged.

        Returns:
            The text to release now.

        Raises:
            HookDenied: As `add`.
        """
        return await self._pass("", now=True)

    async def judge_broken(self) -> None:
        """Let the hooks judge the rest of a stream that broke, of which nothing is released.

        Raises:
            HookDenied: As `add`.
        """
        self._check_denied()
        try:
            for stage in self._stages:
                await stage.judge_broken(self._traversal)
        except HookDenied as refusal:
            self._note_denial(refusal)
            raise

    def seconds_left(self) -> float | None:
        """Return the seconds after which `judge_now` must be called, from 0; `None` for no limit."""
        due = [stage.due for stage in self._stages if stage.due is not None]
        return max(0.0, min(due) - monotonic()) if due else None

    async def _pass(self, text: str, *, now: bool) -> str:
        self._check_denied()
        try:
            for stage in self._stages:
                text = await stage.take(self._traversal, text, now=now)
        except HookDenied as refusal:
            self._note_denial(refusal)
            raise
        self.released += text
        return text

    def _check_denied(self) -> None:
        """Raise the denial of the answer again: a piece may have waited while a hook denied those before."""
        if self._refusal is not None:
            raise self._refusal

    def _note_denial(self, refusal: HookDenied) -> None:
        """Note that the answer is denied, and keep what is known of it."""
        self._refusal = refusal
        known = ModelResponse(cost_known=False) if self.read_so_far is None else self.read_so_far()
        if not known.content:
            known = msgspec.structs.replace(known, content=self._stages[0].text)
        self._traversal.call.metadata[CUT_KEY] = known


@asynccontextmanager
async def judge_in_time(
    judge: TextJudge, give: Callable[[str], Awaitable[None]]
) -> AsyncGenerator[Callable[[str], Awaitable[None]]]:
    """Judge the text that is read inside of the block, also while no further text comes.

    Args:
        judge: The judge of the text.
        give: Takes the text that is released.

    Yields:
        The function that takes each piece of text of the model.

    Raises:
        HookDenied: If a hook denies the answer; the block is cancelled if it waits for text meanwhile.
    """
    if not judge.is_timed:

        async def take(piece: str) -> None:
            if text := await judge.add(piece):
                await give(text)

        yield take
        return
    lock, failure = anyio.Lock(), list[BaseException]()
    begun = anyio.Event()

    async def take_timed(piece: str) -> None:
        async with lock:
            if text := await judge.add(piece):
                await give(text)
        begun.set()

    async def watch() -> None:
        nonlocal begun
        while True:
            left = judge.seconds_left()
            if left is None:
                begun = anyio.Event()
                await begun.wait()
            elif left:
                await anyio.sleep(left)
            else:
                async with lock:
                    if judge.seconds_left() == 0 and (text := await judge.judge_now()):
                        await give(text)

    async def watch_until_denied() -> None:
        try:
            await watch()
        except Exception as error:  # kept out of the group, which would wrap it
            failure.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch_until_denied)
        try:
            yield take_timed
            async with lock:  # a hook that is judging is not cancelled
                group.cancel_scope.cancel()
        except Exception as error:
            failure.append(error)
            group.cancel_scope.cancel()
    if failure:
        raise failure[0]


class _Stage:
    """The text of an answer as one hook judges it.

    Args:
        hook: The hook.

    Attributes:
        text: The text that the hook got so far.
        seconds: Seconds after which the hook must judge new text; `None` for no limit.
        due: When the hook must judge, of `monotonic`; `None` if there is nothing to judge, or no limit.
    """

    def __init__(self, hook: CompiledInterceptor) -> None:
        assert hook.parts is not None
        self._hook, self._parts = hook, hook.parts
        self.text = ""
        self._judged = 0
        self._guided = False
        self.seconds = None if hook.parts.max_seconds == math.inf else hook.parts.max_seconds
        self.due: float | None = None

    async def take(self, traversal: Traversal, text: str, *, now: bool) -> str:
        """Take new text, and judge all of it if there is enough, or it is time.

        Returns:
            The text to release.
        """
        self.text += text
        new = len(self.text) - self._judged
        if not new or self._guided:
            return ""
        if self.due is None and self.seconds is not None:
            self.due = monotonic() + self.seconds
        if new < self._parts.max_chars and not now and (self.due is None or monotonic() < self.due):
            return ""
        self.due = None
        return await self._judge(traversal)

    async def judge_broken(self, traversal: Traversal) -> None:
        """Judge what the hook has not judged of a stream that broke."""
        if len(self.text) > self._judged and traversal.released is not None:
            await judge_part(traversal, self._hook, self._partial("truncated"), traversal.released[self._hook.index])

    def _partial(self, finish_reason: str) -> PartialResponse:
        return PartialResponse(content=self.text, finish_reason=finish_reason, judged=self._judged)

    async def _judge(self, traversal: Traversal) -> str:
        hook, released = self._hook, traversal.released
        assert released is not None
        given = await judge_part(traversal, hook, self._partial("incremental"), released[hook.index])
        self._judged = len(self.text)
        if given is None:
            self._guided = True
            return ""
        stable = given[: end_of_release(given, self._parts.hold)]
        before = released[hook.index]
        if len(stable) <= len(before):
            return ""
        released[hook.index] = stable
        return stable[len(before) :]


def end_of_release(text: str, hold: int | str) -> int:
    """Return the number of characters of a text that are released, with the rest held."""
    if hold == "sentence":
        last = 0
        for found in SENTENCE_END.finditer(text):
            last = found.end()
        return last
    assert isinstance(hold, int)
    return max(0, len(text) - hold)


async def judge_part(
    traversal: Traversal, hook: CompiledInterceptor, partial: PartialResponse, released: str
) -> str | None:
    """Let a hook judge the beginning of an answer.

    Args:
        traversal: The model call. It is denied if the hook denies the part.
        hook: The hook.
        partial: The beginning of the answer.
        released: The text that the hook has released before.

    Returns:
        The text as the hook left it, or what was released before if it may not be released; `None` if the model is to
        be asked again, so that nothing more is to be released.

    Raises:
        HookDenied: If the hook denies the part, or fails and fails closed.
    """
    compiled, outer = hook.part_chain, traversal.clock

    async def terminal(call: Any) -> Any:
        return partial

    kind = Clock if runs_on_asyncio() else ScopedClock
    clock = kind(compiled.hooks, compiled.marks.copy(), outer.budget, outer.limited, outer.limited)
    judging = Traversal(traversal.call, terminal, compiled.idle.copy(), clock, started=[], executions={})
    judging.policy, judging.watch, judging.watched = traversal.policy, traversal.watch, traversal.watched
    try:
        given = await drive_through(clock, compiled.enter(judging, traversal.call))
        text = checked_text(judging, compiled.hooks[0], given, partial, released)
    except BaseException as error:
        if error is judging.refusal:
            traversal.refusal, traversal.denied, traversal.stop = judging.refusal, judging.denied, judging.stop
            for execution in executions_of(judging):
                record_denial(traversal, hook, execution)
        raise
    if traversal.announcing:
        for execution in executions_of(judging):
            if execution.status != "ok":  # others are in the record of the whole answer
                announce_execution(execution, traversal.sender)
    return text


def record_denial(traversal: Traversal, hook: CompiledInterceptor, execution: HookExecution) -> None:
    """Record in a model call that a hook denied a part of the answer; it does not judge the whole answer any more."""
    if traversal.started is not None:
        traversal.started.append(hook)
    traversal.keep(hook, execution)


def checked_text(
    judging: Traversal, hook: CompiledInterceptor, given: ModelResponse, partial: PartialResponse, released: str
) -> str | None:
    """Return the text that a hook left of a part; see `judge_part`."""
    if judging.guides:
        if not released:
            return None
        fail(judging, hook, return_error(hook, LATE_GUIDE), "error")
        return released
    text = given.content
    if text.startswith(released):
        return text
    if given is not partial:
        fail(judging, hook, return_error(hook, CHANGED_RELEASED), "error")
    return released


LATE_GUIDE = (
    "returned Guide, but readers already have a part of the answer, so that it cannot be discarded; return Deny, or "
    "give its TextParts a larger `hold`"
)

CHANGED_RELEASED = (
    "changed text that readers already have; give its TextParts a `hold` that is at least as long as the text that it "
    "changes"
)


def check_released(traversal: Traversal, hook: CompiledInterceptor, result: Any) -> None:
    """Refuse a whole answer that does not begin with the text that readers already have.

    Args:
        traversal: The model call.
        hook: The hook that has judged the whole answer.
        result: The answer, as the hook left it.

    Raises:
        HookDenied: If it begins otherwise, or is to be discarded, also if the hook fails open.
    """
    released = traversal.released.get(hook.index, "") if traversal.released is not None else ""
    if not released:
        return
    problem = LATE_GUIDE if traversal.guides else "" if result.content.startswith(released) else CHANGED_RELEASED
    if problem:
        fail(traversal, hook, return_error(hook, problem), "error")
        raise traversal.deny(hook, f"the hook {problem}")
