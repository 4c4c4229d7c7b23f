"""The lease of a process: begin it, renew it, end it, and find operations whose process has none."""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable
from functools import cache, partial

from sqlalchemy import ColumnElement, Select, Update, and_, bindparam, delete, exists, func, insert, or_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import StoreUnavailableError
from hookline.store._database import Database, after_commit, express_now
from hookline.store._rows import is_storable
from hookline.store._tables import operations, workers
from hookline.wakeups import NET

__all__ = [
    "Lease",
    "build_release",
    "find_orphaned_sql",
    "generate_worker_id",
    "is_orphaned",
    "is_orphaned_sql",
    "read_next_lease_end",
]

logger = logging.getLogger("hookline")

LONGEST_UNSEEN = NET[1]
"""Seconds after which each worker has looked at the leases, although nobody has woken it."""
REMEMBERED = 100
"""Lease periods for which the row of a dead process is kept, so that people can see it."""
_its = operations.alias()
_unowned = select(_its.c.operation_id).where(_its.c.status == "running", _its.c.owner.is_(None))


def generate_worker_id() -> str:
    """Generate a unique id for this process."""
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(6)}"


def build_release(operation_id: str, worker_id: str) -> Update:
    """Build the statement that clears the owner of an operation, if the owner is this process."""
    its = (operations.c.operation_id == operation_id) & (operations.c.owner == worker_id)
    return update(operations).where(its).values(owner=None)


class Lease:
    """Renews the lease of a process in the database.

    Args:
        database: The database.
        worker_id: The id of the process.
        seconds: Seconds until a lease ends unless it is renewed.
        is_writing: Returns whether a commit of an operation is under way, which would make this process its owner.
        wake: Wakes the workers of all processes: a lease begins or has ended, or operations were released.
    """

    def __init__(
        self,
        database: Database,
        worker_id: str,
        seconds: float,
        is_writing: Callable[[str], bool] = lambda _: False,
        wake: Callable[[], object] = lambda: None,
    ) -> None:
        self.database = database
        self.worker_id = worker_id
        self.seconds = seconds
        self._is_writing = is_writing
        self._wake = wake
        self.abandoned: set[str] = set()
        """Operations that this process has released while the database could not be reached."""

    async def renew(self) -> None:
        """Extend the lease, by the clock of the database, and release abandoned operations.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        await self.database.write(self._renew)

    async def _renew(self, connection: AsyncConnection) -> None:
        now = self.database.now_sql()
        mine = workers.c.worker_id == self.worker_id
        renewed = await connection.execute(update(workers).where(mine).values(alive_until=now + self.seconds))
        await self._release_abandoned(connection)
        if renewed.rowcount:
            return
        if self.seconds < LONGEST_UNSEEN:  # otherwise workers see it in time to look when it ends
            after_commit(connection, self._wake)
        await connection.execute(
            insert(workers).values(worker_id=self.worker_id, alive_until=now + self.seconds, started_at=now)
        )
        await connection.execute(delete(workers).where(workers.c.alive_until < now - REMEMBERED * self.seconds))

    async def _release_abandoned(self, connection: AsyncConnection) -> None:
        for operation_id in sorted(self.abandoned):
            if operation_id in self.abandoned and not self._is_writing(operation_id):
                await connection.execute(build_release(operation_id, self.worker_id))
                after_commit(connection, partial(self.abandoned.discard, operation_id))
                after_commit(connection, self._wake)

    async def run(self) -> None:
        """Renew the lease three times per period, until cancelled."""
        while True:
            await asyncio.sleep(self.seconds / 3)
            try:
                await self.renew()
            except Exception as error:
                # Any error: if this loop ended, other processes would take over operations that still run here.
                logger.warning(
                    "The lease of worker %s could not be renewed; after %g s without a renewal, others may take over "
                    "its operations: %s",
                    self.worker_id,
                    self.seconds,
                    error,
                )

    async def give_up(self) -> None:
        """End the lease now, so that other processes need not wait until it expires."""
        try:
            await self.database.write(self._give_up)
        except (StoreUnavailableError, SQLAlchemyError) as error:
            logger.warning("The lease of worker %s could not be ended; it expires by itself: %s", self.worker_id, error)

    async def _give_up(self, connection: AsyncConnection) -> None:
        await connection.execute(delete(workers).where(workers.c.worker_id == self.worker_id))
        owned = (operations.c.status == "running") & (operations.c.owner == self.worker_id)
        if (await connection.execute(select(operations.c.operation_id).where(owned).limit(1))).first():
            after_commit(connection, self._wake)


def is_orphaned_sql(database: Database) -> ColumnElement[bool]:
    """Return the SQL condition for operations with status "running" whose process is dead."""
    alive = exists().where(workers.c.worker_id == operations.c.owner, workers.c.alive_until > database.now_sql())
    return and_(operations.c.status == "running", or_(operations.c.owner.is_(None), ~alive))


async def find_orphaned_sql(database: Database, connection: AsyncConnection) -> ColumnElement[bool]:
    """Return a condition like `is_orphaned_sql`, for a search among all operations.

    It names the dead processes. They are found by going from one owner to the next in the index, so that the cost
    follows the number of processes, not that of the operations.
    """
    dead = list((await connection.execute(_select_dead_owners(database.dialect))).scalars())
    # For an `or` of the two, either database would read all running operations.
    owned = select(_its.c.operation_id).where(_its.c.status == "running", _its.c.owner.in_(dead))
    return operations.c.operation_id.in_(_unowned.union_all(owned) if dead else _unowned)


@cache
def _select_dead_owners(dialect: str) -> Select[str]:
    """Build the statement for `find_orphaned_sql` once: SQLAlchemy takes longer to build it than SQLite to run it."""
    running = operations.c.status == "running"
    owners = select(func.min(operations.c.owner).label("owner")).where(running).cte("owners", recursive=True)
    following = select(func.min(_its.c.owner)).where(_its.c.status == "running", _its.c.owner > owners.c.owner)
    owners = owners.union_all(select(following.scalar_subquery()).where(owners.c.owner.is_not(None)))
    alive = exists().where(workers.c.worker_id == owners.c.owner, workers.c.alive_until > express_now(dialect))
    return select(owners.c.owner).where(owners.c.owner.is_not(None), ~alive)


async def is_orphaned(database: Database, connection: AsyncConnection, operation_id: str) -> bool:
    """Return whether an operation has the status "running" while its process is dead."""
    if not is_storable(operation_id):
        return False
    query = select(operations.c.operation_id).where(
        operations.c.operation_id == operation_id, is_orphaned_sql(database)
    )
    return (await connection.execute(query)).first() is not None


async def read_next_lease_end(database: Database, connection: AsyncConnection, worker_id: str) -> float | None:
    """Return the seconds until the first lease of another process ends; `None` if no other process is alive.

    A living process renews its lease before, so that this is no shorter than two thirds of a lease.
    """
    found = await connection.execute(_select_next_lease_end(database.dialect), {"own": worker_id})
    seconds = found.scalar()
    return None if seconds is None else float(seconds)


@cache
def _select_next_lease_end(dialect: str) -> Select[float]:
    now = express_now(dialect)
    others = (workers.c.worker_id != bindparam("own")) & (workers.c.alive_until > now)
    return select(func.min(workers.c.alive_until) - now).where(others)
