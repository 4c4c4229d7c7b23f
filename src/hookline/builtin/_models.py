"""Limit what runs spend, and retry model calls after temporary failures."""

import math
from collections.abc import Awaitable, Callable
from typing import Any, Unpack

import msgspec

from hookline.budgets import BudgetPer, BudgetStore, BudgetWindow
from hookline.builtin._budgets import OnLimit, add_budget, check_terms, most_input_tokens, price_of
from hookline.builtin._tools import BundleOptions, PerOperation, check_number, with_defaults
from hookline.calls import Call, Deny, ModelCall, ModelResponse, Usage
from hookline.errors import HookDefinitionError, HookDenied
from hookline.events import BeforeStep
from hookline.hooks import Hooks, OnError
from hookline.interceptors import cut_answer
from hookline.runtime import RETRY, ModelRetry

__all__ = ["budget", "retry"]

BYTES_PER_TOKEN = 4
"""The bytes of text in a token, on average over the tokenizers of providers."""


class _Purse:
    usage = Usage()


def budget(
    *,
    cost_usd: float | None = None,
    tokens: int | None = None,
    calls: int | None = None,
    per: BudgetPer | None = None,
    window: BudgetWindow | None = None,
    zone: str = "UTC",
    store: BudgetStore | None = None,
    tool: str = "*",
    reserve_usd: float | None = None,
    reserve_tokens: int | None = None,
    warn_at: float | None = None,
    on_limit: OnLimit = "deny",
    on_error: OnError = "closed",
    lease_seconds: float = 900.0,
    **options: Unpack[BundleOptions],
) -> Hooks:
    """Limit what model calls cost, and how often tools are called: in one run, or across runs with `per`.

    Without `per`, a run ends with reason `"interrupted"` when its model calls have used up the budget. A model call
    starts while any budget is left, so the last one can exceed it. Sub-agents share the budget of the run that called
    them. Spending is counted in this process, including answers that another hook withholds. An answer that a hook
    denies while the model writes it counts with the tokens that the model has reported, or with an estimate from the
    text of the call and of the answer if that is more; its dollars are the price of these tokens, if the model has a
    known price. Priority: 1000.

    With `per`, all runs of an operation, user, tenant, agent or tool draw on one budget, in every process that shares
    the store. Each call reserves the most that it can take before it runs, and is denied if that is not left; when it
    has ended, what it took takes the place of the reservation. A call that fails, is cancelled, or whose answer does
    not say what it took, counts with all that it reserved. A call that took more than it had reserved is recorded as an
    overrun, and closes the window. Tenants never share a budget.

    A model call reserves the price of all its input and of `max_tokens` of its settings, unless `reserve_usd` or
    `reserve_tokens` say otherwise. The input counts with one token for each byte, since it can be no more.

    Args:
        cost_usd: Limit in US dollars, as the model reports them in `usage`.
        tokens: Limit of input and output tokens together.
        calls: Limit of tool and sub-agent calls; needs `per`.
        per: Whose calls are counted together. A sub-agent counts with the operation of the run that called it. Runs
            without a user share one budget. `"tool"` is for `calls` alone.
        window: `"1h"`, `"1d"` or `"month"`, by clock and calendar; `None` for all time. The clock is the store's.
        zone: The time zone of the window, such as `"Europe/Berlin"`.
        store: Keeps the counts: a `SqlStore`, or another `BudgetStore`. By default, an `InMemoryBudgets`. Budgets with
            the same `id`, `per` and `window` share their counts in a store.
        tool: Glob of the tools that `calls` counts.
        reserve_usd: What each model call reserves, in US dollars.
        reserve_tokens: What each model call reserves, in tokens.
        warn_at: The share of a limit, from 0 to 1, at which a window warns: once, with a log record and the signal
            `budget_changed`.
        on_limit: `"deny"` to deny what is not left: a denied model call ends the run, and of a denied tool call the
            model is told. `"stop"` to end the run in both cases. `"ask"` to ask a person before a tool call, who allows
            it, or the next model call, to exceed the limit; a model call cannot wait for a person, and is denied.
        on_error: `"closed"` to deny calls while the store cannot be reached, `"open"` to let them run uncounted.
        lease_seconds: Seconds after which a reservation counts as used in full if its process has died. A longer call
            is still settled with what it took.
        **options: Options of the bundle, see `BundleOptions`.

    Raises:
        HookDefinitionError: If there is no limit, an option is invalid, or what a call reserves cannot be known.
    """
    across = {
        "calls": (calls, None),
        "window": (window, None),
        "zone": (zone, "UTC"),
        "store": (store, None),
        "tool": (tool, "*"),
        "reserve_usd": (reserve_usd, None),
        "reserve_tokens": (reserve_tokens, None),
        "warn_at": (warn_at, None),
        "on_limit": (on_limit, "deny"),
        "on_error": (on_error, "closed"),
    }
    if per is not None or any(given != default for given, default in across.values()):
        terms = check_terms(
            cost_usd=cost_usd,
            tokens=tokens,
            calls=calls,
            per=per,
            window=window,
            zone=zone,
            tool=tool,
            reserve_usd=reserve_usd,
            reserve_tokens=reserve_tokens,
            warn_at=warn_at,
            on_limit=on_limit,
            on_error=on_error,
            lease_seconds=lease_seconds,
        )
        return add_budget(Hooks(**with_defaults("budget", 1000, options)), terms, store)
    if cost_usd is None and tokens is None:
        raise HookDefinitionError("budget", "pass `cost_usd`, `tokens` or both")
    _check_limits(cost_usd, tokens)
    hooks = Hooks(**with_defaults("budget", 1000, options))
    purses = PerOperation(_Purse)

    @hooks.on(BeforeStep, id=hooks.id)
    def share(event: BeforeStep) -> None:
        with purses.lock:
            purses.of(event.operation_id, like=event.parent_operation_id)

    @hooks.guard(ModelCall, id=hooks.id)
    def judge(call: ModelCall) -> Deny | None:
        with purses.lock:
            return _refuse_overdrawn(purses.of(call.operation_id).usage, cost_usd, tokens)

    @hooks.after(ModelCall, id=hooks.id, hold_text=False)
    def pay(call: ModelCall, response: ModelResponse) -> None:
        with purses.lock:
            purses.of(call.operation_id).usage += response.usage

    @hooks.around(ModelCall, id=hooks.id, timeout=math.inf, hold_text=False)
    async def pay_cut(call: ModelCall, call_next: Callable[[ModelCall], Awaitable[Any]]) -> Any:
        try:
            return await call_next(call)
        except HookDenied:
            if (cut := cut_answer(call)) is not None:
                pay(call, msgspec.structs.replace(cut, usage=_estimate_usage(call, cut, priced=cost_usd is not None)))
            raise

    purses.drop_on_complete(hooks)
    return hooks


