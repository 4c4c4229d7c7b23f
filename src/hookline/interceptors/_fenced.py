"""Judge the calls of operations that are running by the hooks that a fenced change has put in force.

A call passes its interceptors on the way in, runs, and passes them on the way out. On each of the two ways it is judged
by one set of hooks as a whole. What has changed meanwhile takes effect on the way out: then the present `after` hooks
judge the result in place of those with which the call began.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, cast

import msgspec

from hookline.calls import Call, merge_context
from hookline.execution import report_failure
from hookline.hooks import AnyHook, Hook, Hooks, copy_bundle
from hookline.interceptors._chain import Chain
from hookline.interceptors._failures import fail_closed, failed_closed
from hookline.interceptors._fold import CompiledChain
from hookline.interceptors._traversal import IDLE, CompiledInterceptor, RunPolicy, Traversal

__all__ = ["Fence", "FencedChain", "FencedHooks", "boot_time", "is_fenced"]

DefinitionKey = tuple[str, str]
"""Tenant and id of a definition."""
InForce = tuple[str, str, int]
"""Point, id and revision of an interceptor."""

ON_THE_WAY_IN, ON_THE_WAY_OUT = ("before", "guard", "around"), ("after", "around")
LEASE_ENDED = (
    "this process has not reached the database for the length of its lease, so that it does not know whether the hook "
    "was changed"
)


def boot_time() -> float:
    """Return the seconds since the machine was started, which no change of its clock and no sleep interrupts."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Fence:
    """Says by which hooks of a registry the calls of this process may be judged.

    Args:
        find_hooks: Returns the hooks of a tenant that are in force now.

    Attributes:
        revision: The newest revision of the definitions that this process knows.
        generation: How many times fenced changes have arrived.
        epoch: How many times the other processes have ceased to wait for this one.
        valid_until: When, by `boot_time`, calls may not be judged any more, unless the lease is renewed.
    """

    def __init__(self, find_hooks: Callable[[str], Sequence[AnyHook]]) -> None:
        self._find_hooks = find_hooks
        self.revision = -1
        self.generation = 0
        self.epoch = 0
        self.valid_until = -math.inf
        self._fenced: dict[DefinitionKey, int] = {}
        self._calls: set[_OpenCall] = set()

    @property
    def is_lost(self) -> bool:
        """Whether the lease has ended, so that other processes do not wait for this one."""
        return boot_time() >= self.valid_until

    @property
    def is_drained(self) -> bool:
        """Whether no call is being judged by hooks that a fenced change has replaced."""
        return not any(call.is_outdated() for call in tuple(self._calls))

    def advance(self, revision: int, fenced: Mapping[DefinitionKey, int]) -> None:
        """Put the changes of definitions in force that this process has just read.

        Args:
            revision: The newest revision.
            fenced: The revision of the last fenced change of each definition that has a new one.
        """
        self._fenced.update(fenced)
        self.revision = revision
        self.generation += bool(fenced)

    def renew(self, hooks: Sequence[AnyHook], marker: FencedHooks) -> Sequence[AnyHook]:
        """Return the hooks of a run with those that fenced changes have replaced, added or removed.

        Args:
            hooks: The hooks.
            marker: The one among them that says when they were given.
        """
        changed = {
            key: revision
            for key, revision in tuple(self._fenced.items())
            if revision > marker.revision and key[0] in ("", marker.tenant_id)
        }
        if not changed:
            return hooks
        given = {key: entry for entry in hooks if (key := definition_key(entry)) is not None}
        present = {
            key: entry
            for entry in self._find_hooks(marker.tenant_id)
            if (key := definition_key(entry)) is not None and (not marker.inherited or _is_inherited(entry))
        }
        ordered: list[DefinitionKey] = []
        renewed: dict[DefinitionKey, AnyHook] = {}
        for key in present:
            if key in given and (key not in changed or _revision_of(given[key]) >= changed[key]):
                renewed[key] = given[key]
            elif key in changed:
                renewed[key] = present[key]
            else:
                continue
            ordered.append(key)
        before: DefinitionKey | None = None
        for key, entry in given.items():
            if key not in renewed and key not in changed:  # gone by a change without a fence, which does not count here
                ordered.insert(0 if before is None else ordered.index(before) + 1, key)
                renewed[key] = entry
            before = key if key in renewed else before
        system = (entry for key, entry in renewed.items() if not key[0])
        floor = max((entry.priority for entry in system if isinstance(entry, Hooks)), default=0)
        result: list[AnyHook] = []
        for entry in hooks:
            if entry is marker:
                result.append(marker.at(self.revision))
                result += [_raise_priority(renewed[key], floor) if key[0] else renewed[key] for key in ordered]
            elif definition_key(entry) is None:
                result.append(entry)
        return result

    def open(self, call: _OpenCall) -> None:
        """Note that a call is being judged."""
        self._calls.add(call)

    def close(self, call: _OpenCall) -> None:
        """Note that a call has ended."""
        self._calls.discard(call)


