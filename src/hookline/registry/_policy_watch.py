"""`PolicyWatch`: watch the statistics of policies, put those beyond their limits into shadow mode, and raise alerts."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from hashlib import sha256
from math import erfc, exp, lgamma, log, sqrt
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import Select, func, literal_column, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import HookDefinitionError, HookUsageError, StoreUnavailableError, message_of
from hookline.events import HookType, OnError
from hookline.registry._definition import HookDefinition, ShadowLimits
from hookline.registry._policy_alerts import AlertKind, kind_of, write_alert
from hookline.registry._rows import open_change
from hookline.registry._snapshot import Snapshot
from hookline.registry._statistics import MINUTE
from hookline.signals import DenialRateAlert, FallbackAlert, announce, denial_rate_changed, fell_back_to_shadow
from hookline.store import (
    DELIVERIES,
    SqlStore,
    build_delivery_rows,
    insert_deliveries,
    policy_alerts,
    read_clock,
    statistics,
)
from hookline.webhooks import Envelope, HookData, Webhook, check_webhook

__all__ = ["FALLBACK_ACTOR", "AlertSettings", "PolicyWatch", "compare_shares", "find_breach"]

logger = logging.getLogger("hookline")

FALLBACK_ACTOR = "automatic fallback"
"""Who puts hooks into shadow mode that are beyond their limits, in the history and the audit log."""
CHECK_EVERY = 5.0
"""Seconds between two looks at the statistics."""
SETTLE = 30
"""Seconds after the end of a window until it is compared, since processes write their statistics a little later."""
UNSENT_SECONDS = 86_400
"""Seconds for which an alert waits for a process that has an address for alerts."""
MOST_IDS = 500
"""Ids of hooks in one query at most."""
CLOSING = 1.0
"""Seconds that a look may still take when the watch is closed."""


class AlertSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When a changed rate of denials raises an alert, and where alerts are sent.

    A shadow hook's share of denials in a window is compared with that in the window before. Give all processes on one
    store the same settings.

    Attributes:
        webhook: Where alerts are delivered, signed and retried like all deliveries; `None` sends none.
        window: Length of a window, in seconds: whole minutes, up to six hours.
        minimum: Number of calls that each of the two windows must have.
        significance: The probability at which a hook whose rate does not change raises a false alarm in one
            comparison, at most.
        least_change: The least difference of the two shares, 0 to 1, that raises an alert.

    Raises:
        HookUsageError: If a value is invalid.
    """

    webhook: Webhook | None = None
    window: int = 900
    minimum: int = 100
    significance: float = 0.0001
    least_change: float = 0.005

    def __post_init__(self) -> None:
        whole = isinstance(self.window, int) and not isinstance(self.window, bool)
        if not whole or not 60 <= self.window <= 21_600 or self.window % 60:
            raise HookUsageError(f"`window` of alerts must be whole minutes, 60 to 21600 seconds; got {self.window!r}.")
        if isinstance(self.minimum, bool) or not isinstance(self.minimum, int) or self.minimum < 1:
            raise HookUsageError(f"`minimum` of alerts must be a whole number above 0; got {self.minimum!r}.")
        for name, least in (("significance", False), ("least_change", True)):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not number or not (0 < value < 1 or (least and value == 0)):
                first = "0" if least else "above 0"
                raise HookUsageError(f"`{name}` of alerts must be a number from {first} to below 1; got {value!r}.")
        if self.webhook is not None:
            if self.webhook.control:
                raise HookUsageError("The webhook of alerts decides about no call; leave `control` out.")
            try:
                check_webhook(self.webhook, OnError, "alerts")
            except HookDefinitionError as error:
                raise HookUsageError(f"The webhook of alerts cannot be used: {error.problem}") from None


class HookCounts(msgspec.Struct, frozen=True):
    """What the statistics count of one revision of a hook.

    Attributes:
        count: Number of executions, those in shadow mode left out.
        failed: Number of those that failed.
        denied: Number of those that denied.
        shadow: Number of executions in shadow mode.
        shadow_denied: Number of those that would have denied.
    """

    count: int = 0
    failed: int = 0
    denied: int = 0
    shadow: int = 0
    shadow_denied: int = 0

    def plus(self, other: HookCounts) -> HookCounts:
        """Return the sums of both."""
        own, its = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return HookCounts(*(one + two for one, two in zip(own, its, strict=True)))