def _check_limits(cost_usd: float | None, tokens: int | None) -> None:
    if cost_usd is not None:
        check_number("budget", "cost_usd", cost_usd)
    if tokens is not None:
        check_number("budget", "tokens", tokens, least=1, whole=True)


def _estimate_usage(call: ModelCall, cut: ModelResponse, *, priced: bool) -> Usage:
    """Return what an answer took that a hook denied while the model wrote it: at least what the model has reported.

    Args:
        call: The call.
        cut: The beginning of the answer.
        priced: Whether to estimate the cost.
    """
    reported: Usage = cut.usage
    written = len(
        "".join([cut.content, cut.reasoning, *(str(each.args) for each in cut.tool_calls)]).encode("utf-8", "replace")
    )
    estimated = Usage(
        input_tokens=reported.input_tokens or math.ceil(most_input_tokens(call) / BYTES_PER_TOKEN),
        output_tokens=max(reported.output_tokens, math.ceil(written / BYTES_PER_TOKEN)),
        cost_usd=reported.cost_usd,
    )
    cost = price_of(call.model, estimated) if priced else None
    return estimated if cost is None else msgspec.structs.replace(estimated, cost_usd=max(cost, reported.cost_usd))


def _refuse_overdrawn(spent: Usage, cost_usd: float | None, tokens: int | None) -> Deny | None:
    used = spent.input_tokens + spent.output_tokens
    if cost_usd is not None and spent.cost_usd >= cost_usd:
        return Deny(f"the budget of ${cost_usd:g} is used up: ${spent.cost_usd:.6g} spent")
    if tokens is not None and used >= tokens:
        return Deny(f"the budget of {tokens} tokens is used up: {used} spent")
    return None


def retry(
    call: type[Call],
    *,
    attempts: int = 4,
    first_wait: float = 0.25,
    max_wait: float = 8.0,
    jitter: float = 0.5,
    **options: Unpack[BundleOptions],
) -> Hooks:
    """Retry a model call after a `TransientModelError`, instead of the agent's own retry policy.

    Other hooks see one call, however many attempts it takes. In a bare chain it has no effect. Priority: 200.

    Args:
        call: `ModelCall`.
        attempts: Maximum number of attempts; 1 disables retries.
        first_wait: Seconds before the second attempt. The wait doubles with each further attempt.
        max_wait: Maximum seconds between two attempts.
        jitter: Random share of each wait, from 0 to 1.
        **options: Options of the bundle, see `BundleOptions`.

    Raises:
        HookDefinitionError: If `call` is not `ModelCall`, or an option is invalid.
    """
    if call is not ModelCall:
        raise HookDefinitionError(
            "retry", f"only model calls can be retried, because tools have side effects: pass ModelCall; got {call!r}"
        )
    policy = _check_policy(ModelRetry(attempts=attempts, first_wait=first_wait, max_wait=max_wait, jitter=jitter))
    hooks = Hooks(**with_defaults("retry", 200, options))

    @hooks.before(ModelCall, id=hooks.id)
    def advise(call: ModelCall) -> None:
        call.metadata[RETRY] = policy

    return hooks


def _check_policy(policy: ModelRetry) -> ModelRetry:
    check_number("retry", "attempts", policy.attempts, least=1, whole=True)
    for name, number in (("first_wait", policy.first_wait), ("max_wait", policy.max_wait), ("jitter", policy.jitter)):
        if number != 0:  # 0 means at once, or in step
            check_number("retry", name, number)
    if policy.jitter > 1:
        raise HookDefinitionError("retry", f"`jitter` must be from 0 to 1; got {policy.jitter!r}")
    return policy
