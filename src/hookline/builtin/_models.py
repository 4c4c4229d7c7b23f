"""Limit what a run spends on its model, and retry model calls after temporary failures."""

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

    A model call starts while any budget is left, so the last one can exceed it. Sub-agents share the budget of the run
    that called them. Spending is counted in this process, including answers that another hook withholds. Priority:
    1000.

    Args:
        cost_usd: Limit in US dollars, as the model reports them in `usage`.
        tokens: Limit of input and output tokens together.
        **options: Options of the bundle, see `BundleOptions`.

    Raises:
        HookDefinitionError: If there is no limit, or an option is invalid.
    """
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
