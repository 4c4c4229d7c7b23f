"""Find the recorded answer of a call, in cassettes and tapes: by a key, once in every run, as they were recorded."""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Iterator
from typing import Generic, Protocol, TypeVar

__all__ = ["RecordedAnswers", "ReplayScope", "ReplayScopes"]


class Recording(Protocol):
    """A recorded answer, which has a place among those to the same call."""

    @property
    def operation(self) -> int:
        """The number of the run that got it, from 1."""
        ...

    @property
    def call_index(self) -> int:
        """The number of the call in that run, from 1."""
        ...


R = TypeVar("R", bound=Recording)


class ReplayScope:
    """The recordings that one run has used: an operation, a conversation, or all runs of one sub-agent under it.

    Attributes:
        agent: The sub-agent; empty for an operation of its own.
        number: The number of the scope in its cassette, from 1.
        used: The recordings that have answered in it or were made in it, by their identity.
    """

    __slots__ = ("_asked", "_numbered", "_operations", "agent", "number", "used")

    def __init__(self, agent: str, number: int, *, conversation: bool = False) -> None:
        self.agent = agent
        self.number = number
        self._numbered = conversation or bool(agent)
        # Holding the recordings keeps their identities from being reused.
        self.used: dict[int, Recording] = {}
        self._operations: dict[str, int] = {}
        self._asked: dict[Hashable, int] = {}  # no `Counter`, which takes 1 µs to make, once for each run

    def operation(self, operation_id: str) -> int:
        """Return the number of an operation in this scope, from 1."""
        return self._operations.setdefault(operation_id, len(self._operations) + 1) if self._numbered else 1

    def count(self, key: Hashable) -> int:
        """Count a call, and return how often it was made in this scope, from 1."""
        asked = self._asked[key] = self._asked.get(key, 0) + 1
        return asked


class ReplayScopes:
    """The scopes in use, by the operation with which they end.

    Args:
        conversation: Whether all operations are turns of one conversation, and have one scope.
    """

    def __init__(self, *, conversation: bool = False) -> None:
        self._conversation = conversation
        self._count = 0
        self._by_owner: dict[str, dict[str, ReplayScope]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_owner.values()))

    def of(self, operation_id: str, parent_operation_id: str | None, agent_id: str) -> ReplayScope:
        """Return the scope of an operation."""
        owner, agent = (parent_operation_id, agent_id) if parent_operation_id else (operation_id, "")
        scopes = self._by_owner.setdefault("" if self._conversation else owner, {})
        scope = scopes.get(agent)
        if scope is None:
            self._count += 1
            scope = scopes[agent] = ReplayScope(agent, self._count, conversation=self._conversation)
        return scope

    def forget(self, operation_id: str) -> None:
        """Drop the scopes of an operation that has ended: its own and those of its sub-agents."""
        self._by_owner.pop(operation_id, None)


class AnswerTrack(Generic[R]):
    """The recordings of one call, in the order in which they are played.

    Attributes:
        recordings: The recordings.
        run: The scope that recorded last; 0 where they were there before.
        earlier: Those of them that earlier scopes made, and that the scope that records now has not yet replaced.
    """

    __slots__ = ("earlier", "recordings", "run")

    def __init__(self, run: int) -> None:
        self.recordings: list[R] = []
        self.run = run
        self.earlier: list[R] = []

    def begin(self, run: int) -> None:
        """Begin to replace the recordings, for a scope that records."""
        self.run, self.earlier = run, list(self.recordings)

    def remove_replaced(self, recording: R) -> R | None:
        """Remove the earlier recording whose place a new one takes: that of the same call, else the first one."""
        same = [each for each in self.earlier if _play_order(each) == _play_order(recording)]
        gone = next(iter(same or self.earlier), None)
        if gone is not None:
            self.earlier = [each for each in self.earlier if each is not gone]
            self.recordings = [each for each in self.recordings if each is not gone]
        return gone


