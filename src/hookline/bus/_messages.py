"""What a bus carries, the errors that it raises, and the checks of its arguments."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import msgspec

from hookline._deadlines import runs_on_asyncio
from hookline.errors import HooklineError, HookUsageError, define_error
from hookline.events import EVENTS
from hookline.wakeups import check_seconds

__all__ = [
    "Answerer",
    "BusAnswerError",
    "BusUnavailableError",
    "CommitTooLargeError",
    "CommittedEvents",
    "EventFilter",
    "Hearer",
    "NobodyServesError",
    "Watcher",
    "check_asking",
    "check_commit",
    "check_handler",
    "check_key",
    "check_name",
    "check_value",
    "check_watcher",
    "no_answer_error",
]

KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
LONGEST_KEY, LARGEST_VALUE = 200, 65_536
"""Characters of a key, and bytes of a value."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


@define_error("The commit {id} has {size} bytes; the bus carries {limit}. Raise `max_payload` of the server.")
class CommitTooLargeError(HookUsageError):
    """A commit has more bytes than a message of the bus can have.

    Attributes:
        id: The id of the commit.
        size: Its bytes as JSON.
        limit: The bytes that a message can have.
    """

    id: str
    size: int
    limit: int


@define_error("Nobody on the bus answers {name!r}. Start a process that serves it.")
class NobodyServesError(HooklineError):
    """No process answers questions of this name.

    Attributes:
        name: The name that was asked.
    """

    name: str


@define_error("The question to {name!r} got no usable answer: {problem}.")
class BusAnswerError(HooklineError):
    """A process answered a question with a failure, or the question or the answer could not be carried.

    Attributes:
        name: The name that was asked.
        problem: What went wrong.
    """

    name: str
    problem: str


@define_error("The bus at {address} cannot be reached: {problem}.")
class BusUnavailableError(HooklineError, OSError):
    """The server of the bus cannot be reached, or refuses this process.

    Attributes:
        address: The address of the server, without passwords.
        problem: What went wrong.
    """

    address: str
    problem: str


