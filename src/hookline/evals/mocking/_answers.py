"""The answers that rules give: a value, a function, a sequence, a table, a template, a fake, a cassette."""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, cast

from hookline.errors import HookUsageError, ToolResultError, message_of
from hookline.evals._equality import json_equal
from hookline.evals.errors import AnswerError
from hookline.evals.matching import MISSING, value_at
from hookline.events import BeforeToolCall
from hookline.execution import is_async_handler
from hookline.runtime import as_result

if TYPE_CHECKING:
    from hookline.evals.cassettes import Cassette

__all__ = [
    "PASS",
    "Answer",
    "AnswerSequence",
    "AnswerTable",
    "AnswerTemplate",
    "ArgumentsFunction",
    "CallFunction",
    "CassetteAnswer",
    "Fake",
    "FakeMethod",
    "FixedAnswer",
    "Passthrough",
    "Then",
    "why_not_callable",
]

T = TypeVar("T")


class Fake(Generic[T]):
    """An object whose methods replace tools, with separate state per operation.

    Args:
        source: A class or function that makes the object, or an object that is copied for each operation.
        conversation: Whether all operations are turns of one conversation, which has one object.
    """

    def __init__(self, source: Callable[[], T] | T, *, conversation: bool = False) -> None:
        if isinstance(source, type) or _is_function(source):
            problem = why_not_callable(cast("Callable[..., object]", source), {})
            if problem is not None:
                raise HookUsageError(
                    f"{source!r:.100} cannot make a fake without arguments: {problem}. Give a function that can."
                )
        self._source = source
        self._conversation = conversation
        self._made: dict[str, T] = {}

    def __repr__(self) -> str:
        return f"Fake({self._source!r}, operations={len(self._made)})"

    def of(self, operation_id: str) -> T:
        """Return the object of one operation, and make it on first use."""
        key = "" if self._conversation else operation_id
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._make()
        return made

    @property
    def only(self) -> T:
        """The object of the single operation that used the fake.

        Raises:
            HookUsageError: If none has, or several have.
        """
        if len(self._made) != 1:
            raise HookUsageError(f"{len(self._made)} operations used {self!r}; choose one with `of(operation_id)`.")
        return next(iter(self._made.values()))

    def forget(self) -> None:
        """Drop the objects of all operations."""
        self._made.clear()

    def methods(self) -> list[str]:
        """List the names of the public methods, which replace tools."""
        probe = self._source if isinstance(self._source, type) else self._make()
        names = [name for name in dir(probe) if not name.startswith("_") and _is_method(probe, name)]
        if not names:
            raise HookUsageError(f"{self._source!r:.100} has no public method that could replace a tool.")
        return names

    def _make(self) -> T:
        source: Any = self._source
        made: T = source() if isinstance(source, type) or _is_function(source) else copy.deepcopy(source)
        return made


