"""What a worker holds: for each endpoint what is under way there, and what stands behind it."""

from collections import deque
from collections.abc import Iterator, Sequence

from hookline.store import Outcome, Run

__all__ = ["Held", "Lanes"]


class Held:
    """A run that this worker has claimed.

    Args:
        run: Deliveries of one stream, in order.
        until: When the claim ends, by the clock of the event loop.
    """

    def __init__(self, run: Run, until: float) -> None:
        self.run = run
        self.until = until
        self.outcomes: list[Outcome] = []

    @property
    def seq(self) -> int:
        """The row that carries the claim."""
        return self.run[0].seq


class Lane:
    """What is held for one endpoint."""

    def __init__(self) -> None:
        self.queue: deque[Held] = deque()
        self.under_way = 0
        self.failures = 0


class Lanes:
    """What is held for all endpoints, so that none takes more than its share.

    Args:
        per_endpoint: How many deliveries are under way at one endpoint at most.
        concurrency: How many are under way at all.
        enough: After how many failures an endpoint gets one at a time.
    """

    def __init__(self, *, per_endpoint: int, concurrency: int, enough: int) -> None:
        self._per_endpoint, self._concurrency, self._enough = per_endpoint, concurrency, enough
        self._lanes: dict[str, Lane] = {}
        self.under_way = 0

    @property
    def room(self) -> int:
        """How many more could be under way."""
        return self._concurrency - self.under_way

    def busy(self) -> list[str]:
        """Endpoints for which enough is held already."""
        return [url for url, lane in self._lanes.items() if len(lane.queue) >= self._share(lane)]

    def add(self, held: Sequence[Held]) -> None:
        """Hold what was claimed."""
        for each in held:
            lane = self._lanes.setdefault(each.run[0].endpoint, Lane())
            lane.failures = each.run[0].failures if not lane.under_way else max(lane.failures, each.run[0].failures)
            lane.queue.append(each)

    def startable(self) -> Iterator[Held]:
        """Take out what can be begun now; `ended` has to be called of each."""
        for lane in self._lanes.values():
            while lane.queue and lane.under_way < self._share(lane) and self.under_way < self._concurrency:
                lane.under_way += 1
                self.under_way += 1
                yield lane.queue.popleft()

    def ended(self, held: Held) -> list[Held]:
        """One that was begun is over.

        Returns:
            What is to be given back, since the endpoint is left alone from now on.
        """
        url = held.run[0].endpoint
        lane = self._lanes[url]
        lane.under_way -= 1
        self.under_way -= 1
        for outcome in held.outcomes:
            if outcome.status == "delivered":
                lane.failures = 0
            elif outcome.failed:
                lane.failures += 1
        back = []
        gone = any(outcome.gone for outcome in held.outcomes)
        if gone or (held.outcomes and lane.failures >= self._enough):
            back, lane.queue = list(lane.queue), deque()
        if not lane.under_way and not lane.queue:
            del self._lanes[url]
        return back

    def take_all(self) -> list[Held]:
        """Take out of the queues what was not begun."""
        taken = [held for lane in self._lanes.values() for held in lane.queue]
        for lane in self._lanes.values():
            lane.queue.clear()
        return taken

    def _share(self, lane: Lane) -> int:
        return 1 if lane.failures >= self._enough else self._per_endpoint
