"""`hookline doctor` says what is well, what is missing and what to fix, and changes nothing."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from hookline.cli.operate._doctor import Check, _check_clock
from hookline.errors import install_command
from tests.cli.operated import database, lines, paused, run


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with a key."""
    found = database(tmp_path)
    assert run("keys", "create", "ops", "--scope", "hooks:read", url=found).exit_code == 0
    return found


def change(folder: Path, statement: str) -> None:
    """Change the database behind hookline's back."""
    connection = sqlite3.connect(folder / "store.db")
    with connection:
        connection.execute(statement)
    connection.close()


def diagnose(url: str, **env: str) -> tuple[int, dict[str, Check]]:
    """The exit code, and the last check of each subject."""
    done = run("doctor", "--json", url=url, **env)
    return done.exit_code, {each["subject"]: Check(**each) for each in map(json.loads, done.stdout.splitlines())}


def test_a_store_in_order_is_well(url: str) -> None:
    code, checks = diagnose(url)

    assert code == 0
    assert {name: check.state for name, check in checks.items() if name != "extras"} == dict.fromkeys(
        ("hookline", "clock", "leases", "store", "keys", "master key"), "ok"
    )
    assert run("doctor", url=url).stdout.endswith("\nAll is well.\n")


def test_where_no_store_is_used_nothing_is_to_fix_and_none_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    code, checks = diagnose("")

    assert (code, checks["store"].state) == (0, "note")
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_was_named_and_is_missing_is_to_fix(tmp_path: Path) -> None:
    code, checks = diagnose(database(tmp_path))

    assert (code, checks["store"].state) == (1, "fix")
    assert "--store or HOOKLINE_STORE" in checks["store"].fix
    assert list(tmp_path.iterdir()) == []


def test_extras_that_are_missing_come_with_the_command_that_installs_one(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.metadata

    requires = [*(importlib.metadata.requires("hookline") or ()), "no-such-package>=1; extra == 'aaa'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requires)
    provided = importlib.metadata.metadata("hookline")
    monkeypatch.setattr(type(provided), "get_all", lambda self, name, failobj=None: ["aaa", "cli"])

    code, checks = diagnose(url)

    assert (code, checks["extras"].state, checks["extras"].found) == (0, "note", "not installed: aaa")
    assert checks["extras"].fix.endswith(install_command("aaa"))


@pytest.mark.parametrize(("store", "code"), [("", 0), ("sqlite:///x.db", 1)], ids=["no-store", "a-store"])
def test_without_the_extra_of_the_store_the_rest_is_checked(tmp_path: Path, store: str, code: int) -> None:
    program = "import sys; sys.modules['sqlalchemy'] = None; from hookline.cli import main; main()"
    args = ["doctor", *(["--store", store] if store else [])]

    done = subprocess.run(
        [sys.executable, "-c", program, *args], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (code, "")
    assert "hookline: " in done.stdout
    assert f"store: it needs the extra server\n  {install_command('server')}\n" in done.stdout


def test_a_key_that_ends_soon_is_named(url: str) -> None:
    (made,) = lines(run("keys", "create", "short", "--scope", "hooks:read", "--expires", "6d", "--json", url=url))
    run("keys", "create", "long", "--scope", "hooks:read", "--expires", "8d", url=url)

    code, checks = diagnose(url)

    assert (code, checks["keys"].state) == (1, "fix")
    assert checks["keys"].found == f"expire within 7 days: short ({made['id']})"


def test_keys_of_which_none_works_are_to_fix(url: str) -> None:
    (key,) = lines(run("keys", "--json", url=url))
    run("keys", "revoke", key["id"], url=url)

    code, checks = diagnose(url)

    assert (code, checks["keys"].found) == (1, "all keys are expired or revoked")
    assert "hookline keys create" in checks["keys"].fix


@pytest.mark.parametrize("key", ["lost", "another"])
def test_a_master_key_that_is_not_the_store_s_is_to_fix(url: str, tmp_path: Path, key: str) -> None:
    assert run("endpoints", "rotate", "https://acme.example/in", url=url).exit_code == 0
    assert diagnose(url)[1]["master key"].state == "ok"
    (tmp_path / "hookline.key").unlink()
    other = {} if key == "lost" else {"HOOKLINE_MASTER_KEY": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="}

    code, checks = diagnose(url, **other)

    assert (code, checks["master key"].state) == (1, "fix")
    assert "HOOKLINE_MASTER_KEY" in checks["master key"].fix
    assert not (tmp_path / "hookline.key").exists()


def test_a_broken_master_key_is_to_fix_before_anything_is_signed(url: str, tmp_path: Path) -> None:
    assert diagnose(url)[1]["master key"].state == "ok"
    (tmp_path / "hookline.key").write_text("no key")

    code, checks = diagnose(url)

    assert (code, checks["master key"].state) == (1, "fix")
    assert "delete the file" in checks["master key"].fix
    assert (tmp_path / "hookline.key").read_text() == "no key"


@pytest.mark.parametrize(("revision", "told"), [("9999", "update hookline here"), ("0001", "migrates it")])
def test_tables_of_another_version_are_to_fix_and_stay_as_they_are(
    url: str, tmp_path: Path, revision: str, told: str
) -> None:
    change(tmp_path, f"UPDATE hookline_version SET version_num = '{revision}'")
    before = (tmp_path / "store.db").read_bytes()

    code, checks = diagnose(url)

    assert (code, checks["store"].state) == (1, "fix")
    assert told in checks["store"].fix
    assert (tmp_path / "store.db").read_bytes() == before


def test_a_run_that_has_lost_its_process_is_to_fix(url: str, tmp_path: Path) -> None:
    paused(url, "op", 5)
    change(tmp_path, "UPDATE operations SET status = 'running', owner = 'gone'")

    code, checks = diagnose(url)

    assert (code, checks["leases"].state) == (1, "fix")
    assert "1 operation is running without a process" in checks["leases"].found


def test_a_database_that_nobody_answers_for_is_to_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    from hookline.cli.operate import _doctor

    monkeypatch.setattr(_doctor, "RETRY_SECONDS", 0.05)

    code, checks = diagnose("postgresql://me:geheim@127.0.0.1:9/x")

    assert (code, checks["store"].state) == (1, "fix")
    assert "Start the database" in checks["store"].fix
    assert "geheim" not in str(checks)


@pytest.mark.parametrize(("ahead", "state"), [(0.5, "ok"), (-1.9, "ok"), (5.0, "fix"), (-3600.0, "fix")])
def test_clocks_that_differ_by_more_than_two_seconds_are_to_fix(ahead: float, state: str) -> None:
    assert _check_clock(ahead).state == state
