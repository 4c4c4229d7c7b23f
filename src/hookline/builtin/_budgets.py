"""Limit what runs spend together: a call reserves its ceiling in a `BudgetStore`, and is settled when it has ended."""

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, TypeAlias, get_args
from uuid import uuid4

import anyio
import msgspec

from hookline import signals
from hookline.budgets import (
    Amounts,
    BudgetChange,
    BudgetFigures,
    BudgetPer,
    BudgetRequest,
    BudgetScope,
    BudgetStore,
    BudgetWindow,
    InMemoryBudgets,
    Reservation,
    Settlement,
    format_amounts,
    load_zone,
    to_nano_usd,
)
from hookline.builtin._tools import AnyToolCall, Globs, PerOperation, check_number, name_of
from hookline.calls import Ask, Call, Deny, ModelCall, ModelResponse, SubAgentCall, ToolCall, Usage
from hookline.errors import HookDefinitionError, HookDenied, HookUsageError, StoreUnavailableError
from hookline.events import BeforeStep, OnComplete
from hookline.hooks import Hooks, OnError, meets_approved
from hookline.interceptors import cut_answer

__all__ = ["BudgetTerms", "OnLimit", "add_budget", "check_terms", "most_input_tokens", "price_of"]

logger = logging.getLogger("hookline")

OnLimit: TypeAlias = Literal["deny", "stop", "ask"]
"""What a budget does with a call that has no room left: deny it, end the run, or ask a person about a tool call."""

SETTLING = 10.0
"""Seconds that settling may take at most when the run is cancelled meanwhile."""
MOST_UNSETTLED = 100_000
OUTPUT_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""The settings of a model call that limit its output, by the names of the providers."""
LARGEST_USD, LARGEST_COUNT = 1_000_000, 10**15


class BudgetTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of a budget, as `budget` takes them.

    Attributes:
        limits: The limits; 0 for none.
        per: Whose calls are counted together.
        window: The window; `None` for all time.
        zone: The time zone of the window.
        tool: Glob of the tools whose calls are counted.
        reserve: What a model call reserves; 0 for the ceiling of the call itself.
        warn_at: The share of a limit at which a window warns once.
        on_limit: What happens to a call that has no room left.
        on_error: What happens to a call while the store cannot be reached.
        lease_seconds: Seconds after which a reservation counts in full.
    """

    limits: Amounts
    per: BudgetPer
    window: BudgetWindow | None
    zone: str
    tool: str
    reserve: Amounts
    warn_at: float | None
    on_limit: OnLimit
    on_error: OnError
    lease_seconds: float