def why_not_callable(function: Callable[..., object], args: Mapping[str, Any]) -> str | None:
    """Explain why a function cannot be called with some arguments.

    Returns `None` if it can, or if its signature is not known.

    Args:
        function: The function.
        args: The arguments, by name.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some C functions have no signature
        return None
    try:
        signature.bind(**args)
    except TypeError as error:
        return str(error)
    return None


def _is_function(source: object) -> bool:
    return inspect.isroutine(source) or isinstance(source, functools.partial)


def _is_method(owner: object, name: str) -> bool:
    static = inspect.getattr_static(owner, name)
    if isinstance(static, property | functools.cached_property | type):
        return False  # reading a property could run any code, and a class is not a method
    return callable(getattr(owner, name))


Then = Literal["last", "cycle", "error"]
"""What follows the last answer of a sequence: the last one again, the first one, or an error."""

PASS: Final = object()
"""Returned instead of an answer to let the real tool run."""


class Answer:
    """Decides how a rule answers the calls that match it."""

    @property
    def may_wait(self) -> bool:
        """Whether the answer may have to be awaited."""
        return False

    def give(self, call: BeforeToolCall, place: int) -> object:
        """Return the answer, an awaitable that gives it, or `PASS` to let the real tool run.

        Args:
            call: The call.
            place: The number of earlier calls of the operation that the rule matched.

        Raises:
            AnswerError: If there is no answer.
        """
        raise AnswerError("it has no answer yet: end it with .returns(...), .raises(...), .runs(...) or another answer")


@dataclass(frozen=True)
class FixedAnswer(Answer):
    """Always answers with the same value.

    Attributes:
        value: Text, a `ToolResult`, an exception, or a JSON value.
    """

    value: object

    def __post_init__(self) -> None:
        check_answer(self.value)  # refuse an invalid answer here rather than in a run

    def give(self, call: BeforeToolCall, place: int) -> object:
        return self.value


@dataclass(frozen=True)
class CallFunction(Answer):
    """Answers with what a function of the call returns or raises.

    Attributes:
        function: `(call) -> answer`, plain or async.
    """

    function: Callable[[BeforeToolCall], object]

    @property
    def may_wait(self) -> bool:
        return _may_wait(self.function)

    def give(self, call: BeforeToolCall, place: int) -> object:
        return self.function(call)


@dataclass(frozen=True)
class ArgumentsFunction(Answer):
    """Answers with what a function of the arguments returns or raises, called as the tool itself would be.

    Attributes:
        function: Called with the arguments as keywords; plain or async.
    """

    function: Callable[..., object]

    @property
    def may_wait(self) -> bool:
        return _may_wait(self.function)

    def give(self, call: BeforeToolCall, place: int) -> object:
        return _with_arguments(self.function, call)


@dataclass(frozen=True)
class AnswerSequence(Answer):
    """Gives several answers, one after the other.

    Attributes:
        answers: The answers.
        then: What follows the last answer: the last one again, the first, or an error.
    """

    answers: tuple[object, ...]
    then: Then

    def __post_init__(self) -> None:
        if not self.answers:
            raise HookUsageError("A sequence of answers needs at least one.")
        if self.then not in ("last", "cycle", "error"):
            raise HookUsageError(f"`then` is 'last', 'cycle' or 'error'; got {self.then!r}.")
        for answer in self.answers:
            if not callable(answer) or isinstance(answer, Exception):
                check_answer(answer)

    @property
    def may_wait(self) -> bool:
        return any(_may_wait(answer) for answer in self.answers)

    def give(self, call: BeforeToolCall, place: int) -> object:
        count = len(self.answers)
        if place >= count and self.then == "error":
            raise AnswerError(f"its {count} answers are used up; this is its call {place + 1}")
        answer = self.answers[place % count if self.then == "cycle" else min(place, count - 1)]
        return answer(call) if callable(answer) and not isinstance(answer, Exception) else answer


@dataclass(frozen=True)
class AnswerTable(Answer):
    """Chooses the answer by the value of one argument.

    Attributes:
        field: The argument, dotted.
        answers: Answers by the argument's value, or by its value as text; `"*"` for all others.
    """

    field: str
    answers: Mapping[Any, object]

    def __post_init__(self) -> None:
        if not isinstance(self.field, str):
            raise HookUsageError(f"A table is looked up by the name of an argument; got {self.field!r:.100}.")
        if not isinstance(self.answers, Mapping) or not self.answers:
            raise HookUsageError(f"A table is a mapping from values of {self.field!r} to answers.")
        for answer in self.answers.values():
            check_answer(answer)

    def give(self, call: BeforeToolCall, place: int) -> object:
        value = value_at(call.args, self.field)
        for key in (value, str(value), "*"):
            if isinstance(key, Hashable) and key is not MISSING and key in self.answers:
                # `True` and `1` are the same key of a dict, and not the same argument.
                found = next((known for known in self.answers if json_equal(known, key)), MISSING)
                if found is not MISSING:
                    return self.answers[found]
        known = ", ".join(map(repr, list(self.answers)[:10]))
        said = "is missing" if value is MISSING else f"is {value!r:.100}"
        told = f"{self.field!r} {said}, and the table has {known}; add '*' for all others"
        raise AnswerError(f"its table has no answer: {told}")


@dataclass(frozen=True)
class AnswerTemplate(Answer):
    """Answers with a text that has the values of arguments in it.

    Attributes:
        text: `{field}` or `{dotted.field}` stands for an argument, `{{` and `}}` for braces.
    """

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise HookUsageError(f"A template is text; got {self.text!r:.100}.")

    def give(self, call: BeforeToolCall, place: int) -> object:

        # Not `str.format`, which would also look up attributes of the values that a model has chosen.
        def filled(found: re.Match[str]) -> str:
            if found[0] in ("{{", "}}"):
                return found[0][0]
            value = value_at(call.args, found[1])
            if value is MISSING:
                raise AnswerError(f"its template needs the argument {found[1]!r}, which the call does not have")
            try:
                return value if isinstance(value, str) else as_result("template", value).content
            except ToolResultError as error:
                raise AnswerError(f"its template cannot show the argument {found[1]!r}: {error.reason}") from error

        return re.sub(r"\{\{|\}\}|\{([^{}]+)\}", filled, self.text)


@dataclass(frozen=True)
class Passthrough(Answer):
    """Lets the real tool run, and may change what the model reads of its answer.

    Attributes:
        transform: `(call, result) -> result`, sync or async: changes what the model reads. `None` for no change.
    """

    transform: Callable[[Any, Any], object] | None = None

    def give(self, call: BeforeToolCall, place: int) -> object:
        return PASS


@dataclass(frozen=True)
class CassetteAnswer(Answer):
    """Answers from a cassette. The mocks query the cassette themselves, and notify it when an operation ends.

    Attributes:
        cassette: The recording.
    """

    cassette: Cassette


@dataclass(frozen=True)
class FakeMethod(Answer):
    """Answers with what a method of a fake returns or raises.

    Attributes:
        fake: The fake.
        method: The name of the method.
    """

    fake: Fake[Any]
    method: str

    @property
    def may_wait(self) -> bool:
        return True

    def give(self, call: BeforeToolCall, place: int) -> object:
        try:
            made = self.fake.of(call.operation_id)
        except Exception as error:
            raise AnswerError(f"its fake could not be made: {type(error).__name__}: {message_of(error)}") from error
        return _with_arguments(getattr(made, self.method), call)


def check_answer(value: object) -> None:
    """Raise an error if a value cannot be an answer.

    Raises:
        HookUsageError: If the value cannot be an answer.
    """
    if not isinstance(value, BaseException):
        try:
            as_result("answer", value)
        except ToolResultError as error:
            raise HookUsageError(
                f"A tool answers with text, a ToolResult or a JSON value; got {value!r:.100} ({error.reason})."
            ) from error
    elif not isinstance(value, Exception):
        raise HookUsageError(f"A tool raises an Exception; got {value!r}.")


def as_answers(values: Sequence[object]) -> tuple[object, ...]:
    """Return a sequence of answers as a tuple.

    Raises:
        HookUsageError: If they are one text.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise HookUsageError(f"A sequence of answers is a list; got {values!r:.100}.")
    return tuple(as_error(value) if isinstance(value, type) else value for value in values)


