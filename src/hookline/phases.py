"""Move an agent from phase to phase with `PhaseMachine`, which runs the phase hooks of each move.

A move may begin inside of a hook of another one, or in another task while such a hook still runs. Its hooks then run at
once, but it is announced in its turn: announcements come in the order in which the phases were entered.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator
from time import perf_counter_ns

import msgspec

from hookline._deadlines import Bounded, bounded_for_this_backend
from hookline._phase import TRANSITIONS, Phase, PhaseHandler, PhaseHook, PhaseTransition
from hookline.errors import HookUsageError, PhaseTransitionError
from hookline.execution import (
    Observer,
    awaiting,
    is_async_handler,
    own_failure,
    record,
    refuse_decision,
    refuse_return,
    report_at,
)
from hookline.hooks import AnyHook, Hooks, hook_batch, phase_handler
from hookline.signals import announce, hook_executed, phase_changed

__all__ = ["TRANSITIONS", "Phase", "PhaseHook", "PhaseMachine", "PhaseTransition"]


class PhaseMachine:
    """The phase of one agent; `move` changes it.

    You can create it outside an event loop. It is not thread-safe. Several machines can share hooks.

    Args:
        agent_id: The agent.
        hooks: Bundles and `PhaseHook`s, in the order in which they run. Other hooks are ignored.
        operation_id: The run that the next moves belong to. Set this attribute for each run.
        tenant_id: The agent's tenant. Bundles of other tenants are ignored.
        hook_timeout: Time limit in seconds for async handlers whose hook has none.

    Raises:
        HookDefinitionError: If a hook is invalid. The error names the hook and the fix.
    """

    def __init__(
        self,
        agent_id: str,
        hooks: Iterable[AnyHook] = (),
        *,
        operation_id: str = "",
        tenant_id: str = "",
        hook_timeout: float = 30.0,
    ) -> None:
        self.agent_id = agent_id
        self.operation_id = operation_id
        self.tenant_id = tenant_id
        self.hook_timeout = hook_timeout
        self._phase = Phase.UNINITIALIZED
        self._hooks = _compile_hooks(hooks, tenant_id)
        self._matching: dict[tuple[Phase, Phase], tuple[Observer, ...]] = {}
        self._moves: deque[_Move] = deque()
        self._announcing = False

    def __repr__(self) -> str:
        return f"PhaseMachine({self.agent_id!r}, phase={self._phase.value!r}, hooks={len(self._hooks)})"

    @property
    def phase(self) -> Phase:
        """The current phase of the agent."""
        return self._phase

    async def move(self, target: Phase | str, *, reason: str = "") -> None:
        """Enter another phase, run the hooks of this move, then send `signals.phase_changed`.

        The hooks run one after the other, in the order in which you gave them, and already see the new phase. Their
        errors are logged. If the caller is cancelled meanwhile, the remaining hooks do not run, but the signal is sent.
        A move to the current phase does nothing.

        Args:
            target: The phase to enter.
            reason: The reason, for the hooks.

        Raises:
            PhaseTransitionError: If the current phase cannot be followed by the target. Nothing changes.
            HookUsageError: If the target is not a phase.
        """
        if type(target) is not Phase:
            target = _phase_named(target)
        source = self._phase
        if target is source:
            return
        if target not in TRANSITIONS[source]:
            allowed = sorted(phase.value for phase in TRANSITIONS[source])
            raise PhaseTransitionError(self.agent_id, source.value, target.value, allowed)
        self._phase = target
        hooks = self._matching.get((source, target))
        if hooks is None:
            hooks = self._find_hooks(source, target)
        if not (hooks or self._moves or phase_changed.receivers):
            return
        move = _Move(
            PhaseTransition(
                agent_id=self.agent_id, operation_id=self.operation_id, source=source, target=target, reason=reason
            )
        )
        self._moves.append(move)
        try:
            if hooks:
                await self._run(hooks, move.transition)
        finally:
            move.over = True
            self._announce()

    @contextlib.contextmanager
    def hooked(self, hooks: Iterable[AnyHook]) -> Iterator[None]:
        """Add hooks for moves that begin inside the `with` block. They run after the others.

        Raises:
            HookDefinitionError: If a hook is invalid. The error names the hook and the fix.
        """
        added = _compile_hooks(hooks, self.tenant_id)
        self._set_hooks({**self._hooks, **added})
        try:
            yield
        finally:
            self._set_hooks({hook: pair for hook, pair in self._hooks.items() if hook not in added})

    def _set_hooks(self, hooks: dict[Observer, PhaseHandler]) -> None:
        if len(hooks) != len(self._hooks):
            self._hooks = hooks
            self._matching.clear()

    def _find_hooks(self, source: Phase, target: Phase) -> tuple[Observer, ...]:
        """Return the hooks of a move, and keep them for the next one."""
        matching = self._matching[source, target] = tuple(
            hook
            for hook, pair in self._hooks.items()
            if pair.source in (None, source) and pair.target in (None, target)
        )
        return matching

    async def _run(self, hooks: Iterable[Observer], transition: PhaseTransition) -> None:
        # As `run_timed` does, without a coroutine for each hook: ten plain hooks take half the time (`bench_phases`).
        bounded: Bounded | None = None
        for hook in hooks:
            started, failure = perf_counter_ns(), None
            try:
                if hook.is_async:
                    bounded = bounded or bounded_for_this_backend()
                    outcome = await bounded(hook.handler(transition), hook.timeout or self.hook_timeout, None)
                    if outcome is not None:
                        refuse_decision(outcome)
                elif (outcome := hook.handler(transition)) is not None:
                    refuse_return(outcome)
            except BaseException as error:
                failure = own_failure(error)
            # Not inside of `except`: what a receiver raises would carry the failure with it into the log.
            if hook_executed.receivers:
                record(hook, transition, self, started, failure)
            if failure is not None:
                report_at(_place_of(transition), hook, failure, hook.timeout or self.hook_timeout)
                failure = None  # it refers to this frame

    def _announce(self) -> None:
        """Announce finished moves, up to the first one whose hooks still run."""
        if self._announcing:
            return  # a receiver made a move: first the others hear of the one that it was told of
        self._announcing = True
        try:
            while self._moves and self._moves[0].over:
                transition = self._moves.popleft().transition
                if phase_changed.receivers:
                    announce(phase_changed, self, transition=transition)
        finally:
            self._announcing = False


class _Move(msgspec.Struct, eq=False):
    transition: PhaseTransition
    over: bool = False


def _compile_hooks(hooks: Iterable[AnyHook], tenant_id: str) -> dict[Observer, PhaseHandler]:
    """Compile the phase hooks of a batch, each with the pair of phases that it is for."""
    compiled: dict[Observer, PhaseHandler] = {}
    for entry in hook_batch(hooks):
        given: tuple[PhaseHandler, ...] = ()
        if isinstance(entry, PhaseHook):
            given = (phase_handler(entry),)
        elif isinstance(entry, Hooks) and entry.tenant_id in ("", tenant_id):
            given = entry.phase_hooks
        for hook in given:
            is_async = is_async_handler(hook.handler)
            handler = awaiting(hook.handler) if is_async else hook.handler
            compiled[Observer(id=hook.id, handler=handler, is_async=is_async, timeout=hook.timeout)] = hook
    return compiled


def _phase_named(name: str) -> Phase:
    try:
        return Phase(name)
    except ValueError:
        raise HookUsageError(f"{name!r} is not a phase; the phases are {', '.join(Phase)}.") from None


def _place_of(transition: PhaseTransition) -> str:
    """Return a move in words, for the log."""
    move = f"{transition.source} -> {transition.target} of agent {transition.agent_id!r}"
    return f"{move} in operation {transition.operation_id}" if transition.operation_id else move
