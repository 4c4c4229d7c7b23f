"""Budgets across runs: the amounts, the `BudgetStore` protocol, and `InMemoryBudgets`, which counts for one process.

An amount is reserved before a call and settled after it, and counted in windows of time. `SqlStore` counts in its
database, for all processes.
"""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import ROUND_CEILING, Decimal
from hashlib import sha256
from typing import Literal, Protocol, Self, TypeAlias, runtime_checkable
from zoneinfo import ZoneInfo

import msgspec

from hookline.errors import HookUsageError

__all__ = [
    "AMOUNTS",
    "Amounts",
    "BudgetChange",
    "BudgetFigures",
    "BudgetPer",
    "BudgetRequest",
    "BudgetScope",
    "BudgetState",
    "BudgetStore",
    "BudgetWindow",
    "InMemoryBudgets",
    "Reservation",
    "Settlement",
    "find_window",
    "format_amounts",
    "load_zone",
    "make_window_id",
    "to_nano_usd",
]

BudgetPer: TypeAlias = Literal["operation", "user", "tenant", "agent", "tool"]
"""Whose calls a budget counts together; always those of one tenant."""
BudgetWindow: TypeAlias = Literal["1h", "1d", "month"]
"""The time for which a budget holds: an hour, a day or a month of the clock and calendar of a time zone."""

BudgetState: TypeAlias = Literal["open", "nearly used up", "used up", "closed", "ended"]
"""How a window stands; `"closed"` after an overrun."""

NANO = 10**9


class Amounts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Amounts that a budget limits, reserves or counts. They are whole numbers, so that sums are exact.

    Attributes:
        nano_usd: Cost in billionths of a US dollar.
        tokens: Input and output tokens together.
        calls: Tool calls.
    """

    nano_usd: int = 0
    tokens: int = 0
    calls: int = 0

    def __add__(self, other: Self) -> "Amounts":
        return Amounts(
            nano_usd=self.nano_usd + other.nano_usd, tokens=self.tokens + other.tokens, calls=self.calls + other.calls
        )

    def __sub__(self, other: Self) -> "Amounts":
        return Amounts(
            nano_usd=self.nano_usd - other.nano_usd, tokens=self.tokens - other.tokens, calls=self.calls - other.calls
        )

    def __bool__(self) -> bool:
        return bool(self.nano_usd or self.tokens or self.calls)

    def beyond(self, other: Self) -> "Amounts":
        """Return by how much these amounts exceed others, and 0 where they do not."""
        return Amounts(
            nano_usd=max(0, self.nano_usd - other.nano_usd),
            tokens=max(0, self.tokens - other.tokens),
            calls=max(0, self.calls - other.calls),
        )

    def fit(self, limits: Self) -> bool:
        """Return whether none of the amounts exceeds its limit; a limit of 0 is none."""
        pairs = ((getattr(self, name), getattr(limits, name)) for name in AMOUNTS)
        return all(amount <= limit for amount, limit in pairs if limit)

    def reach(self, share: float, limits: Self) -> bool:
        """Return whether one of the amounts has reached a share of its limit."""
        pairs = ((getattr(self, name), getattr(limits, name)) for name in AMOUNTS)
        return any(amount >= share * limit for amount, limit in pairs if limit)


AMOUNTS: tuple[str, ...] = Amounts.__struct_fields__
"""The names of the amounts."""
NOTHING = Amounts()


def to_nano_usd(usd: float) -> int:
    """Convert US dollars to billionths, rounded up."""
    return int((Decimal(str(usd)) * NANO).to_integral_value(ROUND_CEILING))


def format_amounts(amounts: Amounts, limits: Amounts) -> str:
    """Return those amounts as text that have a limit, such as `"$0.50 and 200 tokens"`."""
    parts = []
    if limits.nano_usd:
        usd = amounts.nano_usd / NANO
        parts.append(f"${usd:,.2f}" if amounts.nano_usd % (NANO // 100) == 0 else f"${usd:.6g}")
    if limits.tokens:
        parts.append(f"{amounts.tokens:,} token{'' if amounts.tokens == 1 else 's'}")
    if limits.calls:
        parts.append(f"{amounts.calls:,} call{'' if amounts.calls == 1 else 's'}")
    return " and ".join(parts)


class BudgetScope(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The calls that a budget counts together.

    Attributes:
        tenant_id: The tenant.
        budget_id: The id of the budget; budgets with the same id share their counts.
        per: What `key` names.
        key: The operation, user, tenant, agent or tool; empty for runs that name none.
    """

    tenant_id: str = ""
    budget_id: str
    per: BudgetPer
    key: str = ""


class BudgetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation that a call asks for before it runs.

    Attributes:
        id: Id of the reservation, unique for each call: asking again with the same id reserves nothing more.
        scope: Whose calls it is counted with.
        window: The window of time; `None` for all time.
        zone: The name of the time zone of the window.
        limits: The limits of the window; 0 for no limit.
        amounts: The most that the call can take.
        lease_seconds: Seconds after which the reservation counts as used in full, unless it is settled.
        warn_at: The share of a limit at which the window warns once; `None` for no warning.
        beyond: Whether a person has allowed the call to exceed the limits.
        operation_id: The run that makes the call.
    """

    id: str
    scope: BudgetScope
    window: BudgetWindow | None = None
    zone: str = "UTC"
    limits: Amounts
    amounts: Amounts
    lease_seconds: float = 900.0
    warn_at: float | None = None
    beyond: bool = False
    operation_id: str = ""


class BudgetFigures(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The counts of a budget for one key in one window.

    In every window, `used + reserved` is at most `limits + overrun + allowed`.

    Attributes:
        id: Id of the window.
        scope: Whose calls it counts.
        window: The kind of window; `None` for all time.
        start: When it starts, in unix seconds.
        end: When it ends, in unix seconds; `None` if it does not end.
        limits: The limits at the last reservation; 0 for no limit.
        used: What settled calls took, and what calls reserved that were never settled.
        reserved: What running calls have reserved.
        overrun: By how much calls took more than they had reserved.
        allowed: What was reserved beyond the limits since a person allowed it.
        closed: Whether no further call may reserve, after an overrun.
        warned: Whether the window has warned.
        updated_at: When the counts last changed, in unix seconds.
    """

    id: str
    scope: BudgetScope
    window: BudgetWindow | None = None
    start: float = 0.0
    end: float | None = None
    limits: Amounts = NOTHING
    used: Amounts = NOTHING
    reserved: Amounts = NOTHING
    overrun: Amounts = NOTHING
    allowed: Amounts = NOTHING
    closed: bool = False
    warned: bool = False
    updated_at: float = 0.0

    @property
    def share(self) -> float:
        """The largest share of a limit that is used or reserved; above 1 beyond it."""
        taken = self.used + self.reserved
        pairs = ((getattr(taken, name), getattr(self.limits, name)) for name in AMOUNTS)
        return max((amount / limit for amount, limit in pairs if limit), default=0.0)

    def state(self, now: float) -> "BudgetState":
        """Return how the window stands.

        Args:
            now: The present time, in unix seconds.
        """
        if self.end is not None and self.end <= now:
            return "ended"
        if self.closed:
            return "closed"
        if self.share >= 1:
            return "used up"
        return "nearly used up" if self.warned else "open"


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a `BudgetRequest`.

    Attributes:
        granted: Whether the amounts are reserved.
        warns: Whether this reservation is the first to reach the share at which the window warns.
        figures: The counts after it.
    """

    granted: bool
    warns: bool = False
    figures: BudgetFigures


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """The change that settling a reservation has made.

    Attributes:
        used: What the call took.
        overrun: By how much it took more than it had reserved.
        figures: The counts after it.
    """

    used: Amounts
    overrun: Amounts
    figures: BudgetFigures


class BudgetChange(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a budget, sent by the signal `budget_changed`.

    Attributes:
        kind: `"warned"`: it has reached the share at which it warns. `"denied"`: it denied a call. `"asked"`: a person
            is asked. `"settled"`: a call was settled. `"overrun"`: a call took more than it had reserved.
        amounts: What the call reserves (`"warned"`, `"denied"`, `"asked"`), what it took (`"settled"`), or by how much
            it exceeded its reservation (`"overrun"`).
        figures: The counts.
        operation_id: The run.
    """

    kind: Literal["warned", "denied", "asked", "settled", "overrun"]
    amounts: Amounts
    figures: BudgetFigures
    operation_id: str = ""


