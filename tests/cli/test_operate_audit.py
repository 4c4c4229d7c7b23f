"""Who changed what can be read on the command line."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from tests.cli.operated import database, lines, paused, run

ACCOUNT = f"cli:{pwd.getpwuid(os.getuid()).pw_name}"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store in which keys were created and revoked, and a call was approved."""
    found = database(tmp_path)
    (key,) = lines(run("keys", "create", "ops", "--scope", "hooks:read", "--tenant", "acme", "--json", url=found))
    run("keys", "revoke", key["id"], url=found)
    paused(found, "op", 5, tenant="other")
    run("approvals", "approve", "op", url=found)
    return found


def actions(url: str, *args: str) -> list[str]:
    """The actions of the entries."""
    return [each["action"] for each in lines(run("audit", "list", *args, "--json", url=url))]


def test_each_change_is_there_with_who_made_it(url: str) -> None:
    entries = lines(run("audit", "--json", url=url))
    shown = run("audit", url=url, width=120).stdout

    assert [each["action"] for each in entries] == ["approval.decide", "key.revoke", "key.create"]
    assert {each["actor"] for each in entries} == {ACCOUNT}
    assert (entries[0]["target"], entries[0]["detail"]["decision"]) == ("op", "approve")
    assert shown.splitlines()[0].split() == ["time", "actor", "action", "target", "tenant", "detail"]


def test_the_audit_is_filtered_by_tenant_action_and_time(url: str) -> None:
    assert actions(url, "--tenant", "acme") == ["key.revoke", "key.create"]
    assert actions(url, "--action", "key.create") == ["key.create"]
    assert actions(url, "--action", "key.") == ["key.revoke", "key.create"]
    assert actions(url, "--action", "key") == actions(url, "--action", "%.") == []
    assert actions(url, "--since", "1h", "--limit", "1") == ["approval.decide"]
    assert actions(url, "--until", "1h") == []


def test_no_key_is_in_the_audit(url: str) -> None:
    assert "hk_" not in run("audit", "--json", url=url).stdout


def test_more_entries_than_a_page_of_the_store_are_listed_once_each(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from hookline.cli.operate import _store

    monkeypatch.setattr(_store, "LONGEST_PAGE", 2)

    assert len({each["id"] for each in lines(run("audit", "--json", url=url))}) == 3
