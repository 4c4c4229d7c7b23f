"""A process whose calls draw on a budget that other processes share: `python -m tests.budgets.process URL BILL CALLS LIMIT`.

What a model charges is written to the file BILL at once, as a provider would: a process that is killed afterwards has
spent it, although it never settles.
"""

import asyncio
import os
import random
import sys

from hookline import ModelCall, ModelResponse, Usage
from hookline.builtin import budget
from hookline.interceptors import Chain
from hookline.store import SqlStore

RESERVE_CENTS = 5
AT_ONCE = 8


async def main(url: str, bill: str, calls: int, limit_cents: int) -> None:
    chosen = random.Random(os.getpid())
    file = os.open(bill, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def charge(call: object) -> ModelResponse:
        cents = chosen.randint(1, RESERVE_CENTS)
        await asyncio.sleep(0)
        os.write(file, f"{cents}\n".encode())  # a single write of a short line is atomic
        await asyncio.sleep(0)
        return ModelResponse(content="x", usage=Usage(input_tokens=1, cost_usd=cents / 100))

    # What a loss of power leaves is no part of this, so the disk is not waited for.
    async with SqlStore(url, durability="process", retry_seconds=60, pool_size=4) as store:
        hooks = budget(
            cost_usd=limit_cents / 100, per="tenant", store=store, reserve_usd=RESERVE_CENTS / 100, id="team"
        )
        chain = Chain([hooks])
        left = iter(range(calls))

        async def work() -> None:
            for _ in left:
                await chain.run(ModelCall(messages=[]), charge)

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
