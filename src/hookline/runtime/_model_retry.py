"""Ask a model until it answers: which errors are tried again, when, and what counts as an answer."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Sequence
from types import CoroutineType
from typing import Any

import anyio
import msgspec

from hookline._checks import quote
from hookline._deadlines import own_cancellation
from hookline.calls import ModelCall, ModelResponse, ToolRequest, Usage
from hookline.errors import ModelAnswerError, ModelError, TransientModelError
from hookline.runtime._model_pause import model_pause
from hookline.runtime._models import Model, RunText

__all__ = ["RETRY", "ModelRetry", "copy_lists", "respond"]


class ModelRetry(msgspec.Struct, frozen=True, kw_only=True):
    """Retries of a model call after a `TransientModelError`.

    Attributes:
        attempts: Number of attempts; 1 for no retry.
        first_wait: Seconds before the second attempt. The wait doubles for each further one.
        max_wait: Maximum wait between two attempts, in seconds.
        jitter: Random share of each wait, from 0 to 1, so that runs do not retry at the same time.
    """

    attempts: int = 4
    first_wait: float = 0.25
    max_wait: float = 8.0
    jitter: float = 0.5

    def wait(self, attempt: int, error: TransientModelError) -> float:
        """Return the seconds to wait after an attempt, counted from 1; what the provider asked for wins."""
        if error.retry_after is not None:
            return max(0.0, error.retry_after)
        longest = min(self.max_wait, self.first_wait * 2 ** (attempt - 1))
        return float(longest * (1 - self.jitter * random.random()))


RETRY = "hookline.retry"
"""The key of `ModelCall.metadata` under which a hook puts a `ModelRetry` that takes the place of the agent's."""


async def respond(
    model: Model, make: Callable[[], ModelCall], retry: ModelRetry, text: RunText | None = None
) -> ModelResponse:
    """Call a model until it responds or fails permanently.

    Args:
        model: Who is asked.
        make: Makes the call anew for each attempt: a model may edit its lists.
        retry: How often.
        text: Who takes the text while it is written. What was given away cannot be taken back: such an attempt is the
            last one.

    Raises:
        ModelAnswerError: If it returns something other than a `ModelResponse`.
        TransientModelError: If it still fails after the last attempt.
    """
    attempt = 1
    pause = model_pause.get()
    while True:
        if pause is not None:
            await pause.wait(model)
        try:
            answer: Any = model.respond(make()) if text is None else text.read(model, make())
            if answer.__class__ is CoroutineType or inspect.isawaitable(answer):
                answer = await answer
            return _check_response(model, answer)
        except TransientModelError as error:
            if pause is not None and error.retry_after is not None:
                pause.limit(model, error.retry_after)
            if attempt >= retry.attempts or (text is not None and text.given):
                raise
            await anyio.sleep(retry.wait(attempt, error))
            attempt += 1
        except anyio.get_cancelled_exc_class() as error:
            if own_cancellation():
                raise ModelError(
                    f"Model {model.name!r} raised a cancellation, although nobody had cancelled it."
                ) from error
            raise


def copy_lists(call: ModelCall) -> ModelCall:
    """Return a call with lists of its own, which the model can edit."""
    own: ModelCall = call.__copy__()  # type: ignore[attr-defined]  # `copy.copy` takes twice as long
    msgspec.structs.force_setattr(own, "messages", list(call.messages))
    msgspec.structs.force_setattr(own, "tools", list(call.tools))
    return own


NUMBERS = frozenset((int, float))


def _check_response(model: Model, answer: object) -> ModelResponse:
    if not isinstance(answer, ModelResponse):
        raise ModelAnswerError(model.name, f"it answered {quote(answer)}")
    if not isinstance(answer.content, str):
        raise ModelAnswerError(model.name, f"its `content` is {quote(answer.content)}")
    if not isinstance(answer.usage, Usage):
        raise ModelAnswerError(model.name, f"its `usage` is {quote(answer.usage)}")
    counts = msgspec.structs.astuple(answer.usage)
    are_numbers = NUMBERS.issuperset(map(type, counts)) or all(isinstance(each, int | float) for each in counts)
    if not are_numbers or not all(map(math.isfinite, counts)):
        raise ModelAnswerError(model.name, f"its `usage` is {quote(answer.usage)}, and counts are finite numbers")
    if not isinstance(answer.tool_calls, list | Sequence):
        raise ModelAnswerError(model.name, f"its `tool_calls` is {quote(answer.tool_calls)}")
    for calling in answer.tool_calls:
        if not isinstance(calling, ToolRequest) or not isinstance(calling.tool_name, str):
            raise ModelAnswerError(model.name, f"one of its `tool_calls` is {quote(calling)}")
    return answer