def check_terms(
    *,
    cost_usd: float | None,
    tokens: int | None,
    calls: int | None,
    per: BudgetPer | None,
    window: BudgetWindow | None,
    zone: str,
    tool: str,
    reserve_usd: float | None,
    reserve_tokens: int | None,
    warn_at: float | None,
    on_limit: OnLimit,
    on_error: OnError,
    lease_seconds: float,
) -> BudgetTerms:
    """Check the arguments of `budget`.

    Raises:
        HookDefinitionError: If one is invalid, or the ceiling of its calls cannot be known.
    """
    limits = {"cost_usd": cost_usd, "tokens": tokens, "calls": calls}
    if all(limit is None for limit in limits.values()):
        raise _invalid("pass `cost_usd`, `tokens` or `calls`")
    if per is None:
        raise _invalid(f"say whose calls it counts together: `per` must be {_one_of(get_args(BudgetPer))}")
    _check_choice("per", per, get_args(BudgetPer))
    if window is not None:
        _check_choice("window", window, get_args(BudgetWindow))
    _check_choice("on_limit", on_limit, get_args(OnLimit))
    _check_choice("on_error", on_error, ("closed", "open"))
    for name, amount, whole in (
        ("cost_usd", cost_usd, False),
        ("tokens", tokens, True),
        ("calls", calls, True),
        ("reserve_usd", reserve_usd, False),
        ("reserve_tokens", reserve_tokens, True),
    ):
        if amount is not None:
            check_number("budget", name, amount, least=1 if whole else 0, whole=whole)
            if amount > (LARGEST_COUNT if whole else LARGEST_USD):
                raise _invalid(f"`{name}` can be {LARGEST_COUNT if whole else LARGEST_USD:,} at most; got {amount!r}")
    check_number("budget", "lease_seconds", lease_seconds)
    if warn_at is not None:
        check_number("budget", "warn_at", warn_at)
        if warn_at > 1:
            raise _invalid(f"`warn_at` is a share of the limit, such as 0.8; got {warn_at!r}")
    if per == "tool" and (cost_usd is not None or tokens is not None):
        raise _invalid("tools have no known cost or tokens: with per='tool', pass `calls` alone")
    if tool != "*" and calls is None:
        raise _invalid("`tool` says which tools `calls` counts: pass `calls`, or leave it out")
    Globs("budget", (tool,))
    for limit, reserve in (("cost_usd", "reserve_usd"), ("tokens", "reserve_tokens")):
        most, ceiling = limits[limit], reserve_usd if reserve == "reserve_usd" else reserve_tokens
        if ceiling is not None and most is None:
            raise _invalid(f"`{reserve}` goes with `{limit}`: pass both, or leave it out")
        if ceiling is not None and most is not None and ceiling > most:
            raise _invalid(f"no call fits: each reserves {ceiling!r} of the {most!r} that `{limit}` allows")
    if cost_usd is not None and reserve_usd is None and find_spec("genai_prices") is None:
        raise _invalid(
            "the ceiling of a call cannot be known without prices: pass `reserve_usd`, or install `hookline[models]`"
        )
    try:
        load_zone(zone)
    except HookUsageError as error:
        raise _invalid(str(error)) from None
    return BudgetTerms(
        limits=Amounts(nano_usd=to_nano_usd(cost_usd or 0), tokens=tokens or 0, calls=calls or 0),
        per=per,
        window=window,
        zone=zone,
        tool=tool,
        reserve=Amounts(nano_usd=to_nano_usd(reserve_usd or 0), tokens=reserve_tokens or 0),
        warn_at=warn_at,
        on_limit=on_limit,
        on_error=on_error,
        lease_seconds=lease_seconds,
    )


def _invalid(problem: str) -> HookDefinitionError:
    return HookDefinitionError("budget", problem)


def _check_choice(name: str, given: object, known: tuple[str, ...]) -> None:
    if given not in known:
        raise _invalid(f"`{name}` must be {_one_of(known)}; got {given!r:.100}")


def _one_of(names: tuple[str, ...]) -> str:
    *first, last = map(repr, names)
    return f"{', '.join(first)} or {last}"


def add_budget(hooks: Hooks, terms: BudgetTerms, store: BudgetStore | None) -> Hooks:
    """Add the hooks of a budget to an empty bundle.

    Raises:
        HookDefinitionError: If the store cannot keep budgets.
    """
    if store is not None and not isinstance(store, BudgetStore):
        raise _invalid(f"`store` must be a SqlStore or another BudgetStore; got {type(store).__name__}")
    keeper = _Budget(hooks.id, terms, InMemoryBudgets() if store is None else store)
    if terms.per == "operation":
        hooks.on(BeforeStep, id=hooks.id)(keeper.note_parent)
        keeper.roots.drop_on_complete(hooks)
    if terms.limits.nano_usd or terms.limits.tokens:
        hooks.guard(ModelCall, id=hooks.id, on_error=terms.on_error)(keeper.reserve_for_model)
        hooks.around(ModelCall, id=hooks.id, timeout=math.inf, hold_text=False)(keeper.settle_model)
        # Inside of the `around`, and innermost, so that it also sees answers that other hooks withhold.
        hooks.after(ModelCall, id=hooks.id, priority=1000, hold_text=False)(keeper.note_usage)
        if terms.on_limit == "ask":
            keeper.model_calls.drop_on_complete(hooks)
            hooks.guard(ToolCall, id=hooks.id, on_error=terms.on_error)(keeper.ask_before_tool)
    if terms.limits.calls:
        hooks.guard(ToolCall, id=hooks.id, on_error=terms.on_error)(keeper.reserve_for_tool)
        hooks.guard(SubAgentCall, id=hooks.id, on_error=terms.on_error)(keeper.reserve_for_tool)
        hooks.around(ToolCall, id=hooks.id, timeout=math.inf)(keeper.settle_tool)
        hooks.around(SubAgentCall, id=hooks.id, timeout=math.inf)(keeper.settle_tool)
    hooks.on(OnComplete, id=hooks.id)(keeper.settle_late)
    hooks.interceptors = tuple(
        meets_approved(each) if each.kind == "around" and each.call is ToolCall else each for each in hooks.interceptors
    )
    return hooks


