"""Each engine keeps the contract of engines, and the contract finds what an engine does wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookline.errors import HookUsageError
from hookline.evals.adapter_contract import ContractError
from hookline.evals.engine_contract import EngineTrial, check_engine
from tests.engines.planted import FAULT_FILE, LEFT_OUT, plant
from tests.nats_servers import NatsServer

pytestmark = pytest.mark.anyio

LEASE_SECONDS = 1.0


@pytest.fixture
def nats_bus(nats_server: NatsServer, nats_prefix: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bus over a real server, in each process."""
    monkeypatch.setenv("NATS_ADDRESS", nats_server.url)
    monkeypatch.setenv("NATS_PREFIX", nats_prefix)
    return "tests.engines.planted:ServerBus"


@pytest.fixture
def planting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes of a trial read in a file with which fault they serve."""
    monkeypatch.setenv(FAULT_FILE, str(tmp_path / "fault"))
    plant("")


FORKED = pytest.mark.usefixtures("forked_processes")


@pytest.mark.parametrize(
    ("dialect", "places"), [("sqlite", ["in a pause"]), ("postgresql", ["after a tool", "in a stream"])]
)
async def test_the_store_engine_keeps_the_contract(
    database_url: str, dialect: str, places: list[str], tmp_path: Path, nats_bus: str, request: pytest.FixtureRequest
) -> None:
    if dialect == "postgresql":  # and on SQLite with processes that nobody has forked
        request.getfixturevalue("forked_processes")
    found = await check_engine(
        "tests.engines.planted:sound",
        url=database_url,
        folder=tmp_path,
        bus=nats_bus if dialect == "postgresql" else None,
        lease_seconds=LEASE_SECONDS,
        places=places,
    )
    assert [each.place for each in found] == places


@FORKED
@pytest.mark.parametrize(("dialect", "places"), [("sqlite", ["in a tool"]), ("postgresql", ["in a pause"])])
async def test_the_dbos_engine_keeps_the_contract(
    database_url: str,
    dialect: str,
    places: list[str],
    tmp_path: Path,
    nats_bus: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # SQLite has no schemas, so that DBOS has a file of its own.
    monkeypatch.setenv("DBOS_ADDRESS", database_url if dialect == "postgresql" else f"sqlite:///{tmp_path}/dbos.db")
    found = await check_engine(
        "tests.engines.planted:sound_dbos",
        url=database_url,
        folder=tmp_path,
        bus=nats_bus if dialect == "postgresql" else None,
        lease_seconds=LEASE_SECONDS,
        places=places,
    )
    assert [each.place for each in found] == places


@FORKED
async def test_the_contract_finds_what_starts_twice(postgresql_url: str, tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"started twice|heard twice"):
        await check_engine(
            "tests.engines.planted:Replay",
            url=postgresql_url,
            folder=tmp_path,
            lease_seconds=LEASE_SECONDS,
            places=["in a tool"],
        )


@FORKED
async def test_a_trial_finds_what_an_engine_leaves_out_and_what_remote_observers_hear_wrong(
    postgresql_url: str, tmp_path: Path, nats_bus: str, planting: None
) -> None:
    found = {}
    trial = EngineTrial(
        "tests.engines.planted:LeavesOut",
        url=postgresql_url,
        folder=tmp_path,
        bus="tests.engines.planted:FaultyBus",
        lease_seconds=LEASE_SECONDS,
        within=5,
    )
    with pytest.raises(HookUsageError, match="no place 'on the moon'"):
        await trial.run("on the moon")
    async with trial:
        (await trial.run()).check()
        for fault in ("loses commits", "disorders commits", "renumbers commits", *LEFT_OUT):
            plant(fault)
            found[fault] = await trial.run("in a tool" if fault == "never goes on after a kill" else "")

    for fault, problem in (
        ("never runs what was begun", "does not run"),
        ("never goes on after a pause", "decided and woken"),
        ("never goes on after a kill", "does not run"),
    ):
        assert problem in found[fault].problem, fault
        with pytest.raises(ContractError, match=problem):
            found[fault].check()
    for fault, problem in (
        ("loses commits", "did not hear"),
        ("disorders commits", "heard too late"),
        ("renumbers commits", "heard another event"),
    ):
        with pytest.raises(ContractError) as raised:
            found[fault].check()
        assert problem in str(raised.value), fault
    renumbered = found["renumbers commits"]
    assert renumbered.observers_repeated != []
    assert (renumbered.problem, renumbered.seconds, renumbered.lost, renumbered.observers_lost) == ("", 0.0, [], [])


@pytest.mark.parametrize("name", ["no_such_module:engine", "tests.engines.planted:none", "", "json"])
async def test_an_engine_that_cannot_be_made_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(HookUsageError, match="'module:function'"):
        await check_engine(name, url=f"sqlite:///{tmp_path / 'store.db'}", folder=tmp_path)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no_such_module:bus", "A bus is named as 'module:function'"),
        ("builtins:dict", "must make a bus.*it makes dict"),
    ],
)
async def test_a_bus_that_cannot_be_made_is_refused(name: str, problem: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with pytest.raises(HookUsageError, match=problem):
        await check_engine("tests.engines.planted:sound", url=url, folder=tmp_path, bus=name)
