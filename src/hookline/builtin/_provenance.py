"""Allow tools with side effects only arguments that come from the user's request.

A model that reads a mail, a page or a file may be told there what to do. Then the argument that decides whom it reaches
(an account, an address, a file) comes from what it read, and not from the user.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from fnmatch import translate
from typing import Any, Literal, TypeAlias, Unpack

from hookline.builtin._tools import BundleOptions, Globs, PerOperation, name_of, with_defaults
from hookline.calls import AgentCall, Ask, Deny, ToolCall
from hookline.errors import HookDefinitionError
from hookline.events import BeforeStep
from hookline.hooks import Hooks

__all__ = ["OnViolation", "require_provenance"]

OnViolation: TypeAlias = Literal["deny", "ask"]

JOINERS = frozenset("@.-/:+_\\&=?#%~")
"""Between two word characters these make one name of both: `bank.com` is a part of `my-bank.com`, not a word in it."""
NUMBER = re.compile(r"(?<![\w.])(?:(?<!\w)-)?\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")
APART = " \0 "
"""Between two messages, so that no value is found across them."""
SHOWN_CHARACTERS = 60
"""How much of a value a message shows."""
DEEPEST = 8
"""How far references inside of a tool's schema are followed."""


def require_provenance(
    *side_effects: str,
    on_violation: OnViolation = "deny",
    free: Iterable[str] = (),
    **options: Unpack[BundleOptions],
) -> Hooks:
    """Deny tool calls with arguments that do not come from the user's request, or ask a person.

    A text comes from the request if it stands there as a whole, whatever its case and spacing; a number if the same
    number does. Lists and objects are judged item by item, the names inside of an object are not. `None`, booleans, the
    empty text and the values that the tool's schema itself names (`enum`, `const`, `default`) say how, not what or
    whom: they always pass. So a value that the model worked out, or read somewhere on the user's behalf, is refused.

    The request is the user messages of the run's input. In a sub-agent it is that of the run that called it. Earlier
    tasks of a session do not count, nor does what a hook continues a run with. Where the request is not known, as in a
    bare chain, no value comes from it. Security: priority 40.

    Args:
        *side_effects: The tools that do something: `"send_money"`, `"mail/*"`. All others are left alone.
        on_violation: `"deny"` tells the model which arguments are meant. `"ask"` has a person decide: the run pauses,
            and `resume_agent` goes on with the decision.
        free: Arguments that may hold anything, by glob of their names: texts that the model is to write (`"body"`),
            times that it is to work out (`"*_time"`).
        **options: Of the bundle, see `BundleOptions`.

    Raises:
        HookDefinitionError: If no tool is named, or an option cannot work.
    """
    if on_violation not in ("deny", "ask"):
        raise HookDefinitionError("require_provenance", f"`on_violation` is 'deny' or 'ask'; got {on_violation!r}")
    guarded = Globs("require_provenance", side_effects)
    hooks, requests = Hooks(**with_defaults("require_provenance", 40, options)), _Requests(_compile_names(free))

    @hooks.guard(ToolCall, id=hooks.id)
    def judge(call: ToolCall) -> Deny | Ask | None:
        if guarded.match(*name_of(call)) is None:
            return None
        foreign = requests.find_foreign_values(call)
        if not foreign:
            return None
        tool = "/".join(name_of(call))
        shown = ", ".join(f"{name}={value!r:.{SHOWN_CHARACTERS}}" for name, value in foreign)
        if on_violation == "ask":
            return Ask(f"May {tool} be called with what does not come from the user's request: {shown}?")
        return Deny(f"{tool} has side effects, and these arguments do not come from the user's request: {shown}")

    hooks.guard(AgentCall, id=hooks.id)(requests.begin)
    hooks.on(BeforeStep, id=hooks.id)(requests.follow)
    requests.kept.drop_on_complete(hooks)
    return hooks


def _compile_names(names: Iterable[str]) -> re.Pattern[str] | None:
    globs = [names] if isinstance(names, str) else list(names)
    for glob in globs:
        if not isinstance(glob, str) or not glob:
            raise HookDefinitionError("require_provenance", f"`free` is globs of argument names; got {glob!r}")
    return re.compile("|".join(map(translate, globs))) if globs else None