class CommittedEvents(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The events that one commit added to the journal of an operation.

    Attributes:
        operation_id: The operation.
        number: The number of the last of the events in the operation, from 1. With the operation, it is the id of the
            commit: a commit that is heard twice has the same one.
        events: The events, oldest first, each as `hookline.events.encode` writes it.
        tenant_id: The tenant for whom the operation runs.
        hearers: The names for which it is; empty for all who hear.
        wanted: Wire names of the events that are for a name; a name that is not there hears all of them.
        replay: The id of the replay that tells it again; `""` when it is told for the first time.
        delivered: How often the bus has handed it to those who hear it under a name, this time included; 0 if the bus
            does not count.
    """

    operation_id: str
    number: int
    events: list[msgspec.Raw]
    tenant_id: str = ""
    hearers: list[str] = []
    wanted: dict[str, list[str]] = {}
    replay: str = ""
    delivered: int = 0

    @property
    def id(self) -> str:
        """The id of the commit: `<operation>:<number>`."""
        return f"{self.operation_id}:{self.number}"

    @property
    def message_id(self) -> str:
        """The id of the message that carries the commit: its `id`, and another one in each replay."""
        return f"{self.id}:{self.replay}" if self.replay else self.id

    @property
    def first(self) -> int:
        """The number of the first of the events."""
        return self.number - len(self.events) + 1


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which commits somebody hears: those with at least one event that matches. They are heard whole.

    Attributes:
        types: Wire names of events, such as `"onComplete"`; empty for all.
        tenant_ids: Tenants; empty for all.
        agent_ids: Globs over the ids of agents; empty for all.
    """

    types: Sequence[str] = ()
    tenant_ids: Sequence[str] = ()
    agent_ids: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuse an invalid filter.

        Raises:
            HookUsageError: If a field is no list of texts, or a type is unknown.
        """
        for name in self.__struct_fields__:
            given = getattr(self, name)
            if isinstance(given, str) or not all(isinstance(each, str) for each in given):
                raise HookUsageError(f"`{name}` of an EventFilter must be a list of texts; got {given!r:.100}.")
        for each in self.types:
            if each not in EVENTS:
                raise HookUsageError(f"There is no event {each!r:.100}; the events are {', '.join(EVENTS)}.")


Answerer: TypeAlias = Callable[[bytes], Awaitable[bytes]]
"""An async function that answers a question."""
Hearer: TypeAlias = Callable[[CommittedEvents], Awaitable[None]]
"""An async function that is called with each commit. If it raises, it is called with the same commit again."""
Watcher: TypeAlias = Callable[[str, bytes | None], None]
"""A quick function that is called with a key and its new value, or with `None` if the key has no value any more."""


def check_name(name: object) -> str:
    """Return a name, checked.

    Raises:
        HookUsageError: If it is no name.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise HookUsageError(
            f"A name on the bus has up to 63 letters, digits, '_' and '-', and begins with one of the first two; got "
            f"{name!r:.100}."
        )
    return name


def check_asking(name: object, question: object, deadline: object) -> None:
    """Check the arguments of `ask`.

    Raises:
        HookUsageError: If one is invalid, or the event loop is not asyncio's.
    """
    check_name(name)
    if not isinstance(question, bytes):
        raise HookUsageError(f"A question must be bytes; got {type(question).__name__}.")
    is_number = isinstance(deadline, int | float) and not isinstance(deadline, bool)
    if not is_number or not 0 < deadline <= 3600:  # type: ignore[operator]
        raise HookUsageError(f"`deadline` must be a number of seconds above 0, at most 3600; got {deadline!r:.100}.")
    if not runs_on_asyncio():
        raise HookUsageError("A bus needs asyncio, and this program runs on trio.")


def check_handler(name: object, handler: object) -> str:
    """Check the arguments of `answer` and `hear`, and return the name.

    Raises:
        HookUsageError: If one is invalid.
    """
    if not callable(handler):
        raise HookUsageError(f"A handler on the bus must be an async function; got {handler!r:.100}.")
    return check_name(name)


def check_commit(commit: object) -> CommittedEvents:
    """Return a commit, checked.

    Raises:
        HookUsageError: If it is invalid.
    """
    if not isinstance(commit, CommittedEvents):
        raise HookUsageError(f"`tell` takes CommittedEvents; got {type(commit).__name__}.")
    if not commit.operation_id or not isinstance(commit.number, int) or commit.number < 1 or not commit.events:
        raise HookUsageError(f"CommittedEvents need an operation, a number from 1, and events; got {commit!r:.200}.")
    return commit


def check_key(key: object) -> str:
    """Return a key, or the first parts of keys, checked.

    Raises:
        HookUsageError: If it is no key.
    """
    if not isinstance(key, str) or len(key) > LONGEST_KEY or not KEY.fullmatch(key):
        raise HookUsageError(
            f"A key on the bus has parts of letters, digits, '_' and '-' that are joined by dots, {LONGEST_KEY} "
            f"characters at most; got {key!r:.300}."
        )
    return key


def check_value(key: object, value: object, seconds: float | None) -> None:
    """Check the arguments of `put`.

    Raises:
        HookUsageError: If one is invalid.
    """
    check_key(key)
    if not isinstance(value, bytes) or len(value) > LARGEST_VALUE:
        size = f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
        raise HookUsageError(f"A value on the bus must be bytes, at most {LARGEST_VALUE}; got {size}.")
    if seconds is not None:
        check_seconds("seconds", seconds)


def check_watcher(prefix: object, call: object) -> str:
    """Check the arguments of `watch`, and return the prefix.

    Raises:
        HookUsageError: If one is invalid.
    """
    if not callable(call):
        raise HookUsageError(f"`call` must be a function of a key and a value; got {call!r:.100}.")
    return check_key(prefix)


def no_answer_error(name: str, deadline: float, why: str = "") -> TimeoutError:
    """Return the error of a question that was not answered in time."""
    return TimeoutError(f"Nobody answered the question to {name!r} within {deadline:g} s{why}.")
