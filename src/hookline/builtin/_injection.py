"""Scan texts for prompt injections, with heuristics for common attacks."""

import base64
import binascii
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Literal, TypeAlias, Unpack

import msgspec
from msgspec.structs import replace

from hookline.builtin._content import replace_passages
from hookline.builtin._tools import BundleOptions, name_of, with_defaults
from hookline.calls import AgentCall, AgentResult, Call, Deny, Message, SubAgentCall, ToolCall, ToolResult
from hookline.errors import HookDefinitionError
from hookline.hooks import Hooks, OnError

__all__ = ["Finding", "PromptInjectionScan", "find_injections"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A passage that looks like a prompt injection.

    Attributes:
        rule: Which heuristic it met: `"override"`, `"reveal"`, `"persona"`, `"secrecy"`, `"marker"`, `"blob"`,
            `"hidden"` or `"image"`.
        start: Where it starts, in characters from 0.
        end: Where it ends.
    """

    rule: str
    start: int
    end: int


# The whole gap, and the whole word. Possessive is right for single characters, but not for groups on CPython 3.11.0 to
# 3.11.4 (gh-100061, gh-106052).
_GAP = r"[\W_]++"
_WORDS = rf"(?:\w++{_GAP}){{0,3}}?"
_ORDERS = r"(?:instructions?|prompts?|rules|guidelines|directives?|directions|orders|commands)\b"

_PHRASES = {
    "override": re.compile(
        rf"\b(?:ignore|disregard|forget|override|overrule|bypass){_GAP}(?:{_WORDS}"
        rf"(?:previous|prior|above|earlier|preceding|foregoing|former|original|your|system){_GAP}{_WORDS}{_ORDERS}"
        rf"|(?:all|any){_GAP}(?:other{_GAP})?(?:instructions|prompts)\b)"
        rf"|\bnew{_GAP}(?:system{_GAP})?(?:instructions?|prompt)[^\S\n]*:"
    ),
    "reveal": re.compile(
        rf"\b(?:reveal|print|show|repeat|output|display|leak|expose|give|tell|what{_GAP}(?:is|are|was|were)){_GAP}"
        rf"(?:{_WORDS}your{_GAP}{_WORDS}(?:system|initial|hidden|secret){_GAP}(?:prompts?|instructions?)"
        rf"|{_WORDS}(?:the|your){_GAP}system{_GAP}(?:prompt|message))\b"
    ),
    "persona": re.compile(
        rf"\b(?:you{_GAP}are{_GAP}now|act{_GAP}as|pretend{_GAP}to{_GAP}be){_GAP}{_WORDS}"
        rf"(?:dan|jailbroken|unrestricted|unfiltered|uncensored|developer{_GAP}mode)\b"
        rf"|\bdo{_GAP}anything{_GAP}now\b"
    ),
    "secrecy": re.compile(
        rf"\b(?:do{_GAP}not|don{_GAP}t|dont|never|without){_GAP}(?:tell(?:ing)?|inform(?:ing)?|alert(?:ing)?|notify(?:ing)?)"
        rf"{_GAP}(?:the|your){_GAP}(?:user|human|operator)\b"
    ),
    "marker": re.compile(
        r"<\|(?:im_start|im_end|im_sep|system|user|assistant|endoftext|eot_id|begin_of_text|start_header_id|"
        r"end_header_id)\|>|\[/?inst\]|<</?sys>>|<start_of_turn>"
        r"|^[^\S\n]{0,8}#{3,6}[^\S\n]{0,4}(?:system(?:[^\S\n]prompt|[^\S\n]message)?[^\S\n]{0,4}:?"
        r"|(?:instruction|response)[^\S\n]{0,4}:)[^\S\n]{0,8}$",
        re.MULTILINE,
    ),
}
_HIDDEN = re.compile("[\u200b-\u200f\u2060-\u2064\ufe00-\ufe0f\ufeff\U000e0000-\U000e007f\U000e0100-\U000e01ef]{8,}")
# An image whose address is to be filled in by the model: a placeholder in its query.
_IMAGE = re.compile(
    r"!\[[^\[\]\n]{0,200}\]\(\s{0,4}https?://[^\s()?]{1,300}\?[^\s(){}<>\[\]$]{0,300}[{<\[$][^()\n]{0,300}\)?"
)
_BLOB = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{24,}={0,2}")


def find_injections(text: str) -> list[Finding]:
    """Find passages of a text that look like a prompt injection, rule by rule."""
    found = [Finding(rule="hidden", start=each.start(), end=each.end()) for each in _HIDDEN.finditer(text)]
    found += [Finding(rule="image", start=each.start(), end=each.end()) for each in _IMAGE.finditer(text)]
    found += _in_words(text)
    for blob in _BLOB.finditer(text):
        inner = _decode_base64(blob[0])
        if inner and any(rule.search(_fold_text(inner)[0]) for rule in _PHRASES.values()):
            found.append(Finding(rule="blob", start=blob.start(), end=blob.end()))
    return found


def _in_words(text: str) -> Iterator[Finding]:
    plain, folds = _fold_text(text)
    ends: list[int] = []
    for rule, pattern in _PHRASES.items():
        for each in pattern.finditer(plain):
            start, end = each.span()
            if folds is not None:
                ends = ends or list(accumulate(len(folds[code]) for code in map(ord, text)))
                start, end = bisect_right(ends, start), bisect_right(ends, end - 1) + 1
            yield Finding(rule=rule, start=start, end=end)


class _Folds(dict[int, str]):
    """Maps each character to how it is compared: NFKC, lower case, invisible ones as nothing, tags as letters."""

    def __missing__(self, code: int) -> str:
        if 0xE0020 <= code <= 0xE007E:
            folded = chr(code - 0xE0000).lower()
        elif unicodedata.category(chr(code)) == "Cf" or 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF:
            folded = ""
        else:
            folded = unicodedata.normalize("NFKC", chr(code)).casefold()
        self[code] = folded
        return folded


def _fold_text(text: str) -> tuple[str, _Folds | None]:
    """Return a text as it is compared, and its folds; `None` where every character stays in its place."""
    if text.isascii():
        return text.lower(), None
    folds = _Folds()
    return text.translate(folds), folds


def _decode_base64(blob: str) -> str:
    """Return the text in a base64 blob; `""` if it is none."""
    body = blob.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(body[: len(body) - len(body) % 4]).decode("latin-1")
    except (binascii.Error, ValueError):
        return ""


Action: TypeAlias = Literal["deny", "flag", "redact"]

METADATA_KEY = "prompt_injection"
SHOWN = 20
"""How many findings the metadata of a call holds."""
SHOWN_CHARACTERS = 200
"""How much of each passage it holds."""


class PromptInjectionScan(Hooks):
    """A bundle that scans the input of a run and the results of tools and sub-agents for prompt injections.

    It detects common English phrases ("ignore all previous instructions", "reveal your system prompt", "do not tell the
    user"), role markers of chat templates, runs of invisible characters, Base64 that hides such phrases, and images
    whose URL the model would fill in. Width, case, spacing and zero-width characters do not hide a phrase.

    It is not a security boundary. It does not detect paraphrases, other languages, look-alike letters of other scripts,
    text in images, other encodings, or an attack spread over several messages. It also flags text *about* injections.

    Findings are in `call.metadata["prompt_injection"]`. Priority: 20.

    Args:
        action: `"deny"` denies the input, or withholds the result from the model. `"redact"` removes the passages.
            `"flag"` only records them, also in `metadata["prompt_injection"]` of the tool's result.
        replacement: The text that `"redact"` inserts instead of a passage.
        inputs: Whether to scan the run's input: its user and tool messages.
        tool_results: Whether to scan results of tools and sub-agents.
        **options: Options of the bundle, see `BundleOptions`.

    Raises:
        HookDefinitionError: If an option is invalid.
    """

    def __init__(
        self,
        *,
        action: Action = "deny",
        replacement: str = "[removed: looked like a prompt injection]",
        inputs: bool = True,
        tool_results: bool = True,
        **options: Unpack[BundleOptions],
    ) -> None:
        super().__init__(**with_defaults("prompt_injection_scan", 20, options))
        _Scanner(action, replacement).register(self, inputs=inputs, tool_results=tool_results)


class _Scanner:
    """Scans each call and result, for `PromptInjectionScan`."""

    def __init__(self, action: Action, replacement: str) -> None:
        if action not in ("deny", "flag", "redact"):
            raise HookDefinitionError(
                "PromptInjectionScan", f"`action` must be 'deny', 'flag' or 'redact'; got {action!r}"
            )
        if not isinstance(replacement, str):
            raise HookDefinitionError("PromptInjectionScan", f"`replacement` must be text; got {replacement!r}")
        self.action, self.replacement = action, replacement

    def register(self, hooks: Hooks, *, inputs: bool, tool_results: bool) -> None:
        on_error: OnError = "open" if self.action == "flag" else "closed"
        if inputs and self.action == "redact":
            hooks.before(AgentCall, priority=1000 - hooks.priority, id=hooks.id)(self.input)
        elif inputs:
            hooks.guard(AgentCall, id=hooks.id, on_error=on_error)(self.input)
        if tool_results:
            hooks.after(ToolCall, id=hooks.id, on_error=on_error)(self.tool_result)
            hooks.after(SubAgentCall, id=hooks.id, on_error=on_error)(self.answer)

    def input(self, call: AgentCall) -> Any:
        found = [find_injections(each.content) if _is_scanned(each) else [] for each in call.input]
        if not any(found):
            return None
        pairs = list(zip(call.input, found, strict=True))
        _note(call, [each for message, own in pairs for each in _list_findings(message.content, own)])
        if self.action == "deny":
            return Deny(f"the input {_looks_like([each for own in found for each in own])}")
        if self.action == "flag":
            return None
        return replace(call, input=[self.cut_out(message, "content", own) for message, own in pairs])

    def tool_result(self, call: ToolCall, result: ToolResult) -> Any:
        answer = self.answer(call, result)
        if self.action == "flag" and METADATA_KEY in call.metadata:
            return replace(result, metadata={**result.metadata, METADATA_KEY: call.metadata[METADATA_KEY]})
        return answer

    def answer(self, call: ToolCall | SubAgentCall, result: ToolResult | AgentResult) -> Any:
        field = "content" if isinstance(result, ToolResult) else "output"
        text = getattr(result, field)
        found = find_injections(text) if isinstance(text, str) else []
        if not found:
            return None
        _note(call, _list_findings(text, found))
        if self.action == "deny":
            return Deny(f"the result of {'/'.join(name_of(call))} {_looks_like(found)}")
        return None if self.action == "flag" else self.cut_out(result, field, found)

    def cut_out(self, holder: Any, field: str, found: list[Finding]) -> Any:
        if not found:
            return holder
        spans = [(each.start, each.end) for each in found]
        return replace(holder, **{field: replace_passages(getattr(holder, field), spans, self.replacement)})


def _is_scanned(message: Message) -> bool:
    return message.role in ("user", "tool") and isinstance(message.content, str)


def _looks_like(found: list[Finding]) -> str:
    # Which rules, not which words: a model reads this.
    return f"looks like a prompt injection ({', '.join(sorted({each.rule for each in found}))})"


def _list_findings(text: str, found: list[Finding]) -> list[dict[str, Any]]:
    return [{"rule": each.rule, "text": text[each.start : each.end][:SHOWN_CHARACTERS]} for each in found[:SHOWN]]


def _note(call: Call, found: list[dict[str, Any]]) -> None:
    call.metadata[METADATA_KEY] = [*call.metadata.get(METADATA_KEY, []), *found][:SHOWN]
