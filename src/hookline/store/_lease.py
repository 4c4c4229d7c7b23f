"""The sign of life of a process: as long as it is renewed, the operations of the process are its own."""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable
from functools import partial

from sqlalchemy import delete, insert, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import StoreUnavailableError
from hookline.store._database import Database, after_commit
from hookline.store._tables import operations, workers

__all__ = ["Lease", "new_worker_id"]

logger = logging.getLogger("hookline")

REMEMBERED = 100
"""For how many leases the row of a dead process is kept, for whoever looks."""


def new_worker_id() -> str:
    """A name for this process that no other has ever had."""
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(6)}"


class Lease:
    """Renews the sign of life of a process.

    Args:
        database: Where it stands.
        worker_id: The process.
        seconds: For how long each sign counts.
        is_writing: Whether a commit of an operation is under way, which would make it this process's again.
    """

    def __init__(
        self, database: Database, worker_id: str, seconds: float, is_writing: Callable[[str], bool] = lambda _: False
    ) -> None:
        self.database = database
        self.worker_id = worker_id
        self.seconds = seconds
        self._is_writing = is_writing
        self.abandoned: set[str] = set()
        """Operations that this process has let go of while the database could not be told."""

    async def renew(self) -> None:
        """Be alive for another while, by the clock of the database.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        now = self.database.now_sql()
        mine = workers.c.worker_id == self.worker_id
        async with self.database.writing() as connection:
            renewed = await connection.execute(update(workers).where(mine).values(alive_until=now + self.seconds))
            await self._let_go(connection)
            if renewed.rowcount:
                return
            await connection.execute(
                insert(workers).values(worker_id=self.worker_id, alive_until=now + self.seconds, started_at=now)
            )
            await connection.execute(delete(workers).where(workers.c.alive_until < now - REMEMBERED * self.seconds))

    async def _let_go(self, connection: AsyncConnection) -> None:
        for operation_id in sorted(self.abandoned):
            if operation_id in self.abandoned and not self._is_writing(operation_id):
                theirs = (operations.c.operation_id == operation_id) & (operations.c.owner == self.worker_id)
                await connection.execute(update(operations).where(theirs).values(owner=None))
                after_commit(connection, partial(self.abandoned.discard, operation_id))

    async def run(self) -> None:
        """Renew it until cancelled, three times in each lease."""
        while True:
            await asyncio.sleep(self.seconds / 3)
            try:
                await self.renew()
            except Exception as error:
                # Whatever it is: a process that gave up here would lose its operations while it runs them.
                logger.warning(
                    "The lease of worker %s could not be renewed; after %g s without one, others may take its "
                    "operations over: %s",
                    self.worker_id,
                    self.seconds,
                    error,
                )

    async def give_up(self) -> None:
        """Be dead from now on, so that others need not wait for the end of the lease."""
        try:
            async with self.database.writing() as connection:
                await connection.execute(delete(workers).where(workers.c.worker_id == self.worker_id))
        except (StoreUnavailableError, SQLAlchemyError) as error:
            logger.warning("The lease of worker %s could not be given up; it ends by itself: %s", self.worker_id, error)
