"""The chain of a run: the interceptors of all its hooks, compiled."""

from __future__ import annotations

from collections.abc import Sequence

from hookline.calls import Call
from hookline.dispatcher import HookDispatcher
from hookline.hooks import AnyHook, Hooks, Interceptor
from hookline.interceptors import Chain

__all__ = ["chain_of"]

_NO_CALLS: frozenset[type[Call]] = frozenset()


def chain_of(hooks: Sequence[AnyHook], dispatcher: HookDispatcher) -> tuple[Chain | None, frozenset[type[Call]]]:
    """The chain of a run, and the calls that it has hooks for."""
    if not hooks:
        return None, _NO_CALLS
    owners = [
        entry for entry in hooks if isinstance(entry, Interceptor) or (isinstance(entry, Hooks) and entry.interceptors)
    ]
    if not owners:
        return None, _NO_CALLS
    budget, hook_timeout = dispatcher.chain_budget, dispatcher.hook_timeout
    if len(owners) > 1 or not isinstance(only := owners[0], Hooks):
        chain = Chain(owners, budget=budget, hook_timeout=hook_timeout, record=False)
        return chain, chain.calls
    # A bundle keeps its own chain, which dies with it. Of several together nobody may keep it: one of them may be of
    # this run alone.
    key = (only.interceptors, budget, hook_timeout)
    if only._chain is None or only._chain[0] != key:
        only._chain = (key, Chain([only], budget=budget, hook_timeout=hook_timeout, record=False))
    kept: Chain = only._chain[1]
    return kept, kept.calls
