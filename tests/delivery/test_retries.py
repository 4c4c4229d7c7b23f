"""The schedule of an outbox: when the next attempt is made, and when there is none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hookline.delivery._retries import LONGEST_WAIT, STANDARD_SCHEDULE, delay_before_retry

seconds = st.floats(0, 1e6)


def test_the_standard_is_ten_attempts_over_three_days() -> None:
    assert len(STANDARD_SCHEDULE) == 10
    assert sum(STANDARD_SCHEDULE) == 75 * 3600 + 35 * 60 + 5


@given(schedule=st.lists(seconds, min_size=1, max_size=12), attempts=st.integers(1, 20), jitter=st.floats(0, 0.99))
def test_a_delay_is_that_of_the_schedule_give_or_take_the_jitter(
    schedule: list[float], attempts: int, jitter: float
) -> None:
    delay = delay_before_retry(schedule, attempts, jitter=jitter)

    assert (delay is None) == (attempts >= len(schedule))
    if delay is not None:
        assert schedule[attempts] * (1 - jitter) - 1e-6 <= delay <= schedule[attempts] * (1 + jitter) + 1e-6


@given(delay=seconds, retry_after=st.floats(0, 1e12))
def test_a_receiver_is_never_asked_sooner_than_it_wants_but_for_more_than_a_day(
    delay: float, retry_after: float
) -> None:
    given_delay = delay_before_retry([0.0, delay], 1, retry_after=retry_after)

    assert given_delay == max(delay, min(retry_after, LONGEST_WAIT))
