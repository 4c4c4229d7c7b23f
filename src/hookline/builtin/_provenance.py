"""Allow tools with side effects only arguments that come from the user's request.

Text that a model reads in a mail, page or file can contain instructions. The argument that decides whom a call reaches
(an account, an address, a file) then comes from that text, and not from the user.
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

    Text comes from the request if it occurs there as a whole, ignoring case and spacing; a number if the same number
    occurs there. Values in lists and objects are checked one by one; keys are not. `None`, booleans, the empty text and
    values that the tool's schema names (`enum`, `const`, `default`) are always allowed. Values that the model derived,
    or read elsewhere for the user, are denied.

    The request is the user messages of the run's input. In a sub-agent, it is the request of the calling run. Earlier
    tasks of a session and input of `Continue` do not count. Where the request is unknown, as in a bare chain, no value
    comes from it. Priority: 40.

    Args:
        *side_effects: The tools with side effects: `"send_money"`, `"mail/*"`. Other tools are not checked.
        on_violation: `"deny"` denies the call and tells the model which arguments are wrong. `"ask"` pauses the run for
            approval.
        free: Globs of arguments that may hold any value, such as text that the model writes (`"body"`) or times that it
            derives (`"*_time"`).
        **options: Options of the bundle, see `BundleOptions`.

    Raises:
        HookDefinitionError: If no tool is named, or an option is invalid.
    """
    if on_violation not in ("deny", "ask"):
        raise HookDefinitionError("require_provenance", f"`on_violation` must be 'deny' or 'ask'; got {on_violation!r}")
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
            return Ask(f"Allow {tool} with values that do not come from the user's request: {shown}?")
        return Deny(f"{tool} has side effects, and these arguments do not come from the user's request: {shown}")

    hooks.guard(AgentCall, id=hooks.id)(requests.begin)
    hooks.on(BeforeStep, id=hooks.id)(requests.follow)
    requests.kept.drop_on_complete(hooks)
    return hooks


def _compile_names(names: Iterable[str]) -> re.Pattern[str] | None:
    globs = [names] if isinstance(names, str) else list(names)
    for glob in globs:
        if not isinstance(glob, str) or not glob:
            raise HookDefinitionError("require_provenance", f"`free` must hold globs of argument names; got {glob!r}")
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
