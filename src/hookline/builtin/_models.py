"""Limit what a run spends on its model, and retry model calls that fail for a passing reason."""

from typing import Unpack

from hookline.builtin._tools import BundleOptions, PerOperation, check_number, with_defaults
from hookline.calls import Call, Deny, ModelCall, ModelResponse, Usage
from hookline.errors import HookDefinitionError
from hookline.events import BeforeStep
from hookline.hooks import Hooks
from hookline.runtime import RETRY, ModelRetry

__all__ = ["budget", "retry"]


class _Purse:
    usage = Usage()


def budget(*, cost_usd: float | None = None, tokens: int | None = None, **options: Unpack[BundleOptions]) -> Hooks:
    """End a run with reason `"interrupted"` when its model calls have used up a budget.

    A call starts as long as anything is left, so the last one may go beyond. Sub-agents draw on the budget of the run
    that called them. What was spent is kept in this process. Priority 1000: every answer counts, also one that another
    hook withholds.

    Args:
        cost_usd: US dollars, as the model reports them in `usage`.
        tokens: Input and output tokens together.
        **options: Of the bundle, see `BundleOptions`.

    Raises:
        HookDefinitionError: If there is no limit at all, or an option cannot work.
    """
    if cost_usd is None and tokens is None:
        raise HookDefinitionError("budget", "say `cost_usd`, `tokens` or both")
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

    @hooks.after(ModelCall, id=hooks.id)
    def pay(call: ModelCall, response: ModelResponse) -> None:
        with purses.lock:
            purses.of(call.operation_id).usage += response.usage

    purses.drop_on_complete(hooks)
    return hooks


def _check_limits(cost_usd: float | None, tokens: int | None) -> None:
    if cost_usd is not None:
        check_number("budget", "cost_usd", cost_usd)
    if tokens is not None:
        check_number("budget", "tokens", tokens, least=1, whole=True)


def _refuse_overdrawn(spent: Usage, cost_usd: float | None, tokens: int | None) -> Deny | None:
    used = spent.input_tokens + spent.output_tokens
    if cost_usd is not None and spent.cost_usd >= cost_usd:
        return Deny(f"the budget of ${cost_usd:g} is used up: ${spent.cost_usd:.6g} were spent")
    if tokens is not None and used >= tokens:
        return Deny(f"the budget of {tokens} tokens is used up: {used} were spent")
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
    """Retry a model call after a `TransientModelError`, in place of the agent's own retries.

    Hooks see one call, however many attempts it takes. In a bare chain nobody heeds it. Execution: priority 200.

    Args:
        call: `ModelCall`.
        attempts: How often in all; 1 never asks again.
        first_wait: Seconds before the second attempt; doubled for each further one.
        max_wait: Seconds between two attempts at most.
        jitter: Share of each wait that is random, from 0 to 1.
        **options: Of the bundle, see `BundleOptions`.

    Raises:
        HookDefinitionError: If the call is another one, or an option cannot work.
    """
    if call is not ModelCall:
        raise HookDefinitionError(
            "retry", f"only a model is asked again, what a tool did may not happen twice: give ModelCall; got {call!r}"
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
        raise HookDefinitionError("retry", f"`jitter` is a share from 0 to 1; got {policy.jitter!r}")
    return policy