class FencedHooks(Hooks):
    """Stands among the hooks that a registry gives to a run, and brings those of fenced changes; it has none itself.

    Args:
        fence: The fence of the registry.
        tenant_id: The tenant of the run.
        revision: The revision of the definitions that the run got.
        inherited: Whether a sub-agent has it from its caller, with the hooks that are inherited.
    """

    from_definition = True

    def __init__(self, fence: Fence, tenant_id: str, revision: int, *, inherited: bool = False) -> None:
        super().__init__("hookline.fence", tenant_id=tenant_id, inherit=True)
        self.fence = fence
        self.revision = revision
        self.inherited = inherited

    def at(self, revision: int) -> FencedHooks:
        """Return the same for the definitions of another revision."""
        return FencedHooks(self.fence, self.tenant_id, revision, inherited=self.inherited)

    def for_sub_agents(self) -> FencedHooks:
        """Return what sub-agents inherit: it brings only hooks that are inherited."""
        return FencedHooks(self.fence, self.tenant_id, self.revision, inherited=True)


def is_fenced(hooks: Iterable[AnyHook]) -> bool:
    """Return whether fenced changes are to take effect on hooks of a run."""
    return any(isinstance(entry, FencedHooks) for entry in hooks)


def definition_key(entry: AnyHook) -> DefinitionKey | None:
    """Return the tenant and the id of the stored definition that made a hook; `None` for any other hook."""
    if isinstance(entry, FencedHooks):
        return None
    if isinstance(entry, Hooks):
        return (entry.tenant_id, entry.id) if entry.from_definition else None
    return (entry.tenant_id, entry.id) if isinstance(entry, Hook) and entry.revision else None


def _revision_of(entry: AnyHook) -> int:
    return cast("Hooks | Hook", entry).revision


def _is_inherited(entry: AnyHook) -> bool:
    return cast("Hooks | Hook", entry).inherit


def _raise_priority(entry: AnyHook, floor: int) -> AnyHook:
    """Return a hook of a tenant, with its handlers, such that it is not outside of the hooks of the system."""
    if not isinstance(entry, Hooks) or entry.priority >= floor:
        return entry
    raised = copy(entry._unscoped or entry)
    raised.priority = floor
    raised.interceptors = tuple(
        msgspec.structs.replace(each, priority=max(each.priority, floor)) for each in raised.interceptors
    )
    return copy_bundle(raised, revision=entry.revision, scope=entry.scope)


def renew_hooks(hooks: Sequence[AnyHook]) -> Sequence[AnyHook]:
    """Return the hooks of a run after all fenced changes; the same list if none concerns it."""
    renewed = hooks
    for marker in [entry for entry in hooks if isinstance(entry, FencedHooks)]:
        renewed = marker.fence.renew(renewed, marker)
    return renewed


def _without_markers(hooks: Sequence[AnyHook]) -> list[int]:
    return [id(entry) for entry in hooks if not isinstance(entry, FencedHooks)]


class _OpenCall(msgspec.Struct, eq=False, weakref=False):
    """A call on its way through the interceptors of a run.

    Attributes:
        hooks: The hooks by which it is judged.
        arounds: The `around` hooks of definitions that it is inside of.
        epochs: The epochs of the fences when it began.
        judges_unheld: Returns whether hooks judge the text now that its readers get while it is written; `None` if that
            text is held where hooks judge it.
        is_judged: Whether hooks may be judging it; not while the call itself runs.
    """

    hooks: Sequence[AnyHook]
    arounds: frozenset[InForce]
    epochs: Sequence[int]
    judges_unheld: Callable[[], bool] | None = None
    is_judged: bool = True

    def is_outdated(self) -> bool:
        """Return whether a fenced change has replaced the hooks that are judging it, or that it is inside of.

        A call whose text readers get while it is written is outdated, too, if the change has brought the first hooks
        that judge it.
        """
        if self.judges_unheld is not None and self.judges_unheld():
            return True
        if not self.is_judged and not self.arounds:
            return False
        renewed = renew_hooks(self.hooks)
        if self.is_judged and _without_markers(renewed) != _without_markers(self.hooks):
            return True
        return bool(self.arounds) and not self.arounds <= _arounds_in_force(renewed)


