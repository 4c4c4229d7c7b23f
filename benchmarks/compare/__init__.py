"""hookline next to blinker, pyee and pluggy: the same work, the same process, interleaved; losses too.

Each is used in the way that is fastest for it: an operation is blinker's sender and pyee's event name, pluggy has none.
None of them knows filters, timeouts or records, pyee and pluggy do not isolate handlers, and blinker stops at the first
that fails.
"""

from __future__ import annotations

from benchmarks.compare import dispatching, queueing
from benchmarks.harness import Row


async def bench(rounds: int) -> list[Row]:
    return [*await dispatching.bench(rounds), *await queueing.bench(rounds)]