class RecordedAnswers(Generic[R]):
    """Recordings that answer calls, each once in every scope.

    Args:
        allow_repeats: Whether a call that is made more often than it was recorded gets the last answer again.

    Attributes:
        played: The recordings that answered a call or were made in this run, by identity.
        made: The recordings that were made in this run, by identity.
    """

    def __init__(self, *, allow_repeats: bool = False) -> None:
        self.played: dict[int, R] = {}
        self.made: dict[int, R] = {}
        self._allow_repeats = allow_repeats
        self._tracks: dict[Hashable, AnswerTrack[R]] = {}

    def __len__(self) -> int:
        return sum(len(track.recordings) for track in self._tracks.values())

    def __iter__(self) -> Iterator[R]:
        for track in self._tracks.values():
            yield from track.recordings

    def add(self, key: Hashable, recording: R) -> None:
        """Add a recording to those of the same call."""
        track = self._tracks.get(key)
        if track is None:
            track = self._tracks[key] = AnswerTrack(0)
        # Parallel calls may end in any order; they are played in the order in which the model asked for them.
        bisect.insort(track.recordings, recording, key=_play_order)

    def record(self, key: Hashable, recording: R, scope: ReplayScope, *, replace: bool) -> bool:
        """Keep a recording that a scope has made.

        Args:
            key: The call.
            recording: The recording.
            scope: The scope that made it, which has thereby used it.
            replace: Whether it takes the place of one that earlier scopes recorded of the same call. Where they made
                the call more often, their further recordings stay.

        Returns:
            Whether it was kept: of two scopes at the same time, one alone records a call.
        """
        if replace:
            track = self._tracks.get(key)
            if track is not None and scope.number < track.run:
                return False  # of two scopes that record at once, the one that began last is kept
            if track is None:
                self._tracks[key] = AnswerTrack(scope.number)
            else:
                if scope.number > track.run:
                    track.begin(scope.number)
                gone = track.remove_replaced(recording)
                if gone is not None:
                    self.played.pop(id(gone), None)
                    self.made.pop(id(gone), None)
        elif self._take_unused(key, _play_order(recording), scope) is not None:
            return False  # another scope recorded the call while this scope waited for its answer
        self.add(key, recording)
        scope.used[id(recording)] = self.played[id(recording)] = self.made[id(recording)] = recording
        return True

    def take(self, key: Hashable, wanted: tuple[int, int], scope: ReplayScope) -> tuple[R, int] | None:
        """Take the recording that answers a call. The scope cannot use it again, unless repeats are allowed.

        Args:
            key: The call.
            wanted: The run of its sub-agent and the index of the call: equal calls of one step start in any order on
                trio, so the recording of the same index comes first.
            scope: The scope that asks.

        Returns:
            The recording and its place among those of the call, from 1; `None` if there is none left.
        """
        found = self._take_unused(key, wanted, scope)
        if found is None and self._allow_repeats and self.count(key):
            recordings = self._tracks[key].recordings
            return recordings[-1], len(recordings)
        return found

    def _take_unused(self, key: Hashable, wanted: tuple[int, int], scope: ReplayScope) -> tuple[R, int] | None:
        track = self._tracks.get(key)
        if track is None:
            return None
        recordings, used = track.recordings, scope.used
        place = bisect.bisect_left(recordings, wanted, key=_play_order)
        while place < len(recordings) and _play_order(recordings[place]) == wanted:
            if id(recordings[place]) not in used:
                break
            place += 1
        else:
            place = next((each for each, one in enumerate(recordings) if id(one) not in used), -1)
        if place < 0:
            return None
        found = recordings[place]
        used[id(found)] = self.played[id(found)] = found
        return found, place + 1

    def count(self, key: Hashable) -> int:
        """Return how many recordings there are of a call."""
        track = self._tracks.get(key)
        return 0 if track is None else len(track.recordings)


def _play_order(recording: Recording) -> tuple[int, int]:
    return recording.operation, recording.call_index
