"""hookline next to blinker, pyee, pluggy and agent-hooks-sdk: same work, same process, interleaved; losses too.

Each is used in the way that is fastest for it: an operation is blinker's sender and pyee's event name, pluggy has none.
None of the three knows filters, timeouts or records, pyee and pluggy do not isolate handlers, and blinker stops at the
first that fails. `agent_hooks`, which knows all of them, comes as it is by default and once more at its fastest.
"""

from __future__ import annotations

from benchmarks.compare import dispatching, intercepting, queueing
from benchmarks.harness import Row


async def bench(rounds: int) -> list[Row]:
    return [*await dispatching.bench(rounds), *await queueing.bench(rounds), *await intercepting.bench(rounds)]
