"""Faults that damage what a tool answered: the call succeeds, but its answer is not what it should be."""

from __future__ import annotations

import json
import random
from typing import Any, ClassVar

import msgspec

from hookline._checks import quote
from hookline.calls import ToolResult
from hookline.evals.errors import FaultDefinitionError, check_count
from hookline.evals.faults._clocks import OperationClock
from hookline.evals.matching import SeenCall

__all__ = [
    "AnswerFault",
    "DuplicatedResult",
    "EmptyResult",
    "MalformedJson",
    "Oversize",
    "TruncatedJson",
    "WrongSchema",
]

MAX_BYTES = 1 << 30


class AnswerFault(msgspec.Struct, frozen=True):
    """A fault that changes the text of an answer and nothing else. Calls that raised are left alone."""

    replaces: ClassVar[bool] = False

    def strike(self, call: SeenCall, draw: random.Random, clock: OperationClock) -> None:
        """Return `None`: the tool answers itself."""

    def change(self, result: ToolResult, draw: random.Random) -> ToolResult:
        """Replace the text of a result. A result that cannot be damaged this way is returned as the same object."""
        if result.error_type is not None:
            return result
        content = self.spoilt(result.content, draw)
        return result if content == result.content else msgspec.structs.replace(result, content=content)

    def delay_s(self, draw: random.Random) -> float:
        """Return 0.0: the call is not delayed."""
        return 0.0

    def spoilt(self, content: str, draw: random.Random) -> str:
        """Return the damaged text.

        Args:
            content: The tool's answer.
            draw: The random generator of this fault and this call.
        """
        raise NotImplementedError


class TruncatedJson(AnswerFault, frozen=True):
    """Cuts the answer off: a JSON object, list or string no longer parses; other text is merely shorter.

    Attributes:
        keep: The share of the text that is left, above 0 and below 1; `None` breaks off at a random place.
    """

    name: ClassVar[str] = "truncated_json"

    keep: float | None = None

    def __post_init__(self) -> None:
        value: object = self.keep
        fine = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1
        if value is not None and not fine:
            problem = f"is a number above 0 and below 1, or None; got {quote(value)}"
            raise FaultDefinitionError("TruncatedJson", "keep", problem)

    def spoilt(self, content: str, draw: random.Random) -> str:
        """Cut the text off."""
        text = content.strip()  # without its surrounding blanks, a document would still parse
        if len(text) < 2:
            return ""
        left = draw.randrange(1, len(text)) if self.keep is None else int(len(text) * self.keep)
        return text[: min(max(left, 1), len(text) - 1)]


class MalformedJson(AnswerFault, frozen=True):
    """Makes the answer invalid JSON. Text that was not JSON gets unreadable characters."""

    name: ClassVar[str] = "malformed_json"

    def spoilt(self, content: str, draw: random.Random) -> str:
        """Break the syntax in one of several ways, or put unreadable characters into other text."""
        if not content:
            return content
        ways = [_with_python_quotes, _with_wrong_sign, _with_a_stray_comma] if _parses(content) else [_garble]
        draw.shuffle(ways)
        for way in ways:
            text = way(content, draw)
            if text != content and not _parses(text):
                return text
        return f"}}{content}"  # no JSON begins like that


class WrongSchema(AnswerFault, frozen=True):
    """Gives a JSON answer another shape: fields have other names, or values other types.

    Answers that are not an object become one: a list under `items`, anything else under `value`.
    """

    name: ClassVar[str] = "wrong_schema"

    def spoilt(self, content: str, draw: random.Random) -> str:
        """Rename fields and change the types of values."""
        try:
            value = json.loads(content)
            return json.dumps(_reshape(value, draw), ensure_ascii=False)
        except (ValueError, RecursionError):
            return json.dumps({"value": content}, ensure_ascii=False)


class Oversize(AnswerFault, frozen=True):
    """Pads the answer to a certain size. JSON padded with blanks still parses; a longer answer stays as it is.

    Attributes:
        size_bytes: The size of the padded answer in UTF-8.
        filler: The ASCII character used for padding.
    """

    name: ClassVar[str] = "oversize"

    size_bytes: int = 1_000_000
    filler: str = " "

    def __post_init__(self) -> None:
        check_count("Oversize", "size_bytes", self.size_bytes, most=MAX_BYTES)
        filler: object = self.filler
        if not isinstance(filler, str) or len(filler) != 1 or not filler.isascii():
            raise FaultDefinitionError("Oversize", "filler", f"is one ASCII character; got {quote(filler)}")

    def spoilt(self, content: str, draw: random.Random) -> str:
        """Pad the text."""
        return content + self.filler * (self.size_bytes - len(content.encode(errors="surrogatepass")))


class EmptyResult(AnswerFault, frozen=True):
    """Replaces the answer with an empty text."""

    name: ClassVar[str] = "empty_result"

    def spoilt(self, content: str, draw: random.Random) -> str:
        """Return an empty text."""
        return ""


class DuplicatedResult(AnswerFault, frozen=True):
    """Repeats the answer, one copy directly after the other."""

    name: ClassVar[str] = "duplicated_result"

    def spoilt(self, content: str, draw: random.Random) -> str:
        """Repeat the text."""
        return content * 2


def _parses(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _with_python_quotes(text: str, draw: random.Random) -> str:
    return text.replace('"', "'")


def _with_wrong_sign(text: str, draw: random.Random) -> str:
    places = [place for place, sign in enumerate(text) if sign in ":,"]
    if not places:
        return text
    place = draw.choice(places)
    return f"{text[:place]}={text[place + 1 :]}"


def _with_a_stray_comma(text: str, draw: random.Random) -> str:
    end = text.rstrip()
    return f"{end[:-1]},{end[-1]}" if end[-1] in "}]" else f"{end},"


def _garble(text: str, draw: random.Random) -> str:
    letters = list(text)
    for place in draw.sample(range(len(letters)), k=max(1, len(letters) // 20)):
        letters[place] = "\N{REPLACEMENT CHARACTER}"
    return "".join(letters)


def _reshape(value: Any, draw: random.Random) -> dict[str, Any]:
    if isinstance(value, list):
        return {"items": value}
    if not isinstance(value, dict):
        return {"value": value}
    if not value:
        return {"value": None}
    struck = draw.choice(list(value))
    shape: dict[str, Any] = {}
    for key, item in value.items():
        if key != struck and draw.random() < 0.5:
            shape[key] = item
        elif draw.random() < 0.5:
            shape[_rename_key(key, {*value, *shape})] = item
        else:
            shape[key] = _of_another_type(item)
    return shape


def _rename_key(key: str, taken: set[str]) -> str:
    head, *rest = key.split("_")
    name = head + "".join(word.capitalize() for word in rest)
    while name in taken:
        name = f"new_{name}"
    return name


def _of_another_type(value: Any) -> Any:
    if isinstance(value, dict):
        return [value]
    if isinstance(value, list):
        return {"items": value}
    if isinstance(value, str):
        return {"value": value}
    return "" if value is None else json.dumps(value)
