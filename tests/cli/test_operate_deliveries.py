"""Deliveries that nobody took are seen, tried again and made again, on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookline.store import DeliveryLog, SqlStore
from tests.cli.operated import NOBODY, database, leave_dead, lines, on, run


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Three deliveries that were given up."""
    found = database(tmp_path)
    on(found, lambda store: leave_dead(store, "a", "b", "c"))
    return found


def statuses(url: str) -> dict[str, str]:
    async def read(store: SqlStore) -> dict[str, str]:
        return {each.operation_id: each.status for each in (await DeliveryLog(store).page()).items}

    return on(url, read)


def test_deliveries_are_filtered(url: str) -> None:
    def count(*args: str) -> int:
        return len(lines(run("deliveries", *args, "--json", url=url)))

    assert statuses(url) == {"a": "dead", "b": "dead", "c": "dead"}
    assert (count(), count("--status", "dead"), count("--status", "pending")) == (3, 3, 0)
    assert (count("--operation", "b"), count("--endpoint", NOBODY), count("--hook", "other")) == (1, 3, 0)
    assert (count("--since", "1h"), count("--until", "1h"), count("--tenant", "acme")) == (3, 0, 0)


def test_named_deliveries_are_tried_now_and_of_others_it_is_told_why_not(url: str) -> None:
    name = next(each["id"] for each in lines(run("deliveries", "--operation", "b", "--json", url=url)))

    result = run("deliveries", "retry", name, "msg_none", url=url)

    assert result.exit_code == 1
    assert result.stdout == "1 delivery will be retried by a process with an Outbox.\n"
    assert result.stderr == "hookline: Not tried again: there is no delivery 'msg_none'.\n"
    assert statuses(url) == {"a": "dead", "b": "pending", "c": "dead"}


def test_where_nothing_is_tried_now_nothing_is_said_of_it(url: str) -> None:
    result = run("deliveries", "retry", "msg_none", url=url)

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "hookline: Not tried again: there is no delivery 'msg_none'.\n"


def test_a_delivery_of_another_tenant_is_not_there(url: str) -> None:
    name = lines(run("deliveries", "--json", url=url))[0]["id"]

    result = run("deliveries", "retry", name, "--tenant", "acme", "--json", url=url)

    assert (result.exit_code, result.stdout) == (1, '{"count":0}\n')
    assert set(statuses(url).values()) == {"dead"}


def test_a_replay_makes_those_again_that_are_meant(url: str) -> None:
    assert lines(run("deliveries", "replay", "--status", "dead", "--operation", "a", "--json", url=url)) == [
        {"count": 1}
    ]
    assert statuses(url) == {"a": "pending", "b": "dead", "c": "dead"}
    assert run("deliveries", "replay", "--status", "dead", url=url).stdout.startswith("2 deliveries will be sent again")
    assert set(statuses(url).values()) == {"pending"}
    assert lines(run("deliveries", "replay", "--status", "dead", "--json", url=url)) == [{"count": 0}]


def test_a_replay_of_everything_has_to_be_asked_for(url: str) -> None:
    assert run("deliveries", "replay", url=url).exit_code == 2
    assert set(statuses(url).values()) == {"dead"}