class _Made(NamedTuple):
    """A reservation that was made for a call."""

    id: str
    amounts: Amounts


class _Root:
    id = ""


class _ModelCalls:
    """The model calls of an operation.

    Attributes:
        ceiling: What the last one reserved.
        allowed: Whether a person has allowed the next one to exceed the limits.
    """

    ceiling = Amounts(nano_usd=1, tokens=1)
    allowed = False


class _Budget:
    """Reserves and settles the calls of one bundle.

    Args:
        id: The id of the bundle, under which the store counts.
        terms: The terms.
        store: Keeps the counts.
    """

    def __init__(self, id: str, terms: BudgetTerms, store: BudgetStore) -> None:  # noqa: A002
        self.id, self.terms, self.store = id, terms, store
        self.announces = not isinstance(store, InMemoryBudgets) or store.announces
        self.counted = Globs("budget", (terms.tool,))
        self.roots: PerOperation[_Root] = PerOperation(_Root)
        self.model_calls: PerOperation[_ModelCalls] = PerOperation(_ModelCalls)
        mark = f"hookline.budget.{id}"
        self.model_mark, self.tool_mark, self.usage_mark = f"{mark}.model", f"{mark}.tool", f"{mark}.usage"
        self.asked_for_tool, self.asked_for_model = f"{mark}.asked", f"{mark}.asked_model"
        self.unsettled: deque[tuple[str, Amounts | None, str]] = deque(maxlen=MOST_UNSETTLED)

    def note_parent(self, event: BeforeStep) -> None:
        """Let a sub-agent count with the run that called it."""
        self._root_of(event.operation_id, event.parent_operation_id)

    async def reserve_for_model(self, call: ModelCall) -> Deny | None:
        """Reserve the ceiling of a model call."""
        try:
            ceiling = self._ceiling_of(call)
        except HookDefinitionError as error:
            return Deny(f"the budget {self.id!r} cannot tell what this call may take: {error.problem}")
        allowed = False
        if self.terms.on_limit == "ask":
            with self.model_calls.lock:
                calls = self.model_calls.of(call.operation_id)
                allowed, calls.allowed, calls.ceiling = calls.allowed, False, ceiling
        verdict = await self._reserve(call, ceiling, self.model_mark, allowed=allowed)
        return verdict if isinstance(verdict, Deny) else None

    async def ask_before_tool(self, call: ToolCall) -> Ask | None:
        """Ask a person before a tool call if the model call that follows on it would not fit."""
        with self.model_calls.lock:
            calls = self.model_calls.of(call.operation_id)
            if call.metadata.get(self.asked_for_model):  # judged again, so a person has approved it
                calls.allowed = True
            allowed, ceiling = calls.allowed, calls.ceiling
        if allowed:
            return None
        reading = await self.store.reserve_budget(self._request(call, Amounts()))
        figures = reading.figures
        if reading.granted and (figures.used + figures.reserved + ceiling).fit(self.terms.limits):
            return None
        call.metadata[self.asked_for_model] = True
        self._announce("asked", ceiling, figures, call.operation_id)
        return Ask(f"{self._describe(figures)}. May the run go on, with one more model call beyond the budget?")

    async def reserve_for_tool(self, call: AnyToolCall) -> Deny | Ask | None:
        """Count a tool call."""
        if self.counted.match(*name_of(call)) is None:
            return None
        allowed = bool(call.metadata.get(self.asked_for_tool))  # judged again, so a person has approved it
        verdict = await self._reserve(call, Amounts(calls=1), self.tool_mark, allowed=allowed)
        if isinstance(verdict, Ask):
            call.metadata[self.asked_for_tool] = True
        return verdict

    async def _reserve(self, call: Any, amounts: Amounts, mark: str, *, allowed: bool) -> Deny | Ask | None:
        """Reserve amounts, and note the reservation in the call.

        Args:
            call: The call.
            amounts: The most that it can take.
            mark: The key of the call's metadata for the reservation.
            allowed: Whether a person has allowed it to exceed the limits.

        Raises:
            StoreUnavailableError: If the store cannot be reached; the `on_error` of the guard decides then.
        """
        await self._settle_unsettled()
        request = self._request(call, amounts)
        reservation = await self.store.reserve_budget(request)
        if not reservation.granted and allowed:
            reservation = await self.store.reserve_budget(msgspec.structs.replace(request, beyond=True))
        if not reservation.granted:
            return self._refuse(call, amounts, reservation)
        call.metadata[mark] = _Made(request.id, amounts)
        if reservation.warns and self.announces:
            logger.warning("%s", self._describe(reservation.figures))
            self._announce("warned", amounts, reservation.figures, call.operation_id)
        return None

    def _refuse(self, call: Any, amounts: Amounts, reservation: Reservation) -> Deny | Ask:
        figures = reservation.figures
        reason = f"{self._describe(figures)}; this call reserves {format_amounts(amounts, self.terms.limits)}"
        if self.terms.on_limit == "ask" and isinstance(call, ToolCall):
            self._announce("asked", amounts, figures, call.operation_id)
            return Ask(f"{reason}. May it be made, beyond the budget?")
        self._announce("denied", amounts, figures, call.operation_id)
        return Deny(reason, stop=self.terms.on_limit == "stop")

    def note_usage(self, call: ModelCall, response: ModelResponse) -> None:
        """Note what a model call took, before other hooks see the answer."""
        made: _Made | None = call.metadata.get(self.model_mark)
        if made is not None:
            call.metadata[self.usage_mark] = self._amounts_of(response, call.model, made.amounts)

    async def settle_model(self, call: ModelCall, call_next: Callable[[ModelCall], Awaitable[Any]]) -> Any:
        """Settle a model call with what it took: in full if it failed or was cancelled, and nobody knows."""
        try:
            return await call_next(call)
        except HookDenied:
            cut = cut_answer(call)
            if cut is not None:
                self.note_usage(call, cut)
            else:
                call.metadata.setdefault(self.usage_mark, Amounts())  # no model was called
            raise
        finally:
            await self._settle(call, self.model_mark, call.metadata.pop(self.usage_mark, None))

    async def settle_tool(self, call: AnyToolCall, call_next: Callable[[AnyToolCall], Awaitable[Any]]) -> Any:
        """Settle a tool call: it counts, unless another hook denied it or has a person asked."""
        used: Amounts | None = None
        try:
            return await call_next(call)
        except HookDenied:
            used = Amounts()
            raise
        finally:
            await self._settle(call, self.tool_mark, used)

    async def settle_late(self, event: OnComplete) -> None:
        """Settle what could not be settled while the store was away."""
        await self._settle_unsettled()

    async def _settle(self, call: Any, mark: str, used: Amounts | None) -> None:
        made: _Made | None = call.metadata.pop(mark, None)
        if made is None:
            return
        self.unsettled.append((made.id, used, call.operation_id))
        # A cancelled run settles too. If that takes too long, the next call does it, or the lease ends.
        with anyio.move_on_after(SETTLING, shield=True):
            await self._settle_unsettled()

    async def _settle_unsettled(self) -> None:
        """Settle all that waits for it, oldest first, until the store cannot be reached."""
        while self.unsettled:
            reservation_id, used, operation_id = waiting = self.unsettled.popleft()
            settled = False
            try:
                settlement = await self.store.settle_budget(reservation_id, used)
                settled = True
            except StoreUnavailableError as error:
                logger.warning("Budget %r settles a call later, as its store cannot be reached: %s", self.id, error)
                return
            finally:
                if not settled:
                    self.unsettled.appendleft(waiting)
            if settlement is not None and self.announces:
                self._report(settlement, operation_id)

    def _report(self, settlement: Settlement, operation_id: str) -> None:
        figures, overrun = settlement.figures, settlement.overrun
        self._announce("settled", settlement.used, figures, operation_id)
        if overrun:
            self._announce("overrun", overrun, figures, operation_id)
            more = format_amounts(overrun, overrun)
            described = self._describe(figures)
            logger.warning("Operation %s took %s more than it had reserved: %s", operation_id, more, described)

    def _request(self, call: Any, amounts: Amounts) -> BudgetRequest:
        terms = self.terms
        return BudgetRequest(
            id=uuid4().hex,
            scope=BudgetScope(tenant_id=call.tenant_id, budget_id=self.id, per=terms.per, key=self._key_of(call)),
            window=terms.window,
            zone=terms.zone,
            limits=terms.limits,
            amounts=amounts,
            lease_seconds=terms.lease_seconds,
            warn_at=terms.warn_at,
            operation_id=call.operation_id,
        )

    def _key_of(self, call: Call) -> str:
        match self.terms.per:
            case "operation":
                return self._root_of(call.operation_id, call.parent_operation_id)
            case "user":
                return call.user_id
            case "tenant":
                return call.tenant_id
            case "agent":
                return call.agent_id
            case "tool":
                assert isinstance(call, ToolCall | SubAgentCall)
                return "/".join(name_of(call))

    def _root_of(self, operation_id: str, parent_operation_id: str | None) -> str:
        with self.roots.lock:
            root = self.roots.of(operation_id, like=parent_operation_id)
            root.id = root.id or parent_operation_id or operation_id
            return root.id

    def _ceiling_of(self, call: ModelCall) -> Amounts:
        """Return the most that a model call can take.

        Raises:
            HookDefinitionError: If it cannot be known; with how to give it.
        """
        terms = self.terms
        needs_usd = bool(terms.limits.nano_usd) and not terms.reserve.nano_usd
        needs_tokens = bool(terms.limits.tokens) and not terms.reserve.tokens
        nano_usd, tokens = terms.reserve.nano_usd, terms.reserve.tokens
        if needs_usd or needs_tokens:
            written = next((call.settings[name] for name in OUTPUT_LIMITS if call.settings.get(name)), None)
            missing = " and ".join(["`reserve_usd`"] * needs_usd + ["`reserve_tokens`"] * needs_tokens)
            if not isinstance(written, int) or isinstance(written, bool) or written < 1:
                raise _invalid(f"its settings have no `max_tokens`; set it, or give the budget {missing}")
            read = most_input_tokens(call)
            tokens = read + written if needs_tokens else tokens
            if needs_usd:
                cost = price_of(call.model, Usage(input_tokens=read, output_tokens=written))
                if cost is None:
                    raise _invalid(f"no price is known for the model {call.model!r}; give the budget `reserve_usd`")
                nano_usd = max(1, to_nano_usd(cost))  # so that a call of a free model is settled too
        return Amounts(nano_usd=nano_usd, tokens=tokens)

    def _amounts_of(self, response: ModelResponse, model: str, reserved: Amounts) -> Amounts | None:
        """Return what an answer took: for what it does not say, all that was reserved; `None` if it says nothing.

        An answer with tokens but without a cost, such as those of most frameworks, takes the price of its tokens.
        """
        usage: Usage = response.usage
        limits, tokens = self.terms.limits, usage.input_tokens + usage.output_tokens
        if not tokens and not usage.cost_usd:
            return None
        cost: float | None = usage.cost_usd
        if limits.nano_usd and not response.cost_known:
            cost = price_of(response.model or model, usage)
        nano_usd = reserved.nano_usd if cost is None else to_nano_usd(cost)
        return Amounts(
            nano_usd=nano_usd if limits.nano_usd else 0, tokens=(tokens or reserved.tokens) if limits.tokens else 0
        )

    def _describe(self, figures: BudgetFigures) -> str:
        scope, limits = figures.scope, self.terms.limits
        whose = {"tenant": "", "operation": "of this run"}.get(scope.per, f"of the {scope.per} {scope.key!r}")
        until = f"until {datetime.fromtimestamp(figures.end, UTC):%Y-%m-%d %H:%M} UTC" if figures.end else ""
        words = [f"the budget {self.id!r} {whose}".strip(), f"has {format_amounts(figures.used, limits)} used"]
        if figures.reserved:
            words.append(f"and {format_amounts(figures.reserved, limits)} reserved")
        text = " ".join([*words, f"of {format_amounts(limits, limits)}", until]).strip()
        return f"{text}, and is closed after an overrun" if figures.closed else text

    def _announce(self, kind: Any, amounts: Amounts, figures: BudgetFigures, operation_id: str) -> None:
        if self.announces and signals.budget_changed.receivers:
            change = BudgetChange(kind=kind, amounts=amounts, figures=figures, operation_id=operation_id)
            signals.announce(signals.budget_changed, self.store, change=change)


def most_input_tokens(call: ModelCall) -> int:
    """Return the most tokens that the text of a call can be: a token is at least one byte."""
    return len(msgspec.json.encode([call.messages, call.tools], enc_hook=str))


def price_of(model: str, usage: Usage) -> float | None:
    """Return what tokens of a model cost at most, in US dollars; `None` if its price is not known."""
    if not model or not (usage.input_tokens or usage.output_tokens):
        return None
    from hookline.loop import highest_cost_of  # not before it is needed: its price table is large

    return highest_cost_of(model, usage.input_tokens, usage.output_tokens)
