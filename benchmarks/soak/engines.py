"""The contract of engines at length: processes are killed at each place, on each engine, and faults are counted."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.postgresql import PostgreSQL
from hookline.bus import NatsBus
from hookline.engines import DbosEngine, StoreEngine
from hookline.evals.adapter_contract import ContractError
from hookline.evals.engine_contract import KILL_PLACES, EngineTrial, KillOutcome
from hookline.store import SqlStore
from tests.nats_servers import NatsServer

LEASE_SECONDS, SPARE_SECONDS = 1.0, 5.0
"""The lease of the processes, and the seconds after its end within which another process must go on."""
DBOS_ADDRESS, NATS_ADDRESS, NATS_PREFIX = "SOAK_DBOS", "SOAK_NATS", "SOAK_NATS_PREFIX"
"""Environment variables that tell the processes where everything is."""

COLUMNS: dict[str, Callable[[KillOutcome], int]] = {
    "not ended": lambda outcome: bool(outcome.problem),
    "tools twice": lambda outcome: len(outcome.tools_started_twice),
    "heard twice": lambda outcome: len(outcome.heard_twice),
    "two stories": lambda outcome: len(outcome.contradictions),
    "journal: lost": lambda outcome: len(outcome.lost),
    "repeated": lambda outcome: len(outcome.repeated),
    "observers: lost": lambda outcome: len(outcome.observers_lost),
    "repeated ": lambda outcome: len(outcome.observers_repeated),
    "late": lambda outcome: len(outcome.observers_disordered),
}
"""What is counted of each kill, by the head of its column."""


def store_engine(store: SqlStore) -> StoreEngine:
    """Make the engine of a process."""
    return StoreEngine(store)


def dbos_engine(store: SqlStore) -> DbosEngine:
    """Make the engine of a process, which starts DBOS there."""
    return DbosEngine(store, os.environ[DBOS_ADDRESS], queues={"hookline": {"polling_interval_sec": 0.1}})


def nats_bus() -> NatsBus:
    """Make the bus of a process."""
    return NatsBus(os.environ[NATS_ADDRESS], prefix=os.environ[NATS_PREFIX], partitions=3, ack_seconds=1.0)


ENGINES = {"StoreEngine": store_engine, "DbosEngine": dbos_engine}


class EngineSoak:
    """What the kills on each engine led to.

    Attributes:
        outcomes: The outcomes of the kills, by engine.
        problems: What is wrong, one text each.
    """

    def __init__(self) -> None:
        self.outcomes: dict[str, list[KillOutcome]] = {}
        self.problems: list[str] = []

    async def kill_on(self, engine: str, kills: int, folder: Path) -> None:
        """Kill processes at each place on one engine, with a PostgreSQL and a NATS server of its own.

        Args:
            engine: One of `ENGINES`.
            kills: Kills at each place.
            folder: An empty folder.
        """
        outcomes = self.outcomes[engine] = []
        with PostgreSQL() as postgresql, NatsServer(folder / "nats") as nats:
            url = await postgresql.new_database("soak")
            os.environ |= {DBOS_ADDRESS: url, NATS_ADDRESS: nats.url, NATS_PREFIX: engine}
            here = __name__
            try:
                async with EngineTrial(
                    f"{here}:{ENGINES[engine].__name__}",
                    url=url,
                    folder=folder,
                    bus=f"{here}:{nats_bus.__name__}",
                    lease_seconds=LEASE_SECONDS,
                ) as trial:
                    for place in ("", *KILL_PLACES * kills):
                        outcome = await trial.run(place)
                        self._note_problems(engine, outcome)
                        if place:
                            outcomes.append(outcome)
            except ContractError as error:
                self.problems.append(f"{engine}: {error}")

    def _note_problems(self, engine: str, outcome: KillOutcome) -> None:
        where = f"{engine}, killed {outcome.place}" if outcome.place else f"{engine}, undisturbed"
        try:
            outcome.check()
        except ContractError as error:
            self.problems.append(f"{where}: {error}")
        if not is_in_time(outcome):
            self.problems.append(f"{where}: another process went on after {outcome.seconds:.1f} s")

    def report(self) -> str:
        """Return a table of all kills: a line for each engine and place."""
        head = ["engine", "place", "kills", *(name.strip() for name in COLUMNS), "in time", "slowest"]
        lines = [
            [engine, place, *_count([each for each in outcomes if each.place == place])]
            for engine, outcomes in self.outcomes.items()
            for place in KILL_PLACES
        ]
        every = [each for outcomes in self.outcomes.values() for each in outcomes]
        lines.append(["all", "", *_count(every)])
        widths = [max(len(line[column]) for line in (head, *lines)) for column in range(len(head))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if column < 2 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in (head, *lines)
        )


def is_in_time(outcome: KillOutcome) -> bool:
    """Return whether another process went on soon enough after the lease of the killed one."""
    return outcome.seconds <= LEASE_SECONDS + SPARE_SECONDS


def _count(outcomes: Sequence[KillOutcome]) -> list[str]:
    """Return the cells of a line, from the number of kills on."""
    counts = [len(outcomes), *(sum(map(count, outcomes)) for count in COLUMNS.values())]
    slowest = max((each.seconds for each in outcomes), default=0.0)
    return [*map(str, counts), f"{sum(map(is_in_time, outcomes))} of {len(outcomes)}", f"{slowest:.1f} s"]
