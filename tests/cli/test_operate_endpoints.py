"""`hookline endpoints` and `hookline keys rotate-master`: secrets are shown once, and encrypted where they are kept."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from hookline.delivery import EndpointSecrets, KeyRing, MasterKeys
from hookline.delivery._master_keys import generate_master_key
from hookline.store import SqlStore
from tests.cli.operated import database, lines, on, run

URL = "https://acme.example/in"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store that is there."""
    monkeypatch.delenv("HOOKLINE_MASTER_KEY", raising=False)

    async def nothing(store: SqlStore) -> None:
        return None

    on(database(tmp_path), nothing)
    return database(tmp_path)


def test_a_secret_is_shown_once_rotated_listed_and_revoked(url: str, tmp_path: Path) -> None:
    first = run("endpoints", "rotate", URL, "--tenant", "acme", url=url)
    [second] = lines(run("endpoints", "rotate", URL, "--tenant", "acme", "--overlap", "0s", "--json", url=url))
    listed = lines(run("endpoints", "--json", url=url))
    table = run("endpoints", "list", "--tenant", "acme", url=url)

    assert first.exit_code == 0
    assert "whsec_" in first.stdout
    assert "not shown again" in first.stderr
    assert second["secret"].startswith("whsec_")
    assert [each["id"] for each in listed] == [second["id"]]
    assert "whsec_" not in table.stdout
    assert stat.S_IMODE((tmp_path / "hookline.key").stat().st_mode) == 0o600
    assert run("endpoints", "revoke", second["id"], "--tenant", "globex", url=url).exit_code == 1
    assert run("endpoints", "revoke", second["id"], url=url).stdout == f"Revoked {second['id']}.\n"
    assert "There is no signing secret" in run("endpoints", "revoke", second["id"], url=url).stderr
    assert "There are no secrets" in run("endpoints", url=url).stderr


def test_the_master_key_of_a_file_is_replaced_and_the_secrets_stay(url: str, tmp_path: Path) -> None:
    file = tmp_path / "elsewhere.key"
    [made] = lines(run("endpoints", "rotate", URL, "--master-key-file", str(file), "--json", url=url))
    before = file.read_text()

    done = run("keys", "rotate-master", "--master-key-file", str(file), url=url)

    assert done.stdout == "1 secret is encrypted with the newest master key.\n"
    assert file.read_text() != before
    assert len(file.read_text().split()) == 1
    assert signs(url, MasterKeys.from_file(file), made["secret"])


def test_the_master_key_of_the_environment_is_replaced_by_the_one_before_it(url: str) -> None:
    old, new = generate_master_key(), generate_master_key()
    [made] = lines(run("endpoints", "rotate", URL, "--json", url=url, HOOKLINE_MASTER_KEY=old))

    done = lines(run("keys", "rotate-master", "--json", url=url, HOOKLINE_MASTER_KEY=f"{new} {old}"))

    assert done == [{"count": 1}]
    assert signs(url, MasterKeys([new]), made["secret"])
    refused = run("endpoints", "rotate", URL, url=url, HOOKLINE_MASTER_KEY=old)
    assert refused.exit_code == 1
    assert "the database uses the master key" in refused.stderr
    assert old not in refused.stderr


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["rotate", "ftp://x"], "must begin with http"),
        (["rotate", URL, "--overlap", "soon"], "not a span of time"),
        (["rotate", URL, "--overlap", "9999d"], "`overlap_seconds`"),
    ],
)
def test_what_makes_no_sense_is_told_in_one_line(url: str, args: list[str], told: str) -> None:
    refused = run("endpoints", *args, url=url)

    assert refused.exit_code == 2
    assert told in refused.stderr


def signs(url: str, master: MasterKeys, secret: str) -> bool:
    """Whether the endpoint of this page is signed with a secret."""

    async def ring(store: SqlStore) -> str:
        from hookline import HookType
        from hookline.delivery import HookData, Webhook

        hook = HookData(id="h", type=HookType.ON_COMPLETE, webhook=Webhook(url=URL))
        found, name = await EndpointSecrets(store, master, environment=KeyRing()).ring_of(hook)
        return found.signatures(b"text", name)

    return on(url, ring) == KeyRing({"": [secret]}).signatures(b"text")
