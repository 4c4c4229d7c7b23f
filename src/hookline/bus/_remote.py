"""Remote hooks: interceptors of a run that another process serves over a bus."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from copy import copy
from typing import Any

import msgspec
from msgspec import structs

from hookline._checks import quote
from hookline.bus._bus import Bus
from hookline.bus._decision_figures import count_decision
from hookline.bus._messages import BusAnswerError, EventFilter, check_name
from hookline.bus._serving import FORMAT, HookQuestion, RemoteDecision, encode_call
from hookline.bus._signing import ANSWER, QUESTION, Secret, UnsignedAnswerError, check_secret, read_signed, sign
from hookline.calls import CALLS, AgentCall, Ask, Call, Deny, Respond, ToolCall
from hookline.errors import HookDefinitionError, HookUsageError, message_of
from hookline.events import EVENTS, Event
from hookline.hooks import AnyHook, ControlInterceptor, Hooks, OnError, check_interceptor

__all__ = ["REVISIONS", "RemoteHooks", "ask_about", "remote", "serve"]

SPARE_SECONDS = 1.0
"""How much later than its question a remote hook times out, so that the bus says what happened."""
REVISIONS = "hookline.revisions"
"""The key of `Call.metadata` for the revisions by which remote hooks judged the call, by the name that was asked."""


class RemoteHooks(Hooks):
    """Interceptors that ask the processes that serve a name, and observers that these run; `remote` makes them.

    Args:
        name: The name, which is also the id of the bundle and of its hooks.
        bus: Carries the questions; `None` for that of the store.
        calls: The classes of calls to ask about.
        deadline: Seconds until the answer must be there.
        on_error: What happens to a call without a valid answer in time.
        tool: Glob over `toolset/tool_name`.
        observes: Whether the processes hear the stored events of the run.
        events: Wire names of the events that they hear; empty for all.
        secret: The secrets that sign; none for questions without a signature.
        options: Further options of the bundle, as of `Hooks`.
    """

    needs_store = True

    def __init__(
        self,
        name: str,
        bus: Bus | None,
        *,
        calls: Sequence[type[Call]],
        deadline: float,
        on_error: OnError,
        tool: str | None,
        observes: bool = False,
        events: Sequence[str] = (),
        secret: tuple[bytes, ...] = (),
        **options: Any,
    ) -> None:
        super().__init__(name, **options)
        self.hearer = name if observes else ""
        self.heard_events = tuple(events)
        self.needs_journal = observes
        self._bus, self._deadline, self._secret = bus, deadline, secret
        self._bound: RemoteHooks | None = None
        for call in calls:
            hook = ControlInterceptor(
                id=name,
                call=call,
                kind="before",
                handler=self._ask,
                priority=self.priority,
                tool=tool if call is ToolCall else None,
                timeout=deadline + SPARE_SECONDS,
                on_error=on_error,
                tenant_id=self.tenant_id,
                shadow=self.shadow,
            )
            check_interceptor(hook, f"Remote hook {name!r}")
            self.interceptors = (*self.interceptors, hook)

    def for_store(self, store: object) -> Hooks:
        """Return the hooks for a run that is kept in a store: its wake-ups carry the questions, if they are a bus.

        Raises:
            HookUsageError: If they are none, and the hooks have no bus of their own; or if there are observers, and the
                store does not keep events for a relay.
        """
        if self.needs_journal and not getattr(store, "relays", False):
            raise HookUsageError(
                f"The remote observers {self.id!r} hear stored events, and {type(store).__name__} keeps none for them. "
                "Give the run a store that does: store=SqlStore(...)."
            )
        bus = self._bus
        if bus is None and self.interceptors:
            bus = self._bus_of(store)
        if bus is self._bus and not self.needs_journal:
            return self
        if self._bound is None or self._bound._bus is not bus:
            self._bound = bound = copy(self)
            bound._bus, bound.needs_journal = bus, False
            bound.interceptors = tuple(structs.replace(each, handler=bound._ask) for each in self.interceptors)
            bound._unscoped = None if self._unscoped is None else self._unscoped.for_store(store)
        return self._bound

    def __copy__(self) -> RemoteHooks:
        """Return the same hooks, which share nothing that was made of these."""
        made = RemoteHooks.__new__(RemoteHooks)
        made.__dict__.update(self.__dict__)
        made._bound = made._compiled = made._chain = made._keys = None
        return made

    def _bus_of(self, store: object) -> Bus:
        """Return the wake-ups of a store, which are a bus.

        Raises:
            HookUsageError: If they are none.
        """
        wakeups = getattr(store, "wakeups", None)
        if not isinstance(wakeups, Bus):
            found = (
                "has no wake-ups" if wakeups is None else f"wakes up with {type(wakeups).__name__}, which cannot ask"
            )
            raise HookUsageError(
                f"The remote hook {self.id!r} needs a bus, and the store of this run {found}. Give the store "
                f"`wakeups=NatsBus(...)`, or give the hook its bus: remote({self.id!r}, bus=...)."
            )
        return wakeups

    async def _ask(self, call: Any) -> Call | Respond | Deny | Ask | None:
        if self._bus is None:
            raise HookUsageError(f"The remote hook {self.id!r} has no bus; give it one: remote({self.id!r}, bus=...).")
        return await ask_about(call, self._bus, self.id, deadline=self._deadline, secret=self._secret)


async def ask_about(
    call: Any, bus: Bus, name: str, *, deadline: float, secret: tuple[bytes, ...]
) -> Call | Respond | Deny | Ask | None:
    """Ask the processes that serve a name about a call, and return what a `before` hook of the call returns.

    Args:
        call: The call.
        bus: Carries the question.
        name: The name that is asked.
        deadline: Seconds until the answer must be there.
        secret: The secrets that sign; none for no signature.

    Raises:
        NobodyServesError: If no process serves the name.
        TimeoutError: If no answer came in time.
        BusAnswerError: If the answer is a failure, has no valid signature, or cannot be read.
    """
    question = HookQuestion(format=FORMAT, call=type(call).__name__, fields=encode_call(call))
    with count_decision(bus, name):
        answer = await ask_signed(bus, name, msgspec.json.encode(question), deadline=deadline, secret=secret)
        try:
            decision = msgspec.json.decode(answer, type=RemoteDecision)
            if decision.format != FORMAT:
                raise ValueError(f"its format is {decision.format}, and this process reads format {FORMAT}")
            made = _decision_about(call, decision)
        except (msgspec.MsgspecError, ValueError) as error:
            raise BusAnswerError(name, message_of(error)) from error
    call.metadata.setdefault(REVISIONS, {})[name] = decision.revision
    if decision.context and isinstance(call, ToolCall | AgentCall):
        call.add_context(decision.context)
    return made


async def ask_signed(bus: Bus, name: str, question: bytes, *, deadline: float, secret: tuple[bytes, ...]) -> bytes:
    """Ask a signed question, and return the answer.

    Args:
        bus: Carries the question.
        name: The name that is asked.
        question: The question, as JSON.
        deadline: Seconds until the answer must be there.
        secret: The secrets; none to ask without a signature.

    Raises:
        NobodyServesError: If no process serves the name.
        TimeoutError: If no answer came in time.
        BusAnswerError: If the answer is a failure, or has no valid signature.
    """
    if not secret:
        return await bus.ask(name, question, deadline=deadline)
    id = secrets.token_hex(16)  # noqa: A001
    answer = await bus.ask(name, sign(QUESTION, name, id, question, secret), deadline=deadline)
    try:
        return read_signed(ANSWER, name, answer, secret, id)[1]
    except HookUsageError as error:
        raise UnsignedAnswerError(name, str(error).rstrip(".")) from error


def remote(
    name: str,
    *,
    observes: bool = False,
    events: Sequence[type[Event]] | None = None,
    bus: Bus | None = None,
    calls: Sequence[type[Call]] | None = None,
    deadline: float = 2.0,
    on_error: OnError = "closed",
    tool: str | None = None,
    secret: Secret | None = None,
    priority: int = 100,
    tenant_id: str = "",
    inherit: bool = False,
    shadow: bool = False,
) -> Hooks:
    """Return hooks that another process runs: one that serves the name on the bus.

    With `observes=True`, the observers of that process hear every event of the run, in order, after the commit that
    stores it; a `hookline.relay.Relay` delivers them. The run needs an `SqlStore`, and no bus. A process that resumes
    or retries it need not pass the hooks again.

    Otherwise, the process decides about calls. The hook stands at `before` of each class of calls, and like a control
    webhook it also judges calls that a person has approved. The revision that judged a call is in
    `call.metadata["hookline.revisions"]`, by the name.

    Args:
        name: The name that is served: up to 63 letters, digits, `_` and `-`.
        observes: Whether the process hears the stored events of the run.
        events: With `observes=True`: the classes of the events that it hears; by default all.
        bus: Carries the questions. By default that of the store of the run: `SqlStore(url, wakeups=bus)`.
        calls: The classes of calls to ask about; by default those of tools, and none with `observes=True`.
        deadline: Seconds until the answer must be there, at most 3600.
        on_error: What happens to a call without a valid answer in time: `"closed"` denies it, `"open"` lets it run. It
            happens at once where nobody serves the name.
        tool: Glob over `toolset/tool_name`, as of `Hooks.before`.
        secret: Signs the questions, and must have signed the answers: a text of at least 24 characters that the serving
            processes know too, or several, newest first. An answer without a valid signature is none.
        priority: From 0 (outermost) to 1000.
        tenant_id: Only for calls of this tenant; `""` for every tenant.
        inherit: Whether sub-agents inherit the hooks.
        shadow: Whether decisions are only recorded.

    Raises:
        HookDefinitionError: If an argument is invalid. The run that is given remote observers without a store that
            keeps its events raises a `HookUsageError`.
    """
    where = f"Remote hook {quote(name)}"
    try:
        check_name(name)
        signing = check_secret(secret)
    except HookUsageError as error:
        raise HookDefinitionError(where, str(error)) from None
    if bus is not None and not isinstance(bus, Bus):
        raise HookDefinitionError(
            where, f"`bus` must be a NatsBus or another subclass of Bus; got {type(bus).__name__}"
        )
    if not isinstance(observes, bool):
        raise HookDefinitionError(where, f"`observes` must be True or False; got {quote(observes)}")
    heard = _check_events(events, where, observes=observes)
    if calls is None:
        calls = () if observes else (ToolCall,)
    if not isinstance(calls, tuple | list) or not (calls or observes):
        raise HookDefinitionError(where, f"`calls` must be classes of calls, such as (ToolCall,); got {quote(calls)}")
    is_number = isinstance(deadline, int | float) and not isinstance(deadline, bool)
    if not is_number or not 0 < deadline <= 3600:
        raise HookDefinitionError(where, f"`deadline` must be seconds above 0, at most 3600; got {quote(deadline)}")
    if tool is not None and ToolCall not in calls:
        raise HookDefinitionError(where, "`tool` is only for calls of tools; leave it out")
    return RemoteHooks(
        name,
        bus,
        calls=tuple(calls),
        deadline=deadline,
        on_error=on_error,
        tool=tool,
        observes=observes,
        events=heard,
        secret=signing,
        priority=priority,
        tenant_id=tenant_id,
        inherit=inherit,
        shadow=shadow,
    )


def _check_events(events: object, where: str, *, observes: bool) -> list[str]:
    """Return the wire names of classes of events; none for all.

    Raises:
        HookDefinitionError: If it is no list of such classes, or nobody observes.
    """
    if events is None:
        return []
    if not observes:
        raise HookDefinitionError(where, "`events` is only for observers; set `observes=True`, or leave it out")
    given = list(events) if isinstance(events, tuple | list) else []
    if not given or not all(each in EVENTS.values() for each in given):
        problem = f"`events` must be classes of events, such as (AfterToolCall,); got {quote(events)}"
        raise HookDefinitionError(where, problem)
    return list(dict.fromkeys(each.hook_type.value for each in given))


def serve(
    bus: Bus,
    hooks: Hooks | Iterable[AnyHook],
    *,
    name: str | None = None,
    revision: str = "",
    secret: Secret | None = None,
    where: EventFilter | None = None,
    tries: int = 5,
) -> AbstractAsyncContextManager[str]:
    """Decide about calls of runs in other processes, and observe these runs, while the context is open.

    Any number of processes can serve one name. Each question goes to one of them, and so does each commit; commits of
    an operation are heard in order, each at least once: see `heard_event_id`. An observer that fails is called again
    with the same event; after `tries` the event becomes a dead letter of the store, and the next event follows. When
    the context ends, nothing new comes, and what is under way is finished first.

    Args:
        bus: Carries the questions and the events.
        hooks: `before` and `guard` hooks, and observers: a bundle, or a list as `exec_agent` takes.
        name: The name; by default the id of the bundle.
        revision: The version of the hooks, which each decision carries.
        where: Only commits that match are heard.
        tries: How often an observer is called with an event at most.
        secret: Signs the answers, and must have signed the questions; that of `remote`. Other questions are refused.

    Returns:
        The name that is served, in `async with ... as name`.

    Raises:
        HookDefinitionError: If a hook is invalid.
        HookUsageError: If a hook cannot be served, or an argument is invalid.
    """
    if not isinstance(bus, Bus):
        raise HookUsageError(f"`bus` must be a NatsBus or another subclass of Bus; got {type(bus).__name__}.")
    return bus.serve(hooks, name=name, revision=revision, secret=secret, where=where, tries=tries)


def _decision_about(call: Any, told: RemoteDecision) -> Call | Respond | Deny | Ask | None:
    """Return what a `before` hook of a call returns to make a decision.

    Raises:
        ValueError: If the decision contradicts itself.
        msgspec.ValidationError: If the changed call or the result is invalid.
    """
    for name, given, wanted in (
        ("fields", told.fields is not msgspec.UNSET, "change"),
        ("result", told.result is not msgspec.UNSET, "answer"),
    ):
        if given is not (told.decision == wanted):
            raise ValueError(f"`{name}` goes with the decision {wanted!r} and no other; got {told.decision!r}")
    if told.stop and told.decision != "deny":
        raise ValueError(f"`stop` goes with the decision 'deny' and no other; got {told.decision!r}")
    if told.decision == "deny":
        return Deny(told.reason or "Denied by a remote hook.", stop=told.stop)
    if told.decision == "ask":
        return Ask(told.reason or "A remote hook wants a person to decide.")
    if told.result is not msgspec.UNSET:
        return Respond(msgspec.json.decode(told.result, type=CALLS[type(call)]))
    if told.fields is not msgspec.UNSET:
        changed = msgspec.json.decode(told.fields, type=type(call))
        return msgspec.structs.replace(changed, metadata=call.metadata)  # type: ignore[no-any-return]
    return None
