"""Serve hooks to runs in other processes: answer the questions about calls, and hear the stored events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from hookline._checks import quote
from hookline.bus._messages import Answerer, Hearer
from hookline.bus._remote_observers import FailedEvent, RemoteObservers
from hookline.bus._signing import Secret, check_secret, sign_answers
from hookline.calls import (
    CALLS,
    AgentResult,
    Call,
    CompactResult,
    MemoryResult,
    ModelResponse,
    RequestResult,
    StepResult,
    ToolResult,
)
from hookline.errors import HookUsageError
from hookline.hooks import AnyHook, Hook, Hooks, Interceptor, hook_batch
from hookline.interceptors import Chain, Outcome

__all__ = ["FORMAT", "HookQuestion", "RemoteDecision", "ServedHooks", "encode_call"]

FORMAT = 1
"""The form of questions and decisions. Processes that write another one do not understand each other."""

NAMES = {call.__name__: call for call in CALLS}
NOT_RUN: dict[type[msgspec.Struct], msgspec.Struct] = {
    result.__class__: result
    for result in (
        AgentResult(output=""),
        StepResult(should_continue=False),
        ModelResponse(),
        ToolResult(content=""),
        CompactResult(summary=""),
        RequestResult(status=200),
        MemoryResult(),
    )
}
"""What a call gives in the process that only judges it."""


class HookQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The question about a call, as JSON.

    Attributes:
        format: `FORMAT`.
        call: The name of the class of the call.
        fields: The call, without its `metadata`.
    """

    format: int
    call: str
    fields: msgspec.Raw


class RemoteDecision(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The decision about a call, as JSON.

    Attributes:
        format: `FORMAT`.
        decision: `"pass"`: the hooks have no objection. `"change"`: they changed the call. `"answer"`, `"deny"` and
            `"ask"` as the decisions of hooks.
        revision: The revision of the hooks that judged.
        reason: The reason of a denial, or the question to a person.
        stop: With `"deny"`: whether the run ends too.
        fields: With `"change"`: the changed call.
        result: With `"answer"`: the result of the call.
        context: A text for the model; `""` for none.
    """

    format: int
    decision: Literal["pass", "change", "answer", "deny", "ask"]
    revision: str = ""
    reason: str = ""
    stop: bool = False
    fields: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    context: str = ""


class ServedHooks:
    """Hooks that a process serves: what it answers about calls, and how it hears commits.

    Args:
        hooks: `before` and `guard` hooks, and observers.
        name: The name; by default the id of the bundle.
        revision: The version of the hooks, which each decision carries.
        secret: Signs the answers, and must have signed the questions.
        tries: How often an observer is called with an event at most.
        store_dead_letter: Stores an event that an observer could not handle; if it raises, it is called again.

    Attributes:
        name: The name.
        answer: Answers a question about a call; `None` if the hooks decide about none.
        hear: Handles a commit; `None` if the hooks observe nothing.

    Raises:
        HookDefinitionError: If a hook is invalid.
        HookUsageError: If a hook cannot be served, or an argument is invalid.
    """

    def __init__(
        self,
        hooks: Hooks | Iterable[AnyHook],
        *,
        name: str | None,
        revision: str,
        secret: Secret | None,
        tries: int,
        store_dead_letter: Callable[[FailedEvent], Awaitable[object]],
    ) -> None:
        batch = hook_batch([hooks] if isinstance(hooks, Hooks) else hooks)
        for entry in batch:
            check_served(entry)
        if name is None:
            if len(batch) != 1 or not isinstance(batch[0], Hooks):
                raise HookUsageError("`name` is missing; only a single bundle has a name of its own, its id.")
            name = batch[0].id
        if not isinstance(revision, str):
            raise HookUsageError(f"`revision` must be text; got {quote(revision)}.")
        if isinstance(tries, bool) or not isinstance(tries, int) or tries < 1:
            raise HookUsageError(f"`tries` must be a whole number above 0; got {quote(tries)}.")
        signing = check_secret(secret)
        observers = RemoteObservers(name, batch, tries=tries, give_up=store_dead_letter)
        self._chain, self._revision = Chain(batch), revision
        if not self._chain.calls and observers.is_empty:
            raise HookUsageError(f"There is nothing to serve as {name!r}: the hooks hold no hook that can be served.")
        self.name = name
        self.answer: Answerer | None = sign_answers(self._decide, name, signing) if self._chain.calls else None
        self.hear: Hearer | None = None if observers.is_empty else observers.hear

    async def _decide(self, question: bytes) -> bytes:
        asked = msgspec.json.decode(question, type=HookQuestion)
        if asked.format != FORMAT or asked.call not in NAMES:
            raise HookUsageError(
                f"This process reads questions of format {FORMAT} about {', '.join(NAMES)}; got format {asked.format} "
                f"about {asked.call!r:.100}. Run the same version of hookline in both processes."
            )
        call: Call = msgspec.json.decode(asked.fields, type=NAMES[asked.call])
        passed: list[Call] = []

        async def note(final: Call) -> Any:
            passed.append(final)
            return NOT_RUN[CALLS[type(call)]]

        outcome = await self._chain.run(call, note)
        return msgspec.json.encode(_to_decision(call, passed, outcome, self._revision))


def check_served(entry: AnyHook) -> None:
    """Refuse a hook that cannot be served to other processes.

    Raises:
        HookUsageError: With the reason.
    """
    if isinstance(entry, Interceptor):
        judges: Sequence[Interceptor] = (entry,)
    elif isinstance(entry, Hooks) and not entry.phase_hooks:
        judges = entry.interceptors
    elif isinstance(entry, Hook) and entry.webhook is None:
        judges = ()
    else:
        raise HookUsageError(
            f"{quote(entry)} cannot be served over a bus: only observers, `before` and `guard` hooks are. Give phase "
            "hooks and webhooks to the run."
        )
    for hook in judges:
        if hook.kind not in ("before", "guard"):
            raise HookUsageError(
                f"The hook {hook.id!r} cannot be served over a bus: it is an `{hook.kind}`, and only observers, "
                "`before` and `guard` hooks are. Give it to the run."
            )


def encode_call(call: Call) -> msgspec.Raw:
    """Return a call as JSON, without its metadata."""
    # The metadata may hold anything, and what hooks of this process share is theirs.
    return msgspec.Raw(msgspec.json.encode(msgspec.structs.replace(call, metadata={}), enc_hook=str))


def _to_decision(call: Call, passed: list[Call], outcome: Outcome, revision: str) -> RemoteDecision:
    context = "\n\n".join(each.text for each in outcome.context if each.text)
    told: dict[str, Any] = {"format": FORMAT, "revision": revision, "context": context}
    if outcome.asked is not None:
        return RemoteDecision(decision="ask", reason=outcome.asked.prompt, **told)
    if outcome.denied is not None:
        return RemoteDecision(decision="deny", reason=outcome.denied.reason, stop=outcome.stop, **told)
    if not passed:
        result = msgspec.Raw(msgspec.json.encode(outcome.result, enc_hook=str))
        return RemoteDecision(decision="answer", result=result, **told)
    if passed[0] == call:
        return RemoteDecision(decision="pass", **told)
    return RemoteDecision(decision="change", fields=encode_call(passed[0]), **told)
