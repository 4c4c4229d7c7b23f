"""Redact secrets in the texts of a run, by pattern, and deny answers with banned phrases."""

import re
from collections.abc import Callable, Iterable
from typing import Any, Unpack

from msgspec.structs import replace

from hookline.builtin._tools import BundleOptions, with_defaults
from hookline.calls import (
    AgentCall,
    AgentResult,
    Deny,
    Message,
    ModelCall,
    ModelResponse,
    PartialResponse,
    SubAgentCall,
    ToolCall,
    ToolResult,
)
from hookline.errors import HookDefinitionError
from hookline.hooks import Hooks, TextParts

__all__ = ["PATTERNS", "Span", "deny_phrases", "in_every_text", "redact", "replace_passages"]

Span = tuple[int, int]
"""Where a passage starts and ends, in characters."""


def replace_passages(text: str, spans: Iterable[Span], replacement: str) -> str:
    """Replace passages of a text; those that overlap or touch are replaced as one."""
    parts: list[str] = []
    at = 0
    for start, end in _join_spans(spans):
        parts += text[at:start], replacement
        at = end
    return "".join([*parts, text[at:]]) if parts else text


def _join_spans(spans: Iterable[Span]) -> list[Span]:
    joined: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def in_every_text(value: Any, change: Callable[[str], str]) -> Any:
    """Change every text in a JSON-like value, keys excepted; the very same value is returned if nothing changes."""
    if isinstance(value, str):
        changed = change(value)
        return value if changed == value else changed
    if isinstance(value, dict):
        items = {key: in_every_text(item, change) for key, item in value.items()}
        return value if all(items[key] is value[key] for key in items) else items
    if isinstance(value, list | tuple):
        parts = [in_every_text(item, change) for item in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        return tuple(parts) if isinstance(value, tuple) else parts
    return value


# Linear in the length of any text: what repeats without end starts where a word starts, and what follows it cannot
# begin with what it repeats. Only single characters repeat possessively, which saves a tenth of the time of addresses
# (`bench_ready`): CPython 3.11.0 to 3.11.4 gets it wrong for groups (gh-100061, gh-106052).
PATTERNS = {
    "email": re.compile(r"(?<![\w.+-])[\w.+-]++@[\w-]++\.[\w-]++(?:\.[\w-]++)*"),
    "card": re.compile(r"(?<!\d)\d(?:[ -]?\d){12,18}(?!\d)"),
    "key": re.compile(
        r"sk-[\w-]{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|xox[abeoprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}"
        r"|AIza[\w-]{35}|(?<![\w-])eyJ[\w-]+\.[\w-]+\.[\w-]+"
        r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]*(?:-(?!----)[^-]*)*(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"
    ),
}
"""Built-in patterns. `"card"`: 13 to 19 digits, with or without spaces or dashes. `"key"`: keys of well-known
providers, JSON Web Tokens, and private keys in PEM format."""


def redact(
    patterns: Iterable[str | re.Pattern[str]],
    *,
    replacement: str = "[redacted]",
    tool_results: bool = True,
    output: bool = True,
    messages: bool = True,
    args: bool = False,
    parts: TextParts | None = None,
    **options: Unpack[BundleOptions],
) -> Hooks:
    """Replace text that matches a pattern before the model or the user sees it.

    Observers still see the tool's own result. Priority: 30 for results, 970 for calls.

    Args:
        patterns: Names of `PATTERNS`, regular expressions, or compiled ones. Empty matches are ignored.
        replacement: The text to insert; it is not searched again.
        tool_results: Whether to redact results of tools and sub-agents.
        output: Whether to redact the model's answers and the agent's output.
        messages: Whether to redact messages sent to the model. The run's own messages stay unchanged.
        args: Whether to redact arguments of tool calls, including nested ones. A tool that needs the secret will not
            get it.
        parts: Redacts an answer while the model writes it, and releases it in parts. Its `hold` must be at least as
            long as what the patterns match, or the answer is denied. `None` releases the text at the end of the run.
        **options: Options of the bundle, see `BundleOptions`.

    Raises:
        HookDefinitionError: If a pattern or an option is invalid.
    """
    redaction = _Redaction(patterns, replacement)
    hooks = Hooks(**with_defaults("redact", 30, options))
    inner = 1000 - hooks.priority
    if tool_results:
        hooks.after(ToolCall, id=hooks.id)(redaction.redact_tool_result)
        hooks.after(SubAgentCall, id=hooks.id)(redaction.redact_answer)
    if output:
        hooks.after(ModelCall, id=hooks.id, parts=parts)(redaction.redact_response)
        hooks.after(AgentCall, id=hooks.id, hold_text=parts is None)(redaction.redact_answer)
    if messages:
        hooks.before(ModelCall, priority=inner, id=hooks.id)(redaction.redact_messages)
    if args:
        hooks.before(ToolCall, priority=inner, id=hooks.id)(redaction.redact_args)
    return hooks


def deny_phrases(
    phrases: Iterable[str],
    *,
    ignore_case: bool = True,
    max_chars: int = 80,
    max_seconds: float | None = None,
    **options: Unpack[BundleOptions],
) -> Hooks:
    """Deny an answer of the model that contains a phrase, while the model writes it.

    Readers of a stream never get any character of the phrase, however the stream is split. What they got before stays
    with them; the run ends.

    Args:
        phrases: The phrases. They match anywhere in the text, also inside of words.
        ignore_case: Whether upper and lower case are the same.
        max_chars: New characters with which the text is searched again; see `TextParts`.
        max_seconds: Seconds after which it is searched also if there are fewer.
        **options: Options of the bundle, see `BundleOptions`.

    Raises:
        HookDefinitionError: If a phrase or an option is invalid.
    """
    if isinstance(phrases, str) or not isinstance(phrases, Iterable):
        raise HookDefinitionError("deny_phrases", f"`phrases` must be a list; got {phrases!r}")
    banned = list(phrases)
    for phrase in banned or (None,):
        if not isinstance(phrase, str) or not phrase:
            raise HookDefinitionError("deny_phrases", f"pass at least one phrase, and no empty one; got {banned!r}")
    pattern = re.compile("|".join(map(re.escape, banned)), re.IGNORECASE if ignore_case else 0)
    longest = max(map(len, banned))
    hooks = Hooks(**with_defaults("deny_phrases", 30, options))
    parts = TextParts(hold=longest - 1, max_chars=max_chars, max_seconds=max_seconds)

    @hooks.after(ModelCall, id=hooks.id, parts=parts)
    def search(call: ModelCall, response: ModelResponse) -> Deny | None:
        judged = response.judged if isinstance(response, PartialResponse) else 0
        found = pattern.search(response.content, max(0, judged - longest + 1))
        return Deny(f"the answer contains the banned phrase {found[0]!r}") if found else None

    return hooks


class _Redaction:
    """Replaces the matches of patterns in each text, for `redact`."""

    def __init__(self, patterns: Iterable[str | re.Pattern[str]], replacement: str) -> None:
        if isinstance(patterns, str | re.Pattern) or not isinstance(patterns, Iterable):
            raise HookDefinitionError("redact", f"`patterns` must be a list; got {patterns!r}")
        if not isinstance(replacement, str):
            raise HookDefinitionError("redact", f"`replacement` must be text; got {replacement!r}")
        self.patterns = [_compile_pattern(pattern) for pattern in patterns]
        if not self.patterns:
            raise HookDefinitionError("redact", f"pass at least one pattern, or a name: {', '.join(PATTERNS)}")
        self.replacement = replacement

    def redact_text(self, text: str) -> str:
        return replace_passages(
            text, (found.span() for each in self.patterns for found in each.finditer(text)), self.replacement
        )

    def redact_fields(self, struct: Any, *names: str) -> Any:
        changed = {name: in_every_text(getattr(struct, name), self.redact_text) for name in names}
        same = all(changed[name] is getattr(struct, name) for name in names)
        return None if same else replace(struct, **changed)

    def redact_tool_result(self, call: ToolCall, result: ToolResult) -> ToolResult | None:
        return self.redact_fields(result, "content") if isinstance(result.content, str) else None  # type: ignore[no-any-return]

    def redact_answer(self, call: AgentCall | SubAgentCall, result: AgentResult) -> AgentResult | None:
        return self.redact_fields(result, "output")  # type: ignore[no-any-return]

    def redact_response(self, call: ModelCall, response: ModelResponse) -> ModelResponse | None:
        return self.redact_fields(response, "content", "reasoning")  # type: ignore[no-any-return]

    def redact_args(self, call: ToolCall) -> ToolCall | None:
        return self.redact_fields(call, "args")  # type: ignore[no-any-return]

    def redact_messages(self, call: ModelCall) -> ModelCall | None:
        sent = [self.redact_message(message) for message in call.messages]
        same = all(new is old for new, old in zip(sent, call.messages, strict=True))
        return None if same else replace(call, messages=sent)

    def redact_message(self, message: Message) -> Message:
        asked = [self.redact_fields(calling, "args") or calling for calling in message.tool_calls]
        changed: Message = self.redact_fields(message, "content") or message
        same = all(new is old for new, old in zip(asked, message.tool_calls, strict=True))
        return changed if same else replace(changed, tool_calls=asked)


def _compile_pattern(pattern: object) -> re.Pattern[str]:
    if isinstance(pattern, str) and pattern:
        try:
            return PATTERNS[pattern] if pattern in PATTERNS else re.compile(pattern)
        except re.error as error:
            raise HookDefinitionError(
                "redact", f"the pattern {pattern!r} is not a valid regular expression: {error}"
            ) from None
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return pattern
    raise HookDefinitionError(
        "redact", f"a pattern must be a regular expression for text, or one of {', '.join(PATTERNS)}; got {pattern!r}"
    )