@runtime_checkable
class BudgetStore(Protocol):
    """Keeps the counts of budgets. Each method is atomic, also among processes that share the store."""

    async def reserve_budget(self, request: BudgetRequest) -> Reservation:
        """Reserve amounts if the window has that much left, and is not closed.

        A request for no amounts reserves nothing: it only reads the counts.

        Raises:
            StoreUnavailableError: If the store cannot be reached.
        """
        ...

    async def settle_budget(self, reservation_id: str, used: Amounts | None = None) -> Settlement | None:
        """Replace a reservation by what the call took; after its lease too, and never twice.

        Args:
            reservation_id: The reservation.
            used: What the call took; `None` to count all that it reserved.

        Returns:
            What changed; `None` if there is no such reservation, because it was settled or never made.

        Raises:
            StoreUnavailableError: If the store cannot be reached.
        """
        ...

    async def budgets(
        self, *, tenant_id: str | None = None, budget_id: str | None = None, open_only: bool = False, limit: int = 100
    ) -> list[BudgetFigures]:
        """Read the counts of windows, those that changed last first.

        Args:
            tenant_id: Only windows of this tenant.
            budget_id: Only windows of this budget.
            open_only: Only windows that have not ended.
            limit: Number of windows at most.

        Raises:
            StoreUnavailableError: If the store cannot be reached.
        """
        ...

    async def budget_figures(self, window_id: str) -> BudgetFigures | None:
        """Read the counts of one window; `None` if there is no such window.

        Raises:
            StoreUnavailableError: If the store cannot be reached.
        """
        ...

    async def reset_budget(self, window_id: str) -> BudgetFigures | None:
        """Start the counts of a window again, and open it. Calls that are running keep their reservations.

        Returns:
            The counts before; `None` if there is no such window.

        Raises:
            StoreUnavailableError: If the store cannot be reached.
        """
        ...


