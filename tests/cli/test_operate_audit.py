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


def test_the_audit_is_searched_and_exported(url: str) -> None:
    assert actions(url, "--text", "local/PAY") == ["approval.decide"]
    assert actions(url, "--target", "op") == ["approval.decide"]
    assert actions(url, "--actor", "cli:nobody") == []

    table = run("audit", "export", "--action", "key.", url=url).stdout.splitlines()
    rows = lines(run("audit", "export", "--format", "jsonl", url=url))

    assert table[0] == "id,time,tenant,actor,actorName,action,target,detail"
    assert [row.split(",")[5] for row in table[1:]] == ["key.revoke", "key.create"]
    assert [each["action"] for each in rows] == ["approval.decide", "key.revoke", "key.create"]


def test_a_key_is_rotated(tmp_path: Path) -> None:
    url = database(tmp_path)
    (old,) = lines(run("keys", "create", "ops", "--scope", "hooks:read", "--tenant", "acme", "--json", url=url))

    (new,) = lines(run("keys", "rotate", old["id"], "--overlap", "12h", "--json", url=url))
    missing = run("keys", "rotate", "0123", url=url)

    assert (new["name"], new["scopes"], new["tenantId"]) == ("ops", ["hooks:read"], "acme")
    assert new["key"] != old["key"]
    listed = {each["id"]: each for each in lines(run("keys", "list", "--json", url=url))}
    assert 40_000 < listed[old["id"]]["expiresAt"] - listed[old["id"]]["createdAt"] < 44_000
    assert "0123" in missing.stderr