Place: TypeAlias = tuple[str, int]
"""Hook and revision."""
CountsByMinute: TypeAlias = dict[Place, dict[str, dict[int, HookCounts]]]
"""Counts by place, tenant, and start of the minute."""


def find_breach(limits: ShadowLimits, counts: HookCounts) -> tuple[str, float] | None:
    """Return the limit that a hook has passed, `"failures"` or `"denials"`, and its value; `None` if it has not."""
    if counts.count < limits.minimum:
        return None
    for name, limit, number in (
        ("failures", limits.failures, counts.failed),
        ("denials", limits.denials, counts.denied),
    ):
        if limit is not None and number / counts.count > limit:
            return name, limit
    return None


class _OvertakenError(Exception):
    """The definition was changed since its statistics were read."""


class PolicyWatch:
    """Watches the statistics of stored hooks in a task of its own; no run waits for it.

    Any number of processes may watch one store: what they find is written in one transaction, by one of them.

    Args:
        store: The store with the definitions and the statistics.
        snapshot: The known definitions.
        settings: When alerts are raised, and where they are sent.
        refresh: Called after a definition was changed.

    Attributes:
        raised: Number of alerts that this process has raised, by kind.
    """

    def __init__(
        self, store: SqlStore, snapshot: Snapshot, settings: AlertSettings, refresh: Callable[[], Awaitable[None]]
    ) -> None:
        self._store, self._snapshot, self._settings, self._refresh = store, snapshot, settings, refresh
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._compared_until = 0
        self._failing = False
        self.raised: Counter[AlertKind] = Counter()

    def start(self) -> None:
        """Start to watch."""
        self._task = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        """Stop watching."""
        if self._task is None:
            return
        self._closing.set()
        await asyncio.wait([self._task], timeout=CLOSING)  # a query that is cancelled costs its connection
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def check(self) -> None:
        """Look at the statistics once: put hooks into shadow mode, raise alerts, and hand alerts over for delivery.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        limited, shadows = [], []
        for definition in self._snapshot.definitions():
            if not definition.enabled or definition.problem:
                continue
            if definition.mode == "shadow":
                shadows.append(definition)
            elif definition.shadow_above is not None and definition.is_stored:
                limited.append(definition)
        if limited or shadows:
            now = await self._store.now()
            if limited:
                await self._apply_limits(limited, now)
            until = floor_to(now - SETTLE, self._settings.window)
            if shadows and until != self._compared_until:
                await self._compare_rates(shadows, until)
                self._compared_until = until
        if self._settings.webhook is not None:
            await self._send_alerts(self._settings.webhook)

    async def _run(self) -> None:
        while not self._closing.is_set():
            try:
                await self.check()
            except Exception as error:  # one that escaped would silently end the watch
                if not self._failing:
                    level = logging.WARNING if isinstance(error, StoreUnavailableError) else logging.ERROR
                    logger.log(level, "The limits of policies cannot be checked now: %s", message_of(error))
                    logger.debug("Checking the limits of policies failed", exc_info=True)
                self._failing = True
            else:
                self._failing = False
            try:
                async with asyncio.timeout(CHECK_EVERY):
                    await self._closing.wait()
            except TimeoutError:
                continue

    async def _apply_limits(self, limited: Sequence[HookDefinition], now: float) -> None:
        """Put the hooks that are beyond their limits into shadow mode."""
        longest = max(limits.window for each in limited if (limits := each.shadow_above) is not None)
        found = await self._read_counts(limited, since=now - longest)
        for definition in limited:
            limits = definition.shadow_above
            assert limits is not None
            counts = self._sum_of(found, definition, since=floor_to(now - limits.window, MINUTE))
            breach = find_breach(limits, counts)
            if breach is not None:
                await self._fall_back(definition, limits, counts, *breach)

    async def _fall_back(
        self, definition: HookDefinition, limits: ShadowLimits, counts: HookCounts, cause: str, limit: float
    ) -> None:
        """Put a hook into shadow mode, unless it has another revision by now."""
        try:
            async with open_change(self._store, FALLBACK_ACTOR) as change:
                own = await change.read_tenant(definition.tenant_id)
                found = own.get(definition.id)
                if found is None or found.revision != definition.revision or found.mode == "shadow":
                    raise _OvertakenError
                alert = FallbackAlert(
                    definition_id=found.id,
                    name=found.name,
                    tenant_id=found.tenant_id,
                    revision=change.revision,
                    cause="failures" if cause == "failures" else "denials",
                    limit=limit,
                    window=limits.window,
                    failed=counts.failed,
                    denied=counts.denied,
                    count=counts.count,
                    time=change.now,
                )
                new = msgspec.structs.replace(found, mode="shadow")
                await change.put(new, "fallback", old=found, why=alert.describe())
                await write_alert(change.connection, alert, until=int(change.now), now=change.now)
        except _OvertakenError:
            return
        logger.warning("Hook definition %r is in shadow mode now. %s", definition.id, alert.describe())
        self.raised[kind_of(alert)] += 1
        announce(fell_back_to_shadow, self, alert=alert)
        await self._refresh()

    async def _compare_rates(self, shadows: Sequence[HookDefinition], until: int) -> None:
        """Raise an alert for each shadow hook whose share of denials differs between the last two windows."""
        settings = self._settings
        middle, start = until - settings.window, until - 2 * settings.window
        found = await self._read_counts(shadows, since=start)
        for definition in shadows:
            before = self._sum_of(found, definition, since=start, until=middle)
            after = self._sum_of(found, definition, since=middle, until=until)
            if min(before.shadow, after.shadow) < settings.minimum:
                continue
            change = abs(after.shadow_denied / after.shadow - before.shadow_denied / before.shadow)
            if not change or change < settings.least_change:
                continue
            p_value = compare_shares(before.shadow_denied, before.shadow, after.shadow_denied, after.shadow)
            if p_value > settings.significance:
                continue
            alert = DenialRateAlert(
                definition_id=definition.id,
                name=definition.name,
                tenant_id=definition.tenant_id,
                revision=definition.revision,
                window=settings.window,
                until=until,
                denied_before=before.shadow_denied,
                count_before=before.shadow,
                denied=after.shadow_denied,
                count=after.shadow,
                p_value=p_value,
            )
            if await self._raise_once(alert, start):
                logger.warning("Hook definition %r denies at another rate. %s", definition.id, alert.describe())
                self.raised[kind_of(alert)] += 1
                announce(denial_rate_changed, self, alert=alert)

    async def _raise_once(self, alert: DenialRateAlert, start: int) -> bool:
        """Write an alert, unless one was raised since the start of its windows; return whether it was written.

        After an alert, both windows have to begin anew: one that holds calls from before the change would differ from
        the next one too, and raise a second alert for the same change.
        """
        rows = policy_alerts.c

        async def write_once(connection: AsyncConnection) -> bool:
            its = (rows.tenant_id == alert.tenant_id) & (rows.id == alert.definition_id)
            last = select(func.max(rows.until)).where(its, rows.revision == alert.revision, rows.kind == "rate")
            known = (await connection.execute(last)).scalar()
            if known is not None and known > start:
                return False
            return await write_alert(connection, alert, until=alert.until, now=await read_clock(connection))

        return await self._store.write(write_once)

    async def _send_alerts(self, webhook: Webhook) -> None:
        """Hand alerts that were not sent yet over for delivery, each once."""
        rows = policy_alerts.c
        fresh = rows.created_at > self._store.now_sql() - UNSENT_SECONDS
        if not await self._store.read_rows(select(rows.id).where(rows.sent.is_(False), fresh).limit(1)):
            return

        async def claim_alerts(connection: AsyncConnection) -> None:
            claim = update(policy_alerts).where(rows.sent.is_(False), fresh).values(sent=True)
            found = await connection.execute(claim.returning(rows.id, rows.revision, rows.until, rows.alert))
            envelopes = [build_envelope(row.alert, webhook, f"{row.id}:{row.revision}:{row.until}") for row in found]
            await insert_deliveries(connection, build_delivery_rows(envelopes), now=self._store.now_sql())

        await self._store.write(claim_alerts)
        self._store.wakeups.wake(DELIVERIES)

    async def _read_counts(self, definitions: Sequence[HookDefinition], *, since: float) -> CountsByMinute:
        """Read the counts of hooks by minute, from the minute of a time on."""
        counts: CountsByMinute = defaultdict(lambda: defaultdict(dict))
        ids = sorted({each.id for each in definitions})

        async def read(connection: AsyncConnection) -> CountsByMinute:
            for first in range(0, len(ids), MOST_IDS):
                query = build_counts_query(ids[first : first + MOST_IDS], since)
                for tenant_id, hook_id, revision, start, *numbers in await connection.execute(query):
                    counts[hook_id, revision][tenant_id][start] = HookCounts(*map(int, numbers))
            return counts

        return await self._store.read(read)

    def _sum_of(
        self, counts: CountsByMinute, definition: HookDefinition, *, since: int, until: float = math.inf
    ) -> HookCounts:
        """Add up the counts of the present revision of a definition, for all tenants for whom it runs."""
        by_tenant = counts.get((definition.id, definition.revision), {})
        if definition.tenant_id:
            tenants: Collection[str] = {definition.tenant_id}
        else:
            tenants = set(by_tenant) - (set(self._snapshot.tenants_with(definition.id)) - {""})
        total = HookCounts()
        for tenant_id in tenants:
            for start, each in by_tenant.get(tenant_id, {}).items():
                if since <= start < until:
                    total = total.plus(each)
        return total


def build_counts_query(ids: Sequence[str], since: float) -> Select[Any]:
    """Build the query of the counts of hooks: tenant, hook, revision, start of the minute, fields of `HookCounts`."""
    its = statistics.c
    columns = (its.tenant_id, its.hook_id, its.revision, its.start)
    sums = (
        func.sum(its.count - its.shadow),
        func.sum(its.errors + its.timeouts),
        func.sum(its.denied),
        func.sum(its.shadow),
        func.sum(its.shadow_denied),
    )
    is_recent = (its.seconds == literal_column(str(MINUTE))) & (its.start >= floor_to(since, MINUTE))
    return select(*columns, *sums).where(is_recent, its.hook_id.in_(ids)).group_by(*columns)


def build_envelope(encoded: bytes, webhook: Webhook, key: str) -> Envelope:
    """Build the delivery of an alert.

    Args:
        encoded: The alert, as JSON.
        webhook: Where it is sent.
        key: What tells it from other alerts; its delivery has the same id, whoever sends it.
    """
    fields = msgspec.json.decode(encoded)
    if webhook.event_fields is not None:
        fields = {name: value for name, value in fields.items() if name in {*webhook.event_fields, "type"}}
    hook = HookData(id="hookline.alerts", type=HookType.ON_ERROR, webhook=webhook)
    return Envelope(
        id=f"msg_{sha256(f'{webhook.url} {key}'.encode()).hexdigest()[:32]}",
        hook=hook,
        operation_id="",
        payload=msgspec.json.encode({**webhook.body, **fields}),
        type=fields["type"],
    )


def floor_to(seconds: float, span: int) -> int:
    """Round a time down to the start of its span."""
    return int(seconds // span) * span


EXACT_BELOW = 50.0
"""The least expected count from which the normal approximation is used: there, summing up would take many terms."""
SAME = 1e-7
"""Relative difference up to which two probabilities count as equal, since they are computed with rounding."""


def compare_shares(before: int, count_before: int, after: int, count_after: int) -> float:
    """Return the probability of two shares that differ at least as much, if nothing but chance made them differ.

    Args:
        before: Number of hits in the first sample.
        count_before: Size of the first sample.
        after: Number of hits in the second sample.
        count_after: Size of the second sample.

    Returns:
        The two-sided p-value, 0 to 1: that of Fisher's exact test, which raises a false alarm at a level at most as
        often as the level says; with large counts, that of the two-proportion z-test.

    Raises:
        ValueError: If a count is negative, or there are more hits than the sample has.
    """
    if not (0 <= before <= count_before and 0 <= after <= count_after):
        raise ValueError(f"{before} of {count_before} and {after} of {count_after} are no shares.")
    total, hits = count_before + count_after, before + after
    misses = total - hits
    if not (count_before and count_after and hits and misses):
        return 1.0
    if min(count_before, count_after) * min(hits, misses) / total >= EXACT_BELOW:
        pooled = hits / total
        spread = sqrt(pooled * (1 - pooled) * (1 / count_before + 1 / count_after))
        return erfc(abs(before / count_before - after / count_after) / spread / sqrt(2))
    return _fisher(before, count_before, hits, total)


def _fisher(before: int, count_before: int, hits: int, total: int) -> float:
    """Add up the probabilities of all tables with the same margins that are at most as likely as this one."""
    least, most = max(0, hits - (total - count_before)), min(hits, count_before)
    margins = _log_choose(total, hits)
    logs = [
        _log_choose(count_before, each) + _log_choose(total - count_before, hits - each) - margins
        for each in range(least, most + 1)
    ]
    limit = logs[before - least] + log(1 + SAME)
    return min(1.0, sum(exp(each) for each in logs if each <= limit))


def _log_choose(total: int, chosen: int) -> float:
    return lgamma(total + 1) - lgamma(chosen + 1) - lgamma(total - chosen + 1)