def _arounds_in_force(hooks: Iterable[AnyHook]) -> frozenset[InForce]:
    return frozenset(
        (hook.call.__name__, hook.id, hook.revision)
        for entry in hooks
        if isinstance(entry, Hooks)
        for hook in entry.interceptors
        if hook.kind == "around" and hook.revision
    )


class FencedChain(Chain):
    """The interceptors of a run, as fenced changes have left them.

    Args:
        hooks: The hooks that the run was given, with a `FencedHooks` among them.
        compile: Returns the chain of such hooks.
        budget: As for `Chain`.
        hook_timeout: As for `Chain`.

    Raises:
        HookDefinitionError: If hooks cannot be compiled.
    """

    def __init__(
        self,
        hooks: Sequence[AnyHook],
        compile: Callable[[Sequence[AnyHook]], Chain],  # noqa: A002
        *,
        budget: float | None,
        hook_timeout: float,
    ) -> None:
        super().__init__((), budget=budget, hook_timeout=hook_timeout, record=False)
        self._of_all_tenants = {}
        self._hooks = hooks
        self._compile_hooks = compile
        self._fences = [entry.fence for entry in hooks if isinstance(entry, FencedHooks)]
        self._generation = self.generation
        self._hooks = renew_hooks(hooks)
        self._chain = compile(self._hooks)
        self._entered: dict[int, CompiledChain] = {}
        self._unheld: set[type[Call]] = set()

    @property
    def generation(self) -> int:
        """How many times fenced changes have arrived."""
        return sum(fence.generation for fence in self._fences)

    def _renew(self) -> Chain:
        """Return the chain of the hooks that are in force."""
        generation = self.generation
        if generation != self._generation:
            renewed = renew_hooks(self._hooks)
            if _without_markers(renewed) != _without_markers(self._hooks):
                self._chain, self._entered = self._compile_hooks(renewed), {}
                self._hooks = renewed
            elif renewed is not self._hooks:
                self._hooks = renewed
                self._entered = {}
            self._generation = generation
        return self._chain

    def _compiled_for(self, call: Call) -> CompiledChain:
        compiled = self._renew()._compiled_for(call)
        entered = self._entered.get(id(compiled))
        if entered is None:
            entered = self._entered[id(compiled)] = copy(compiled)
            entered.enter = self._enter(compiled, self._hooks)
        return entered

    @property
    def calls(self) -> frozenset[type[Call]]:
        """The classes of calls that have interceptors now."""
        return self._renew().calls

    def __contains__(self, call: type[Call]) -> bool:
        return call in self._renew()

    def _waits(self, call: type[Call], tenant_id: str = "") -> bool:
        """Return that a hook may wait, since a change may bring such a hook at any time."""
        return True

    def judges_result(self, call: type[Call], tenant_id: str = "") -> bool:
        """Return whether text of calls of that class is held until a hook has judged the result."""
        return self._renew().judges_result(call, tenant_id)

    def note_stream(self, call: type[Call], *, is_held: bool) -> None:
        """Note whether text of the next calls of a class is held where hooks judge it; fences wait if it is not.

        Args:
            call: The class of the calls.
            is_held: Whether it is held, or nobody reads it while it is written.
        """
        if is_held:
            self._unheld.discard(call)
        else:
            self._unheld.add(call)

    def judges_parts(self, call: type[Call], tenant_id: str = "") -> bool:
        """Return whether all hooks that can change or withhold the result of such calls judge its text in parts."""
        return self._renew().judges_parts(call, tenant_id)

    def order(self, call: type[Call], *, tenant_id: str = "") -> list[str]:
        """Return the ids of the hooks of a class of calls, outermost first, guards last."""
        return self._renew().order(call, tenant_id=tenant_id)

    def _enter(self, compiled: CompiledChain, hooks: Sequence[AnyHook]) -> Callable[[Traversal, Any], Any]:
        """Wrap the way through compiled hooks, so that fences know of each call that they judge."""
        stored = [hook for hook in compiled.hooks if hook.revision and hook.alone is None]
        inwards = [hook for hook in stored if hook.kind in ON_THE_WAY_IN]
        outwards = [hook for hook in stored if hook.kind in ON_THE_WAY_OUT]
        arounds = frozenset((hook.point, hook.id, hook.revision) for hook in stored if hook.kind == "around")
        generation = self._generation

        async def enter(traversal: Traversal, call: Any) -> Any:
            terminal = traversal.terminal
            opened = _OpenCall(hooks, arounds, [fence.epoch for fence in self._fences])
            if call.__class__ in self._unheld:
                opened.judges_unheld = partial(self.judges_result, call.__class__, call.tenant_id)

            async def run_call(final: Any) -> Any:
                try:
                    self._check_leases(traversal, opened, inwards)
                except BaseException:
                    traversal.outcomes[0] = IDLE  # the call was not made
                    raise
                opened.is_judged = bool(compiled.part_hooks)  # these judge the answer while it is written
                try:
                    result = await terminal(final)
                finally:
                    opened.is_judged = True
                suspended = traversal.policy is not None and traversal.policy.suspended
                if suspended or compiled.part_hooks or self.generation == generation:
                    return result
                chain = self._renew()
                if _without_markers(self._hooks) == _without_markers(hooks):
                    return result
                opened.hooks = self._hooks
                traversal.superseded = True
                return await judge_result(chain, traversal, result)

            for fence in self._fences:
                fence.open(opened)
            try:
                self._check_leases(traversal, opened, inwards)
                traversal.terminal = run_call
                result = await compiled.enter(traversal, call)
                self._check_leases(traversal, opened, outwards)
                return result
            finally:
                for fence in self._fences:
                    fence.close(opened)

        return enter

    def _check_leases(self, traversal: Traversal, opened: _OpenCall, hooks: Iterable[CompiledInterceptor]) -> None:
        """Deny a call that stored hooks have judged or are to judge, if this process must not judge by them.

        Raises:
            HookDenied: If a lease has ended, or had ended and the hooks have changed since.
        """
        for fence, epoch in zip(self._fences, opened.epochs, strict=True):
            if not fence.is_lost and (fence.epoch == epoch or not opened.is_outdated()):
                continue
            for hook in hooks:
                if hook.matches is None or hook.matches(traversal.call):
                    raise _lost_lease(traversal, hook)


