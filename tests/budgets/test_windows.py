"""Hours, days and months of a time zone, in which budgets count."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hookline.budgets import BudgetScope, InMemoryBudgets, find_window, load_zone, make_window_id
from hookline.errors import HookUsageError
from tests.tables import for_each

from .scenes import request

HOUR = 3600.0
ZONES = ("UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Kolkata", "Australia/Lord_Howe", "Asia/Beirut")


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("window", "zone", "now", "start", "end"),
    [
        ("1h", "UTC", "2026-05-01T10:59:59Z", "2026-05-01T10:00Z", "2026-05-01T11:00Z"),
        ("1h", "Asia/Kolkata", "2026-05-01T10:45Z", "2026-05-01T10:30Z", "2026-05-01T11:30Z"),
        ("1d", "UTC", "2026-05-01T00:00Z", "2026-05-01T00:00Z", "2026-05-02T00:00Z"),
        ("1d", "Europe/Berlin", "2026-04-30T22:30Z", "2026-04-30T22:00Z", "2026-05-01T22:00Z"),
        ("month", "UTC", "2026-02-28T23:59:59Z", "2026-02-01T00:00Z", "2026-03-01T00:00Z"),
        ("month", "Europe/Berlin", "2026-12-31T23:30Z", "2026-12-31T23:00Z", "2027-01-31T23:00Z"),
        ("month", "Europe/Berlin", "2026-03-15T00:00Z", "2026-02-28T23:00Z", "2026-03-31T22:00Z"),
    ],
)
def test_a_window_is_that_of_the_clock_and_calendar_of_its_zone(
    window: Any, zone: str, now: str, start: str, end: str
) -> None:
    assert find_window(window, load_zone(zone), at(now)) == (at(start), at(end))


@pytest.mark.parametrize(
    ("now", "hours"), [("2026-03-29T10:00Z", 23), ("2026-10-25T10:00Z", 25), ("2026-05-01T10:00Z", 24)]
)
def test_a_day_on_which_the_clock_changes_is_shorter_or_longer(now: str, hours: int) -> None:
    start, end = find_window("1d", load_zone("Europe/Berlin"), at(now))

    assert end is not None
    assert (end - start) / HOUR == hours


def test_the_hour_that_comes_twice_is_two_windows() -> None:
    zone = load_zone("Europe/Berlin")

    first, second = find_window("1h", zone, at("2026-10-25T00:30Z")), find_window("1h", zone, at("2026-10-25T01:30Z"))

    assert first[1] == second[0]


def test_a_day_without_midnight_starts_when_the_clock_moves() -> None:
    start, _ = find_window("1d", load_zone("Asia/Beirut"), at("2026-03-29T10:00Z"))

    assert datetime.fromtimestamp(start, UTC).isoformat() == "2026-03-28T22:00:00+00:00"


times = st.floats(at("1990-01-01T00:00Z"), at("2060-01-01T00:00Z"))


@pytest.mark.hypothesis
@given(now=times, zone=st.sampled_from(ZONES), window=st.sampled_from(["1h", "1d", "month"]))
@example(now=710035199.9999995, zone="UTC", window="1d")
def test_every_time_lies_in_its_window_and_its_end_in_the_next(now: float, zone: str, window: Any) -> None:
    start, end = find_window(window, load_zone(zone), now)

    assert end is not None
    assert start <= now < end
    assert find_window(window, load_zone(zone), start)[0] == start
    assert find_window(window, load_zone(zone), end)[0] > start


def test_all_time_is_one_window() -> None:
    assert find_window(None, UTC, 5.0) == find_window(None, UTC, 1e9) == (0.0, None)


@for_each("name", ["Mars/Olympus", "", "../etc/passwd", "\0"])
def test_a_zone_that_does_not_exist_is_refused_by_name(name: str) -> None:
    with pytest.raises(HookUsageError, match="no time zone"):
        load_zone(name)


def test_windows_of_other_tenants_keys_and_kinds_have_other_ids() -> None:
    scopes = [
        BudgetScope(tenant_id=tenant, budget_id=budget, per="user", key=key)
        for tenant in ("a", "ab")
        for budget in ("b", "")
        for key in ("b", "ann\ud800", "x" * 5000)
    ]

    ids = {make_window_id(scope, window, 0.0) for scope in scopes for window in ("1h", "1d", None)}

    assert len(ids) == len(scopes) * 3


@pytest.mark.anyio
async def test_a_clock_that_jumps_back_finds_the_earlier_window_again() -> None:
    now = at("2026-05-01T10:30Z")
    store = InMemoryBudgets(clock=lambda: now)
    assert (await store.reserve_budget(request(calls=1, limits=1, window="1h"))).granted

    now += HOUR
    later = await store.reserve_budget(request(calls=1, limits=1, window="1h"))
    now -= HOUR
    again = await store.reserve_budget(request(calls=1, limits=1, window="1h"))

    assert later.granted
    assert not again.granted