def load_zone(name: str) -> tzinfo:
    """Return the time zone of a name.

    Raises:
        HookUsageError: If there is none.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError, TypeError):
        raise HookUsageError(
            f"There is no time zone {name!r:.100} on this machine; name one such as 'Europe/Berlin'."
        ) from None


def find_window(window: BudgetWindow | None, zone: tzinfo, now: float) -> tuple[float, float | None]:
    """Return the start and the end, in unix seconds, of the window that a time lies in.

    A day or month starts at midnight, or at the first moment of a day without midnight; a day with a change of the
    clock has 23 or 25 hours. Each of two hours with the same name is a window of its own.

    Args:
        window: The kind of window; `None` for all time.
        zone: The time zone.
        now: The time, in unix seconds.
    """
    if window is None:
        return 0.0, None
    local = datetime.fromtimestamp(math.floor(now), zone)  # which rounds to microseconds, and so into the next day
    if window == "1h":
        offset = (local.utcoffset() or timedelta()).total_seconds()
        start = math.floor((now + offset) / 3600) * 3600 - offset
        return start, start + 3600
    first = local.date() if window == "1d" else local.date().replace(day=1)
    following = first + timedelta(days=1 if window == "1d" else 32)
    last = following if window == "1d" else following.replace(day=1)
    return _start_of(first, zone), _start_of(last, zone)


def _start_of(day: date, zone: tzinfo) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()


def make_window_id(scope: BudgetScope, window: BudgetWindow | None, start: float) -> str:
    """Return the id of a window: 20 hex digits, the same in every process."""
    parts = scope.tenant_id, scope.budget_id, scope.per, scope.key, window, int(start)
    return sha256(repr(parts).encode(errors="surrogatepass")).hexdigest()[:20]


class _Reserved(msgspec.Struct):
    window_id: str
    amounts: Amounts
    lease_until: float


MOST_WINDOWS = 100_000


class InMemoryBudgets:
    """Keeps the counts of budgets in this process.

    Counts are kept by window, so that a clock that jumps back finds the counts of the earlier window again. Of more
    than 100,000 windows, those that changed longest ago are dropped.

    Args:
        clock: Returns the time in unix seconds.
        announces: Whether hooks announce and log what happens to these counts; not where a budget is only tried.
    """

    def __init__(self, clock: Callable[[], float] = time.time, *, announces: bool = True) -> None:
        self.announces = announces
        self._clock = clock
        self._lock = threading.Lock()
        self._windows: OrderedDict[str, BudgetFigures] = OrderedDict()
        self._reserved: dict[str, _Reserved] = {}

    async def reserve_budget(self, request: BudgetRequest) -> Reservation:
        """See `BudgetStore`."""
        with self._lock:
            now = self._clock()
            start, end = find_window(request.window, load_zone(request.zone), now)
            window_id = make_window_id(request.scope, request.window, start)
            found = self._windows.get(window_id) or BudgetFigures(
                id=window_id, scope=request.scope, window=request.window, start=start, end=end
            )
            if request.id in self._reserved:
                return Reservation(granted=True, figures=self._show(found, now))
            if not request.amounts:
                return Reservation(granted=not found.closed, figures=self._show(found, now))
            total = found.used + found.reserved + request.amounts
            if not request.beyond and (found.closed or not total.fit(request.limits)):
                shown = self._show(msgspec.structs.replace(found, limits=request.limits), now)
                return Reservation(granted=False, figures=shown)
            warns = request.warn_at is not None and not found.warned and total.reach(request.warn_at, request.limits)
            figures = msgspec.structs.replace(
                found,
                limits=request.limits,
                reserved=found.reserved + request.amounts,
                allowed=found.allowed + request.amounts if request.beyond else found.allowed,
                warned=found.warned or warns,
                updated_at=now,
            )
            self._keep(figures)
            self._reserved[request.id] = _Reserved(window_id, request.amounts, now + request.lease_seconds)
            return Reservation(granted=True, warns=warns, figures=self._show(figures, now))

    async def settle_budget(self, reservation_id: str, used: Amounts | None = None) -> Settlement | None:
        """See `BudgetStore`."""
        with self._lock:
            reserved = self._reserved.pop(reservation_id, None)
            found = None if reserved is None else self._windows.get(reserved.window_id)
            if reserved is None or found is None:
                return None
            now = self._clock()
            took = reserved.amounts if used is None else used
            overrun = took.beyond(reserved.amounts)
            figures = msgspec.structs.replace(
                found,
                used=found.used + took,
                reserved=found.reserved - reserved.amounts,
                overrun=found.overrun + overrun,
                closed=found.closed or bool(overrun),
                updated_at=now,
            )
            self._keep(figures)
            return Settlement(used=took, overrun=overrun, figures=self._show(figures, now))

    async def budgets(
        self, *, tenant_id: str | None = None, budget_id: str | None = None, open_only: bool = False, limit: int = 100
    ) -> list[BudgetFigures]:
        """See `BudgetStore`."""
        with self._lock:
            now = self._clock()
            found = [
                self._show(each, now)
                for each in reversed(self._windows.values())
                if (tenant_id is None or each.scope.tenant_id == tenant_id)
                and (budget_id is None or each.scope.budget_id == budget_id)
                and not (open_only and each.end is not None and each.end <= now)
            ]
            return found[:limit]

    async def budget_figures(self, window_id: str) -> BudgetFigures | None:
        """See `BudgetStore`."""
        with self._lock:
            found = self._windows.get(window_id)
            return None if found is None else self._show(found, self._clock())

    async def reset_budget(self, window_id: str) -> BudgetFigures | None:
        """See `BudgetStore`."""
        with self._lock:
            found = self._windows.get(window_id)
            if found is None:
                return None
            now = self._clock()
            before = self._show(found, now)
            for name in [name for name, each in self._expired(window_id, now)]:
                del self._reserved[name]
            self._keep(
                msgspec.structs.replace(
                    found,
                    used=NOTHING,
                    reserved=before.reserved,
                    overrun=NOTHING,
                    allowed=before.reserved.beyond(before.limits),
                    closed=False,
                    warned=False,
                    updated_at=now,
                )
            )
            return before

    def _keep(self, figures: BudgetFigures) -> None:
        self._windows[figures.id] = figures
        self._windows.move_to_end(figures.id)
        if len(self._windows) > MOST_WINDOWS:
            dropped, _ = self._windows.popitem(last=False)
            for name in [name for name, each in self._reserved.items() if each.window_id == dropped]:
                del self._reserved[name]

    def _expired(self, window_id: str, now: float) -> list[tuple[str, _Reserved]]:
        return [
            (name, each)
            for name, each in self._reserved.items()
            if each.window_id == window_id and each.lease_until <= now
        ]

    def _show(self, figures: BudgetFigures, now: float) -> BudgetFigures:
        """Return figures in which reservations count as used once their lease has ended."""
        expired = sum((each.amounts for _, each in self._expired(figures.id, now)), NOTHING)
        if not expired:
            return figures
        return msgspec.structs.replace(figures, used=figures.used + expired, reserved=figures.reserved - expired)
