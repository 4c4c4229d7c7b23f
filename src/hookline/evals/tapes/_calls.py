"""The recorded calls of a tape, and how they are found again: by everything that the model is asked, without ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from hookline._readonly import writable
from hookline.calls import Message, ModelCall, ModelResponse, ToolSpec
from hookline.evals._canonical import canonical
from hookline.evals._equality import json_key
from hookline.evals.cassettes import diff_arguments, to_json_value
from hookline.redaction import Redacting

__all__ = ["ModelQuestion", "TapedCall", "answer_of", "explain_miss", "question_of"]

SHOWN = 300
"""Characters of a value that a sentence shows."""


class ModelQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question to a model, as plain JSON data without secrets and without ids.

    Attributes:
        model: The name of the model.
        settings: The settings of the call.
        tools: The tools that the model can call: `tool` (the path), `description` and `schema` of each.
        messages: The conversation: `role`, `content`, and where a message has them, `tool_calls` and `tool_call_id`.
            Ids of tool calls are numbered in their order: `call_1`.
    """

    model: str
    settings: dict[str, Any]
    tools: list[dict[str, Any]]
    messages: list[dict[str, Any]]

    @property
    def key(self) -> str:
        """A text that equal questions share, and no others."""
        return json_key([self.model, self.settings, self.tools, self.messages])


class TapedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded call of a model with its answer.

    Attributes:
        question: What the model was asked.
        answer: What it answered.
        agent: The sub-agent, judge or simulated user that asked; empty for the agent itself.
        call_index: How often the question had been asked then, this time included.
    """

    question: ModelQuestion
    answer: ModelResponse
    agent: str = ""
    call_index: int = 1

    @property
    def operation(self) -> int:
        """The number of the run: always 1, since equal questions are counted together, whoever asks."""
        return 1

    def __str__(self) -> str:
        said = self.question.messages[-1]["content"] if self.question.messages else ""
        who = f"{self.agent}: " if self.agent else ""
        return f"{who}{self.question.model or 'a model'} after {_short(said)}"


def question_of(call: ModelCall, redaction: Redacting) -> ModelQuestion:
    """Return what a call asks, without secrets and ids."""
    numbers: dict[str, str] = {}
    return ModelQuestion(
        model=call.model,
        settings=redaction.value(to_json_value(writable(call.settings))),
        tools=[_tool(spec) for spec in call.tools],
        messages=[_message(message, numbers, redaction) for message in call.messages],
    )


def _tool(spec: ToolSpec) -> dict[str, Any]:
    return {
        "tool": f"{spec.toolset}/{spec.name}",
        "description": spec.description,
        "schema": to_json_value(writable(spec.schema)),
    }


def _message(message: Message, numbers: dict[str, str], redaction: Redacting) -> dict[str, Any]:
    def number(call_id: str) -> str:
        return numbers.setdefault(call_id, f"call_{len(numbers) + 1}")

    found: dict[str, Any] = {"role": message.role, "content": redaction.text(message.content)}
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "tool": f"{call.toolset}/{call.tool_name}",
                "args": _args(call.args, redaction),
                "id": number(call.tool_call_id),
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        found["tool_call_id"] = number(message.tool_call_id)
    return found


def _args(args: Any, redaction: Redacting) -> Any:
    return redaction.text(args) if isinstance(args, str) else redaction.value(to_json_value(writable(args)))


def answer_of(response: ModelResponse, redaction: Redacting) -> ModelResponse:
    """Return a response without secrets, as a tape keeps it."""
    return msgspec.structs.replace(
        response,
        content=redaction.text(response.content),
        reasoning=redaction.text(response.reasoning),
        tool_calls=[msgspec.structs.replace(call, args=_args(call.args, redaction)) for call in response.tool_calls],
        details=redaction.value(to_json_value(writable(response.details))),
    )


def explain_miss(calls: Iterable[TapedCall], question: ModelQuestion, known: int) -> str:
    """Explain why no recording answers a question.

    Args:
        calls: The recorded calls, in the order of the file.
        question: The question.
        known: How many answers to this very question were recorded.

    Returns:
        Sentences, and a difference in lines of their own where the nearest question differs in what was said.
    """
    asked = f"model {question.model!r}" if question.model else "the model"
    if known:
        times = "once" if known == 1 else f"{known} times"
        return (
            f"the question to {asked}: it was recorded {times}, and is asked once more. The model was not asked. "
            "Allow repeats to get the last answer again, or record the missing call with mode 'new_episodes'."
        )
    held = list(calls)
    if not held:
        return f"the question to {asked}: nothing was recorded. The model was not asked."
    number, near = _find_nearest(held, question)
    differences = list(_differences(near.question, question))
    return (
        f"the question to {asked}. The model was not asked. The nearest recorded question is call {number} of "
        f"{len(held)}, and {'; '.join(differences)}"
    )


def _find_nearest(calls: Sequence[TapedCall], question: ModelQuestion) -> tuple[int, TapedCall]:
    """Return the call whose question is most like another one, with its number from 1."""

    def likeness(numbered: tuple[int, TapedCall]) -> tuple[int, bool, int, int]:
        other = numbered[1].question
        same = [other.model == question.model, other.tools == question.tools, other.settings == question.settings]
        return (
            _shared(other.messages, question.messages),
            len(other.messages) == len(question.messages),
            sum(same),
            -numbered[0],
        )

    return max(enumerate(calls, start=1), key=likeness)


def _shared(one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> int:
    """Return how many messages two conversations have in common at their beginning."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if json_key(left) != json_key(right):
            break
        count += 1
    return count


def _differences(recorded: ModelQuestion, asked: ModelQuestion) -> Iterator[str]:
    if recorded.model != asked.model:
        yield f"it was to model {recorded.model!r}"
    if json_key(recorded.settings) != json_key(asked.settings):
        yield f"its settings were {_short(recorded.settings)} and are now {_short(asked.settings)}"
    yield from _tool_differences(recorded.tools, asked.tools)
    shared = _shared(recorded.messages, asked.messages)
    before, now = len(recorded.messages), len(asked.messages)
    if shared == before == now:
        return
    if shared == before:
        yield f"it had {before} messages, which are the same, and this one has {now}"
    elif shared == now:
        yield f"it went on for {before - now} messages after the last one of this question"
    else:
        shown = diff_arguments(recorded.messages[shared], asked.messages[shared])
        yield f"message {shared + 1} of {now} ({asked.messages[shared]['role']}) differs:\n{shown}"


def _tool_differences(recorded: Sequence[dict[str, Any]], asked: Sequence[dict[str, Any]]) -> Iterator[str]:
    then, now = ({each["tool"]: each for each in tools} for tools in (recorded, asked))
    for names, said in (
        ([name for name in now if name not in then], "it did not offer"),
        ([name for name in then if name not in now], "it also offered"),
        (
            [name for name in now if name in then and json_key(now[name]) != json_key(then[name])],
            "since then have changed the schema or the description of",
        ),
    ):
        if names:
            yield f"{said} {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"
    if list(then) != list(now) and then.keys() == now.keys():
        yield "it offered the tools in another order"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else canonical(value)
    text = " ".join(text.split())
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r}..."
