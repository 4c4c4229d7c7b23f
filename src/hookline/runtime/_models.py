"""Models: what answers in a run, the policy for asking again, and one that plays a script."""

from __future__ import annotations

import copy
import inspect
import math
import random
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Protocol

import anyio
import msgspec

from hookline._deadlines import own_cancellation
from hookline.calls import ModelCall, ModelResponse, ToolCalling, Usage
from hookline.errors import HookUsageError, ModelAnswerError, ModelError, TransientModelError
from hookline.runtime._streaming import RunText

__all__ = ["RETRY", "Model", "ModelRetry", "ScriptedModel", "StreamingModel", "own_copy", "respond"]


RETRY = "hookline.retry"
"""The key of `ModelCall.metadata` under which a hook puts a `ModelRetry` that takes the place of the agent's."""


class Model(Protocol):
    """Anything that answers model calls.

    Attributes:
        name: The model's name, as it appears in `ModelCall.model`.
        provider: Who runs it.
    """

    @property
    def name(self) -> str: ...

    @property
    def provider(self) -> str: ...

    async def respond(self, call: ModelCall) -> ModelResponse:
        """Answer a call.

        Raises:
            TransientModelError: If the same call may succeed in a moment; it is tried again.
        """
        ...


class StreamingModel(Model, Protocol):
    """A model that can also give its text while it writes it. It is asked to where somebody takes the text."""

    def stream(self, call: ModelCall) -> AsyncIterator[str | ModelResponse]:
        """Answer a call piece by piece: an async generator.

        Yields:
            Text as it comes, and as the last item the whole answer, as `respond` would give it.

        Raises:
            TransientModelError: If the same call may succeed in a moment; it is tried again if none of its text has
                been given away yet.
        """
        ...


class ModelRetry(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how soon a model is asked again after a `TransientModelError`.

    Attributes:
        attempts: How often in all; 1 never asks again.
        first_wait: Seconds before the second attempt; doubled for each further one.
        max_wait: Seconds between two attempts at most.
        jitter: Share of each wait that is random, from 0 to 1, so that many runs do not ask in step.
    """

    attempts: int = 4
    first_wait: float = 0.25
    max_wait: float = 8.0
    jitter: float = 0.5

    def wait(self, attempt: int, error: TransientModelError) -> float:
        """Seconds to wait after the attempt of that number, from 1; what the provider asked for wins."""
        if error.retry_after is not None:
            return max(0.0, error.retry_after)
        longest = min(self.max_wait, self.first_wait * 2 ** (attempt - 1))
        return float(longest * (1 - self.jitter * random.random()))


class ScriptedModel:
    """A model that plays a script: the embedded default of demos and tests.

    Args:
        turns: The answers in order, or a function that makes one of each call. A turn that is an exception is raised.
        name: The model's name.
    """

    provider = "hookline"

    def __init__(
        self,
        turns: Iterable[ModelResponse | Exception] | Callable[[ModelCall], ModelResponse],
        *,
        name: str = "scripted",
    ) -> None:
        if not callable(turns) and not isinstance(turns, Iterable):
            raise HookUsageError(f"ScriptedModel plays a list of ModelResponses, or is a function; got {turns!r}.")
        self.name = name
        self._answer = turns if callable(turns) else None
        self._turns = [] if callable(turns) else list(turns)
        self._played = 0

    async def respond(self, call: ModelCall) -> ModelResponse:
        """Play the next turn.

        Raises:
            ModelError: When the script is over.
        """
        if self._answer is not None:
            answer = self._answer(call)
            return await answer if inspect.isawaitable(answer) else answer
        if self._played == len(self._turns):
            raise ModelError(f"The script of {self.name!r} is over after {self._played} turns; give it one turn more.")
        turn = self._turns[self._played]
        self._played += 1
        if isinstance(turn, Exception):
            raise turn
        return turn

    async def stream(self, call: ModelCall) -> AsyncIterator[str | ModelResponse]:
        """Play the next turn word by word.

        Yields:
            The words with the space behind them, then the turn.

        Raises:
            ModelError: When the script is over.
        """
        answer = await self.respond(call)
        for piece in re.findall(r"\s*\S+\s*|\s+", answer.content if isinstance(answer, ModelResponse) else ""):
            yield piece
        yield answer


async def respond(
    model: Model, make: Callable[[], ModelCall], retry: ModelRetry, text: RunText | None = None
) -> ModelResponse:
    """Ask a model until it answers or fails for good.

    Args:
        model: Who is asked.
        make: Makes the call anew for each attempt: a model may edit its lists.
        retry: How often.
        text: Who takes the text while it is written. What was given away cannot be taken back: such an attempt is the
            last one.

    Raises:
        ModelAnswerError: If it answers with something else than a `ModelResponse`.
        TransientModelError: If it still fails after the last attempt.
    """
    attempt = 1
    while True:
        try:
            answer: object = model.respond(make()) if text is None else text.read(model, make())
            if inspect.isawaitable(answer):
                answer = await answer
            return _checked(model, answer)
        except TransientModelError as error:
            if attempt >= retry.attempts or (text is not None and text.given):
                raise
            await anyio.sleep(retry.wait(attempt, error))
            attempt += 1
        except anyio.get_cancelled_exc_class() as error:
            if own_cancellation():
                raise ModelError(
                    f"Model {model.name!r} ended as cancelled although nobody had cancelled it."
                ) from error
            raise


def own_copy(call: ModelCall) -> ModelCall:
    """A call whose lists the model may edit: nobody else sees them."""
    own = copy.copy(call)
    msgspec.structs.force_setattr(own, "messages", list(call.messages))
    msgspec.structs.force_setattr(own, "tools", list(call.tools))
    return own


def _is_finite(cost: object) -> bool:
    return isinstance(cost, int | float) and math.isfinite(cost)


def _checked(model: Model, answer: object) -> ModelResponse:
    if not isinstance(answer, ModelResponse):
        raise ModelAnswerError(model.name, f"it answered {answer!r:.200}")
    if not isinstance(answer.content, str):
        raise ModelAnswerError(model.name, f"its `content` is {answer.content!r:.200}")
    if not isinstance(answer.usage, Usage):
        raise ModelAnswerError(model.name, f"its `usage` is {answer.usage!r:.200}")
    if not _is_finite(answer.usage.cost_usd):
        raise ModelAnswerError(model.name, f"its `usage` says that it cost {answer.usage.cost_usd!r:.200}")
    if not isinstance(answer.tool_calls, Sequence):
        raise ModelAnswerError(model.name, f"its `tool_calls` is {answer.tool_calls!r:.200}")
    for calling in answer.tool_calls:
        if not isinstance(calling, ToolCalling) or not isinstance(calling.api_name, str):
            raise ModelAnswerError(model.name, f"one of its `tool_calls` is {calling!r:.200}")
    return answer
