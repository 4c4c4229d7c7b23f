"""Call the observers of each operation: registration, the tables of handlers, dispatch.

One table per event class, operation → ONE callable, compiled when the bundle is first registered. An operation that
shares a bundle costs a few dict entries and no object of its own. A lane exists only while something is queued in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextvars import copy_context
from itertools import groupby
from types import TracebackType
from typing import Any, Self, cast

import anyio
import msgspec

from hookline._checks import check_timeout, quote
from hookline._deadlines import Bounded
from hookline.calls import ToolResult
from hookline.dispatcher._lanes import LaneHost
from hookline.dispatcher._webhooks import LazyDelivery, has_webhooks, with_delivering_observers
from hookline.errors import HookDefinitionError, HookUsageError
from hookline.events import EVENTS, BeforeToolCall, Event, HookType
from hookline.execution import (
    Askable,
    Observer,
    ask,
    compile_askable,
    compile_inline,
    compile_observer,
    refuse_return,
    report,
)
from hookline.hooks import AnyHook, Hook, Hooks, Interceptor, hook_batch
from hookline.signals import announce, hook_executed, operation_registered, operation_unregistered
from hookline.webhooks import Delivery

__all__ = [
    "LEFT",
    "NOT_ENTERED",
    "ClosedTable",
    "DrainReport",
    "Entry",
    "HookDispatcher",
    "Notify",
    "Plan",
    "Registration",
    "compile_batch",
    "merge_entries",
    "plan_of",
    "undispatchable_error",
]

Notify = Callable[[Event, Any], None]
"""Calls or queues the observers of one event: `(event, dispatcher) -> None`. It is shared by all dispatchers."""

Queue = tuple[object, tuple[Observer, ...], Notify]
"""A lane, its observers of one event, and what queues the event for them."""

Entry = tuple[Callable[[Any], object] | None, Notify, Observer | None, tuple[tuple[Queue, ...], tuple[Notify, ...]]]
"""One entry of a dispatcher's table.