def as_error(error: object) -> Exception:
    """Return the exception that a tool is to raise, made from its class if necessary.

    Raises:
        HookUsageError: If it is not an exception, or is a class that needs arguments.
    """
    if isinstance(error, type) and issubclass(error, Exception):
        try:
            return error()
        except Exception as failure:
            raise HookUsageError(f"{error.__name__} needs arguments; pass an instance.") from failure
    if not isinstance(error, Exception):
        raise HookUsageError(f"A tool raises an Exception; got {error!r:.100}.")
    return error


def as_cassette(cassette: object) -> Cassette:
    """Return a cassette, or raise an error that says how to make one.

    Raises:
        HookUsageError: If it is not a cassette, but for instance its path.
    """
    if not callable(getattr(cassette, "answer", None)):
        raise HookUsageError(f"A cassette is needed here, as Cassette(path='tapes/one.yaml'); got {cassette!r:.100}.")
    return cast("Cassette", cassette)


def _with_arguments(function: Callable[..., object], call: BeforeToolCall) -> object:
    args = copy.deepcopy(call.args)  # the copy of a read-only dict is a plain one, which the function may change
    try:
        return function(**args)
    except TypeError:
        problem = why_not_callable(function, args)
        if problem is not None:
            raise AnswerError(f"its function does not take these arguments: {problem}") from None
        raise


def _may_wait(function: object) -> bool:
    # A lambda is not async itself, but may return an awaitable.
    return callable(function) and (is_async_handler(function) or getattr(function, "__name__", "") == "<lambda>")