def _lost_lease(traversal: Traversal, hook: CompiledInterceptor) -> Exception:
    if traversal.refusal is not None:
        return traversal.refusal
    if traversal.started is not None and hook not in traversal.started:
        traversal.started.append(hook)
    traversal.note(hook, "error", LEASE_ENDED, decision="denied", reason=failed_closed(LEASE_ENDED))
    error = TimeoutError(LEASE_ENDED)
    report_failure(hook.id, f"{hook.kind} {hook.point}", traversal.call.operation_id, error)
    return fail_closed(traversal, hook, error, LEASE_ENDED)


class _ResultPolicy:
    """The policy of a run for a call that is over: nobody is asked about it any more."""

    ask = None

    def __init__(self, policy: RunPolicy) -> None:
        self._policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)


async def judge_result(chain: Chain, traversal: Traversal, result: Any) -> Any:
    """Run the result of a call through the `after` hooks of a chain.

    Args:
        chain: The chain.
        traversal: The call, which began with other hooks; it gets what the hooks say.
        result: The result.

    Raises:
        HookDenied: If a hook denies the result.
    """
    call = traversal.call
    placed = [
        each
        for each in chain._placed[type(call)]
        if each[0].kind == "after" and each[0].tenant_id in ("", call.tenant_id)
    ]
    if not placed:
        return result

    async def give_result(call: Any) -> Any:
        return result

    policy = None if traversal.policy is None else cast("RunPolicy", _ResultPolicy(traversal.policy))
    compiled = CompiledChain(placed, hook_timeout=chain._hook_timeout)
    judging = await chain._traverse(compiled, call, cast("Callable[[Any], Awaitable[Any]]", give_result), policy)
    traversal.continues += judging.continues
    traversal.guides += judging.guides
    traversal.context = merge_context(traversal.context, judging.context)
    if judging.refusal is not None:
        traversal.refusal, traversal.denied, traversal.stop = judging.refusal, judging.denied, judging.stop
        raise judging.refusal
    return judging.result