Its parts: the handler, if one plain handler gets every event, so that the commonest case costs one frame less; what
notifies all observers; the observer of that handler; what was merged, as queues and plain observers.
"""


class Plan:
    """One bundle (or the plain hooks of one call) compiled: per event class, what to run.

    Phase hooks are in none: the phase machine of a session has them.
    """

    __slots__ = ("askable", "entries", "events", "left_out")

    def __init__(
        self, lane: object, observers: Iterable[tuple[type[Event], Observer]], left_out: tuple[str, ...]
    ) -> None:
        self.left_out = left_out
        """Ids of the interceptors that came along, which only a run can call."""
        by_event: dict[type[Event], list[Observer]] = {}
        for event, observer in observers:
            by_event.setdefault(event, []).append(observer)
        self.askable = tuple(map(compile_askable, by_event.pop(BeforeToolCall, ())))
        self.entries = tuple((event, _compile_entry(lane, theirs)) for event, theirs in by_event.items())
        self.events = tuple(by_event)


def compile_batch(batch: Sequence[AnyHook]) -> tuple[Plan, ...]:
    """Compile the hooks of one `register` call, whose plain hooks share a lane."""
    lane = object()
    plans: list[Plan] = []
    for are_bundles, entries in groupby(batch, lambda entry: isinstance(entry, Hooks)):
        if are_bundles:
            plans += map(plan_of, cast("Iterator[Hooks]", entries))
        else:
            plans.append(_plan_of_plain_hooks(list(entries), lane))
    return tuple(plans)


def plan_of(bundle: Hooks) -> Plan:
    """Return the plan of a bundle, which all operations with this bundle share."""
    plan: Plan | None = bundle._compiled
    if plan is None:
        observers = [
            (hook.event, compile_observer(hook, bundle.tenant_id, recorded=bundle.recorded))
            for hook in bundle.observers
        ]
        plan = bundle._compiled = Plan(bundle.lane, observers, tuple(hook.id for hook in bundle.interceptors))
    return plan


def _plan_of_plain_hooks(hooks: Sequence[AnyHook], lane: object) -> Plan:
    return Plan(
        lane,
        [(hook.event, compile_observer(hook, hook.tenant_id)) for hook in hooks if isinstance(hook, Hook)],
        tuple(hook.id for hook in hooks if isinstance(hook, Interceptor)),
    )


def _compile_entry(lane: object, observers: Sequence[Observer]) -> Entry:
    queued = tuple(observer for observer in observers if observer.is_async)
    plain = [observer for observer in observers if not observer.is_async]
    queues = (_queue_of(lane, queued),) if queued else ()
    inline = (compile_inline(plain),) if plain else ()
    run = _notify_in_turn(queues, inline)
    match observers:
        case [Observer(is_async=False, matches=None) as only]:
            return only.handler, run, only, (queues, inline)
    return None, run, None, (queues, inline)


def _queue_of(lane: object, observers: tuple[Observer, ...]) -> Queue:
    return lane, observers, _compile_queue(lane, observers)


def _compile_queue(lane: object, observers: tuple[Observer, ...]) -> Notify:
    if all(observer.matches is None for observer in observers):

        def queue(event: Event, dispatcher: Any) -> None:
            dispatcher._host.push(event.operation_id, lane, (event, copy_context(), observers))

        return queue

    def queue_matching(event: Event, dispatcher: Any) -> None:
        wanted = tuple(observer for observer in observers if observer.matches is None or observer.matches(event))
        if wanted:
            dispatcher._host.push(event.operation_id, lane, (event, copy_context(), wanted))

    return queue_matching


def merge_entries(entries: Sequence[Entry]) -> Entry:
    """Merge entries that were registered one after the other into one, with one queue for each lane."""
    if len(entries) == 1:
        return entries[0]
    queues: dict[int, Queue] = {}
    inline: list[Notify] = []
    for _, _, _, (theirs, plain) in entries:
        for queue in theirs:
            lane, observers, _ = queue
            present = queues.get(id(lane))
            queues[id(lane)] = queue if present is None else _queue_of(lane, present[1] + observers)
        inline += plain
    parts = tuple(queues.values()), tuple(inline)
    return None, _notify_in_turn(*parts), None, parts


def _notify_in_turn(queues: tuple[Queue, ...], inline: tuple[Notify, ...]) -> Notify:
    """Notify queues first: what a plain observer dispatches or sets in its turn comes after the event that it saw."""
    runs = (*(queue for _, _, queue in queues), *inline)
    if len(runs) == 1:
        return runs[0]

    def run(event: Event, dispatcher: Any) -> None:
        for each in runs:
            each(event, dispatcher)

    return run


class ClosedTable:
    """Stands for every table of a dispatcher that is not open, and raises."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __getitem__(self, key: object, default: object = None) -> Any:
        raise HookUsageError(
            f"This HookDispatcher {self.why}. Use it inside `async with HookDispatcher() as dispatcher`."
        )

    get = pop = __getitem__


NOT_ENTERED = ClosedTable("has not been entered")
LEFT = ClosedTable("has been left")


def undispatchable_error(event: object) -> HookUsageError:
    """Return the exception for something that cannot be dispatched."""
    if isinstance(event, BeforeToolCall):
        return HookUsageError(
            "A hook can answer a BeforeToolCall. Use `await dispatcher.dispatch_before_tool_call(event)`."
        )
    return HookUsageError(f"Only the sixteen events of hookline.events can be dispatched; got {quote(event)}.")


class DrainReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Counts of the queued events of an operation since it was registered: one per event and lane.

    Attributes:
        delivered: Events whose handlers have run, successfully or not.
        dropped: Events that did not fit into a lane, were cancelled, or never started.
    """

    delivered: int
    dropped: int


class Registration(msgspec.Struct, eq=False, gc=False):
    """The hooks that one `register` call added to an operation; `remove` removes them.

    Attributes:
        operation_id: The operation.
    """

    # The dispatcher keeps it for the operation, too. It is not tracked by the garbage collector: the cycle through the
    # dispatcher ends when the operation or the dispatcher does.
    _dispatcher: HookDispatcher
    operation_id: str
    _plan: Plan | None
    _others: tuple[Plan, ...] = ()

    def plans(self) -> tuple[Plan, ...]:
        """Return the compiled hooks."""
        return self._others if self._plan is None else (self._plan,)

    def remove(self) -> None:
        """Stop calling these hooks. Events in their queues are still delivered. A second call does nothing."""
        self._dispatcher._withdraw(self)


class HookDispatcher:
    """Calls the observers of operations. It is an async context manager that owns their lanes.

    At the end of the block, lanes have up to five seconds to finish; after an exception they are cancelled. It is not
    thread-safe: use it in the event loop that entered it.

    Args:
        hook_timeout: Time limit in seconds for async handlers and interceptors that have none; `math.inf` for no limit.
        max_queued: Maximum number of events in one lane, without the running one.
        chain_budget: Limit of the own time of all interceptors of one call together, in seconds; `None` for no limit.
        delivery: Delivers the events of hooks with a `webhook`. By default the process delivers them, configured by its
            environment.

    Raises:
        HookDefinitionError: If an argument is invalid.
    """

    def __init__(
        self,
        *,
        hook_timeout: float = 30.0,
        max_queued: int = 10_000,
        chain_budget: float | None = None,
        delivery: Delivery | None = None,
    ) -> None:
        check_timeout(hook_timeout, "HookDispatcher(hook_timeout=...)")
        check_timeout(chain_budget, "HookDispatcher(chain_budget=...)")
        if hook_timeout is None or isinstance(max_queued, bool) or not isinstance(max_queued, int) or max_queued < 1:
            raise HookDefinitionError(
                "HookDispatcher", "`hook_timeout` must be a number, and `max_queued` an integer of at least 1"
            )
        self.hook_timeout = hook_timeout
        self.max_queued = max_queued
        self.chain_budget = chain_budget
        self._carrier = LazyDelivery(delivery)
        self._operations: dict[str, Registration | list[Registration]] = {}
        self._askable: dict[str, tuple[Askable, ...]] = {}
        self._tables: dict[type[Event], dict[str, Entry]] = {kind: {} for kind in _DISPATCHABLE}
        self._peak = 0
        self._close(NOT_ENTERED)

    # The gates are what every caller reads. Before `async with` and after it they are tables that raise, so that the
    # check costs nothing in between.

    def _open(self) -> None:
        self._find: Any = {kind: table.get for kind, table in self._tables.items()}
        self._asked: Any = self._askable
        self._gates: Any = {None: _Hooked(self._operations), BeforeToolCall: self._askable, **self._tables}
        self._registered: Any = self._operations

    def _close(self, closed: ClosedTable) -> None:
        self._find = self._asked = self._gates = self._registered = closed

    async def __aenter__(self) -> Self:
        if self._gates is not NOT_ENTERED:
            raise HookUsageError("This HookDispatcher was already used; create a new one for each `async with`.")
        self._host = LaneHost(self.hook_timeout, self.max_queued, sender=self)
        await self._host.open()
        self._bounded: Bounded = self._host.bounded
        self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        live = list(self._operations)
        if live:
            self._operations.clear()
            self._askable.clear()
            for table in self._tables.values():
                table.clear()
        self._close(LEFT)
        try:
            return await self._host.close(kind, error, trace)
        finally:
            await self._carrier.aclose()
            self._host.sender = None  # what it refers to in turn need not wait for the collector
            if operation_unregistered.receivers:
                for operation_id in live:
                    announce(operation_unregistered, self, operation_id=operation_id)

    @property
    def delivery(self) -> Delivery:
        """The delivery for the events of hooks with a `webhook`."""
        return self._carrier.delivery

    @property
    def operations(self) -> Collection[str]:
        """Ids of the live operations, as a live view."""
        return self._operations.keys()

    def register(self, operation_id: str, hooks: Iterable[AnyHook]) -> Registration:
        """Add hooks to an operation, after its existing hooks. The first call makes the operation live.

        Args:
            operation_id: The run.
            hooks: Bundles and plain hooks; the plain hooks form one bundle. If one is invalid, none is registered. Only
                observers are registered: give interceptors and phase hooks to `exec_agent` or a session. A run of an
                operation for which interceptors were registered here is refused, since it would run without them.

        Raises:
            HookDefinitionError: If an entry is invalid. The error names the entry and the fix.
            HookUsageError: Outside the dispatcher's `async with`.
        """
        if (operation_id.__class__ is not str and not isinstance(operation_id, str)) or not operation_id:
            raise HookUsageError(f"An operation id must be a non-empty string; got {operation_id!r}.")
        plan: Plan | None = None
        if hooks.__class__ is list and len(hooks) == 1 and (only := hooks[0]).__class__ is Hooks:
            plan = only._compiled or plan_of(only)
            registration = Registration(self, operation_id, plan)
        else:
            batch = hook_batch(hooks)
            if has_webhooks(batch):
                batch = with_delivering_observers(batch, self.delivery)
            registration = Registration(self, operation_id, None, compile_batch(batch))
        operations = self._registered
        before = operations.get(operation_id)
        if before is not None:
            operations[operation_id] = [*before, registration] if isinstance(before, list) else [before, registration]
            self._add(operation_id, (registration,))
            return registration
        operations[operation_id] = registration
        if plan is None:
            self._add(operation_id, (registration,))
        else:
            tables = self._tables
            for event, entry in plan.entries:
                tables[event][operation_id] = entry
            if plan.askable:
                self._askable[operation_id] = plan.askable
        if operation_registered.receivers:
            announce(operation_registered, self, operation_id=operation_id)
        return registration

    async def unregister(self, operation_id: str, *, drain_timeout: float = 5.0) -> DrainReport:
        """Remove an operation at once, then wait for its queued events.

        Args:
            operation_id: The run. For an unknown one, the report has zeros.
            drain_timeout: Seconds that all its lanes together have to finish; the rest is cancelled.

        Raises:
            HookUsageError: Outside the dispatcher's `async with`.
        """
        operations = self._registered
        found = operations.pop(operation_id, None)
        if found is None:
            return _NOTHING
        if found.__class__ is Registration and (plan := found._plan) is not None:
            tables = self._tables
            for event in plan.events:
                del tables[event][operation_id]
            if plan.askable:
                del self._askable[operation_id]
        else:
            self._forget(operation_id)
        live = len(operations)
        if live > self._peak:
            self._peak = live
        elif live * 8 < self._peak > SMALL_TABLE:
            self._shrink()
        if operation_unregistered.receivers:
            announce(operation_unregistered, self, operation_id=operation_id)
        if operation_id not in self._host.counts:
            return _NOTHING
        delivered, dropped = await self._host.drain(operation_id, drain_timeout)
        return DrainReport(delivered=delivered, dropped=dropped)

    def lane_lengths(self) -> list[int]:
        """Return the number of waiting events in each lane that is not empty. It can be called from any thread."""
        return self._host.lengths()

    def has_hooks(self, operation_id: str, event: type[Event] | HookType | None = None) -> bool:
        """Return whether any observer would be called. Use it to avoid building events that nobody observes.

        Args:
            operation_id: The run.
            event: Only observers of this event; `None` for any event.
        """
        try:
            return operation_id in self._gates[event]
        except (KeyError, TypeError):
            if not isinstance(event, str) or event not in EVENTS:
                raise HookUsageError(f"{quote(event)} is not one of the sixteen events.") from None
            self._gates[event] = self._gates[EVENTS[HookType(event)]]
            return operation_id in self._gates[event]

    def dispatch(self, event: Event) -> None:
        """Call the observers of the event's operation, without waiting and without raising their exceptions.

        Plain handlers run before it returns; async handlers are queued in the lane of their bundle.

        Raises:
            HookUsageError: For a `BeforeToolCall` (use `dispatch_before_tool_call`), for a value that is not an event,
                and outside the dispatcher's `async with`.
        """
        try:
            entry = self._find[event.__class__](event.operation_id)
        except (KeyError, AttributeError):
            raise undispatchable_error(event) from None
        if entry is None:
            return
        handler, run, observer, _ = entry
        if handler is None or hook_executed.receivers:
            run(event, self)
            return
        try:  # as `compile_inline` does; here because one frame more is a third of what all this costs
            outcome = handler(event)
            if outcome is not None:
                refuse_return(outcome)
        except Exception as error:
            report(observer, event, error)

    def dispatch_before_tool_call(self, event: BeforeToolCall) -> Coroutine[Any, Any, ToolResult | None]:
        """Call the observers of a tool call, and return the answer of one of them.

        Each matching hook is called once, in the order of registration; the first mock is the answer. Handlers run in
        the agent's own task and context. One with `timeout=math.inf` must not suppress the cancellation of that task.

        Args:
            event: The event of the call. Its `args` are the parsed arguments, never the model's raw text.

        Returns:
            The result for the model, if a hook answered or denied the call; `None` to run the tool.

        Raises:
            HookUsageError: If the event is not a `BeforeToolCall`, and outside the dispatcher's `async with`.

        Source:
            LobeHub `HookDispatcher.dispatchBeforeToolCall`: the first mock wins since its second version.
        """
        if event.__class__ is not BeforeToolCall:
            raise HookUsageError(f"dispatch_before_tool_call takes a BeforeToolCall; got {type(event).__name__}.")
        askable = self._asked.get(event.operation_id)
        if askable is None:
            return _no_answer()
        return ask(askable, event, self._bounded, self.hook_timeout, self)

    @contextlib.asynccontextmanager
    async def operation(self, operation_id: str, hooks: Iterable[AnyHook] = ()) -> AsyncIterator[Registration]:
        """Register an operation for an `async with` block, and unregister it at the end.

        Args:
            operation_id: The run.
            hooks: Its hooks.
        """
        registration = self.register(operation_id, hooks)
        try:
            yield registration
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.unregister(operation_id)
            raise
        await self.unregister(operation_id)

    def _add(self, operation_id: str, registrations: Iterable[Registration]) -> None:
        entries: dict[type[Event], list[Entry]] = {}
        askable = self._askable.get(operation_id, ())
        for registration in registrations:
            for plan in registration.plans():
                for event, entry in plan.entries:
                    entries.setdefault(event, []).append(entry)
                askable += plan.askable
        for event, theirs in entries.items():
            table = self._tables[event]
            present = table.get(operation_id)
            table[operation_id] = merge_entries(theirs if present is None else [present, *theirs])
        if askable:
            self._askable[operation_id] = askable

    def _shrink(self) -> None:
        """Give back the memory of operations that are gone: a dict never shrinks by itself."""
        self._peak = len(self._operations)
        tables: list[dict[str, Any]] = [self._operations, self._askable, *self._tables.values()]
        for table in tables:
            kept = table.copy()
            table.clear()
            table.update(kept)
        self._host.shrink()

    def _left_out(self, operation_id: str) -> list[str]:
        """Return ids of the interceptors that were registered for an operation, and that a dispatcher does not call."""
        return [
            hook_id
            for each in self._registrations_of(operation_id)
            for plan in each.plans()
            for hook_id in plan.left_out
        ]

    def _forget(self, operation_id: str) -> None:
        self._askable.pop(operation_id, None)
        for table in self._tables.values():
            table.pop(operation_id, None)

    def _registrations_of(self, operation_id: str) -> list[Registration]:
        found = self._operations.get(operation_id, [])
        return found if isinstance(found, list) else [found]

    def _withdraw(self, registration: Registration) -> None:
        operation_id = registration.operation_id
        present = self._registrations_of(operation_id)
        if registration not in present:
            return
        rest = [each for each in present if each is not registration]
        self._forget(operation_id)
        registration._plan, registration._others = None, ()
        self._operations[operation_id] = rest
        self._add(operation_id, rest)


class _Hooked:
    """The operations that have any hook at all: the gate of `has_hooks(operation_id)`."""

    def __init__(self, operations: dict[str, Registration | list[Registration]]) -> None:
        self.operations = operations

    def __contains__(self, operation_id: str) -> bool:
        found = self.operations.get(operation_id, [])
        registrations = found if isinstance(found, list) else [found]
        return any(plan.entries or plan.askable for each in registrations for plan in each.plans())


SMALL_TABLE = 1024
"""Operations up to which a table is not worth shrinking."""

_NOTHING = DrainReport(delivered=0, dropped=0)
_DISPATCHABLE = tuple(kind for kind in EVENTS.values() if kind is not BeforeToolCall)


async def _no_answer() -> None:
    """Return no answer, for an operation without observers of `BeforeToolCall`."""
