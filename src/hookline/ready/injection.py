"""A scan for prompt injections: heuristics that raise the price of the usual attacks, and no more."""

from typing import Any, Literal, TypeAlias, Unpack

from msgspec.structs import replace

from hookline.calls import AgentCall, AgentResult, Call, Deny, Message, SubAgentCall, ToolCall, ToolResult
from hookline.errors import HookDefinitionError
from hookline.hooks import Hooks, OnError
from hookline.ready._globs import name_of
from hookline.ready._injections import Finding, find_injections
from hookline.ready._options import BundleOptions, with_defaults
from hookline.ready._passages import replaced

__all__ = ["PromptInjectionScan"]

Action: TypeAlias = Literal["deny", "flag", "redact"]

METADATA_KEY = "prompt_injection"
SHOWN = 20
"""How many findings the metadata of a call holds."""
SHOWN_CHARACTERS = 200
"""How much of each passage it holds."""


class PromptInjectionScan(Hooks):
    """Look for prompt injections in what goes into a run and in what its tools and sub-agents answer.

    It knows the usual English phrases ("ignore all previous instructions", "reveal your system prompt", "do not tell
    the user"), role markers of chat templates, runs of invisible characters, Base64 that hides such phrases, and images
    whose address the model is to fill in; width, case, spacing and zero-width characters do not hide a phrase.

    It is no security boundary. It does not see paraphrases, other languages, look-alike letters of other scripts, text
    in images, other encodings, or an attack spread over several messages; and text *about* injections looks like one.

    What it found is in `call.metadata["prompt_injection"]`. Security: priority 20.

    Args:
        action: `"deny"` refuses the input, or withholds the answer from the model. `"redact"` cuts the passages out.
            `"flag"` only says so, in `metadata["prompt_injection"]` of the tool's result too.
        replacement: What `"redact"` puts in the place of a passage.
        inputs: Whether the run's input is looked at: its user and tool messages.
        tool_results: Whether answers of tools and sub-agents are.
        **options: Of the bundle, see `BundleOptions`.

    Raises:
        HookDefinitionError: If an option cannot work.
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
    """What `PromptInjectionScan` does with each call."""

    def __init__(self, action: Action, replacement: str) -> None:
        if action not in ("deny", "flag", "redact"):
            raise HookDefinitionError("PromptInjectionScan", f"`action` is 'deny', 'flag' or 'redact'; got {action!r}")
        if not isinstance(replacement, str):
            raise HookDefinitionError("PromptInjectionScan", f"`replacement` is text; got {replacement!r}")
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
        _note(call, [each for message, own in pairs for each in _shown(message.content, own)])
        if self.action == "deny":
            return Deny(f"the input {_looks_like([each for own in found for each in own])}")
        if self.action == "flag":
            return None
        return replace(call, input=[self.cleaned(message, "content", own) for message, own in pairs])

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
        _note(call, _shown(text, found))
        if self.action == "deny":
            return Deny(f"the answer of {'/'.join(name_of(call))} {_looks_like(found)}")
        return None if self.action == "flag" else self.cleaned(result, field, found)

    def cleaned(self, holder: Any, field: str, found: list[Finding]) -> Any:
        if not found:
            return holder
        spans = [(each.start, each.end) for each in found]
        return replace(holder, **{field: replaced(getattr(holder, field), spans, self.replacement)})


def _is_scanned(message: Message) -> bool:
    return message.role in ("user", "tool") and isinstance(message.content, str)


def _looks_like(found: list[Finding]) -> str:
    # Which rules, not which words: a model reads this.
    return f"looks like a prompt injection ({', '.join(sorted({each.rule for each in found}))})"


def _shown(text: str, found: list[Finding]) -> list[dict[str, Any]]:
    return [{"rule": each.rule, "text": text[each.start : each.end][:SHOWN_CHARACTERS]} for each in found[:SHOWN]]


def _note(call: Call, found: list[dict[str, Any]]) -> None:
    call.metadata[METADATA_KEY] = [*call.metadata.get(METADATA_KEY, []), *found][:SHOWN]