class _Request:
    """The user's request, in a form that values can be looked up in."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.text = _normalize(APART.join(texts))
        self.numbers = frozenset(Decimal(found.replace(",", "")) for found in NUMBER.findall(self.text))

    def says(self, value: object) -> bool:
        """Return whether a value comes from what the user said."""
        if value is None or isinstance(value, bool):
            return True
        if isinstance(value, int | float):
            return Decimal(str(value)) in self.numbers
        return isinstance(value, str) and self._has_whole(_normalize(value))

    def _has_whole(self, wanted: str) -> bool:
        """Return whether a text stands in the request, and not as a part of a longer name."""
        start = self.text.find(wanted)
        while wanted and start >= 0:
            end = start + len(wanted)
            if not _goes_on(self.text[max(0, start - 2) : start][::-1]) and not _goes_on(self.text[end : end + 2]):
                return True
            start = self.text.find(wanted, start + 1)
        return not wanted


def _normalize(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).lower().split())


def _goes_on(beyond: str) -> bool:
    """Return whether the two characters beyond the end of a text make it a part of a longer name; nearer one first."""
    return _in_a_word(beyond[:1]) or (beyond[:1] in JOINERS and _in_a_word(beyond[1:]))


def _in_a_word(character: str) -> bool:
    # An accent that could not be composed with its letter is a character of its own.
    return character.isalnum() or character == "_" or unicodedata.category(character or " ")[0] == "M"


class _Operation:
    """The request of an operation, and the tools that its model is offered.

    Attributes:
        request: What its user asked for; `None` as long as that is not known.
        schemas: The schema of each tool, by toolset and name.
    """

    request: _Request | None = None
    schemas: Mapping[tuple[str, str], Mapping[str, Any]] = {}


class _Requests:
    """Keeps the requests of operations, and finds arguments that do not come from them."""

    def __init__(self, free: re.Pattern[str] | None) -> None:
        self.free = free
        self.kept = PerOperation(_Operation)

    def begin(self, call: AgentCall) -> None:
        """Keep the first input of a run as the request: input of a `Continue` comes from hooks."""
        with self.kept.lock:
            operation = self.kept.of(call.operation_id)
            if operation.request is None:
                operation.request = _Request([each.content for each in call.input if each.role == "user"])
            operation.schemas = {(spec.toolset, spec.name): spec.schema for spec in call.tools}

    def follow(self, event: BeforeStep) -> None:
        """Use the request of the calling run for a sub-agent, whose own input a model wrote."""
        if event.parent_operation_id is None:
            return
        with self.kept.lock:
            if event.parent_operation_id in self.kept:
                self.kept.of(event.operation_id).request = self.kept.of(event.parent_operation_id).request

    def find_foreign_values(self, call: ToolCall) -> list[tuple[str, object]]:
        """Return the values in a call's arguments that do not come from the request, each with its path."""
        with self.kept.lock:
            known = call.operation_id in self.kept
            operation = self.kept.of(call.operation_id) if known else _Operation()
            request, schema = operation.request or _Request([]), operation.schemas.get(name_of(call), {})
        found: list[tuple[str, object]] = []
        for name, value in call.args.items():
            if self.free is None or self.free.match(name) is None:
                named = list(_schema_values(schema, _at(_at(schema, "properties"), name)))
                found += [each for each in _leaves(name, value) if each[1] not in named and not request.says(each[1])]
        return found


def _leaves(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{name}.{key}", item)
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            yield from _leaves(f"{name}[{position}]", item)
    else:
        yield name, value


def _schema_values(schema: Mapping[str, Any], part: object, depth: int = DEEPEST) -> Iterator[object]:
    """Return the values that a schema itself names: defaults, constants and enumerations."""
    if not isinstance(part, Mapping) or not depth:
        return
    yield from part.get("enum", ())
    yield from (part[key] for key in ("const", "default") if key in part)
    reference = part.get("$ref")
    if isinstance(reference, str):
        yield from _schema_values(schema, _at(_at(schema, "$defs"), reference.removeprefix("#/$defs/")), depth - 1)
    for key in ("anyOf", "oneOf", "allOf"):
        for each in part.get(key, ()):
            yield from _schema_values(schema, each, depth - 1)
    yield from _schema_values(schema, part.get("items"), depth - 1)


def _at(holder: object, key: str) -> object:
    return holder.get(key) if isinstance(holder, Mapping) else None
