"""The handlers that hookline brings along for definitions: factories, mostly over `hookline.ready`.

Patterns are named ones or plain texts. A regular expression from a request could keep the process busy for ever.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any, Literal, Unpack

import msgspec

from hookline import ready
from hookline.calls import AgentCall, Call, Deny, MemoryCall, ModelCall, RequestCall, SubAgentCall, ToolCall
from hookline.errors import HookDefinitionError
from hookline.hooks import Hooks
from hookline.ready import PATTERNS, BundleOptions

__all__ = [
    "allow_tools",
    "budget",
    "deny",
    "deny_text",
    "deny_tools",
    "limit_calls",
    "log",
    "redact",
    "require_approval",
    "scan_injections",
]

logger = logging.getLogger("hookline")

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def log(
    *,
    id: str,  # noqa: A002
    point: str,
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO",
    message: str = "",
) -> Callable[..., None]:
    """Write a line to the log of the process. It says which run it is about, and never what is in it."""
    if point.endswith(".around"):
        raise HookDefinitionError(id, "it looks on and surrounds nothing; use the `before` or the `after` of the call")
    if level not in LEVELS:
        raise HookDefinitionError(id, f"`level` is one of {', '.join(LEVELS)}; got {level!r}")
    _check_text(id, "message", message)
    number = logging.getLevelName(level)

    def note(subject: Any, result: object = None) -> None:
        logger.log(number, "%s at %s of operation %s%s", id, point, subject.operation_id, message and f": {message}")

    return note


def deny(*, point: str, reason: str = "Such calls are switched off.", stop: bool = False) -> Callable[[Call], Deny]:
    """Refuse every call, or with a `tool` those of some tools: an emergency switch."""
    _check_point("deny", point)
    _check_text("deny", "reason", reason)
    if not isinstance(stop, bool):
        raise HookDefinitionError("deny", f"`stop` is true or false; got {stop!r}")
    answer = Deny(reason, stop=stop)

    def refuse(call: Call) -> Deny:
        return answer

    return refuse


def deny_text(
    *, point: str, texts: list[str] | None = None, patterns: list[str] | None = None, reason: str = ""
) -> Callable[[Call], Deny | None]:
    """Refuse calls in which a text or a named pattern occurs: arguments, messages, instructions, what is remembered."""
    _check_point("deny-text", point)
    words = [each.casefold() for each in _texts("deny-text", "texts", texts)]
    names = _texts("deny-text", "patterns", patterns)
    _check_names("deny-text", names)
    _check_text("deny-text", "reason", reason)
    if not words and not names:
        raise HookDefinitionError("deny-text", "give `texts`, or `patterns` by name")

    def judge(call: Call) -> Deny | None:
        for text in _said(call):
            found = next((name for name in names if PATTERNS[name].search(text)), None)
            folded = text.casefold()
            if found is not None or any(word in folded for word in words):
                return Deny(reason or f"it contains {found or 'a text'} that is not allowed")
        return None

    return judge


def allow_tools(*, tools: list[str], hide: bool = True, **options: Unpack[BundleOptions]) -> Hooks:
    """Let the model call these tools and sub-agents, and no others."""
    return ready.allow_tools(*_texts("allow-tools", "tools", tools), hide=hide, **options)


def deny_tools(*, tools: list[str], hide: bool = True, **options: Unpack[BundleOptions]) -> Hooks:
    """Refuse calls of these tools and sub-agents, and do not even offer them to the model."""
    return ready.deny_tools(*_texts("deny-tools", "tools", tools), hide=hide, **options)


def require_approval(*, tools: list[str], prompt: str | None = None, **options: Unpack[BundleOptions]) -> Hooks:
    """Ask a person before these tools are called."""
    return ready.require_approval(*_texts("require-approval", "tools", tools), prompt=prompt, **options)


def limit_calls(
    *,
    n: int,
    tool: str = "*",
    per: Literal["operation", "tool", "tenant"] | float = "operation",
    **options: Unpack[BundleOptions],
) -> Hooks:
    """Refuse calls of tools beyond the first `n` per operation, tool or tenant, or in a span of so many seconds."""
    return ready.limit_calls(n, tool=tool, per=per, **options)


def budget(*, cost_usd: float | None = None, tokens: int | None = None, **options: Unpack[BundleOptions]) -> Hooks:
    """End a run when its model calls have used up a budget. Priority 1000 counts every answer."""
    return ready.budget(cost_usd=cost_usd, tokens=tokens, **options)


def redact(
    *,
    patterns: list[str],
    replacement: str = "[redacted]",
    tool_results: bool = True,
    output: bool = True,
    messages: bool = True,
    args: bool = False,
    **options: Unpack[BundleOptions],
) -> Hooks:
    """Replace what matches a named pattern (email, card, key) before the model or the reader sees it."""
    names = _texts("redact", "patterns", patterns)
    _check_names("redact", names)
    return ready.redact(
        names,
        replacement=replacement,
        tool_results=tool_results,
        output=output,
        messages=messages,
        args=args,
        **options,
    )


def scan_injections(
    *,
    action: Literal["deny", "flag", "redact"] = "deny",
    inputs: bool = True,
    tool_results: bool = True,
    **options: Unpack[BundleOptions],
) -> Hooks:
    """Look for the usual prompt injections in the input and in what tools answer. No security boundary."""
    return ready.PromptInjectionScan(action=action, inputs=inputs, tool_results=tool_results, **options)


def _check_point(where: str, point: str) -> None:
    if not point.endswith((".before", ".guard")):
        raise HookDefinitionError(where, f"it judges calls before they happen: a `before` or a `guard`, not {point}")


def _texts(where: str, name: str, given: object) -> list[str]:
    if given is None:
        return []
    if not isinstance(given, list) or not all(isinstance(each, str) and each for each in given):
        raise HookDefinitionError(where, f"`{name}` is a list of texts; got {given!r:.200}")
    return list(given)


def _check_text(where: str, name: str, given: object) -> None:
    if not isinstance(given, str):
        raise HookDefinitionError(where, f"`{name}` is text; got {given!r:.200}")


def _check_names(where: str, names: list[str]) -> None:
    unknown = sorted(set(names) - set(PATTERNS))
    if unknown:
        raise HookDefinitionError(where, f"`patterns` are of {', '.join(PATTERNS)}; got {unknown[0]!r:.100}")


def _said(call: Call) -> Iterator[str]:
    """Every text that a call carries."""
    match call:
        case ToolCall():
            yield from _leaves(call.args)
        case AgentCall():
            yield call.instructions
            yield from (message.content for message in call.input)
        case ModelCall():
            yield from (message.content for message in call.messages)
        case SubAgentCall():
            yield call.instruction
        case RequestCall():
            yield call.path
            yield from call.headers.values()
        case MemoryCall():
            yield from _leaves(msgspec.to_builtins(call.value, enc_hook=str))


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from _leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
