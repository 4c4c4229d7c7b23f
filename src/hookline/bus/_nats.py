"""`NatsBus`: a bus over NATS, with core requests for questions, and JetStream for committed events and values."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import msgspec

from hookline.bus._bus import Bus
from hookline.bus._hearing import DRAINING, Draining, check_filter, select_commits
from hookline.bus._memory import call_answerer, partition_of
from hookline.bus._messages import (
    Answerer,
    BusAnswerError,
    BusUnavailableError,
    CommittedEvents,
    CommitTooLargeError,
    EventFilter,
    Hearer,
    NobodyServesError,
    Watcher,
    check_asking,
    check_commit,
    check_handler,
    check_key,
    check_value,
    check_watcher,
    no_answer_error,
)
from hookline.bus._nats_values import NatsValues, raise_if_cancelled
from hookline.errors import HookUsageError, MissingExtraError, message_of
from hookline.wakeups import NET, POLL_SECONDS, LocalWakeups, check_seconds

__all__ = ["NatsBus"]

logger = logging.getLogger("hookline")
_Result = TypeVar("_Result")

SEED = re.compile(rb"\bS[A-Z2-7]{50,}")
"""The seed of an nkey, in a file of its own or among credentials."""
PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
CONNECTING, CLOSING = 5.0, 2.0
"""Seconds that one try to connect, and closing, may take."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Shortest and longest pause, in seconds, between two tries."""
PATIENCE = 0.25
"""Seconds, or a quarter of the deadline if that is less, without a sign of the process that was asked, after which all
others are asked. A living process gives a sign three times as often."""
WAKE_SECONDS = 0.02
"""Seconds between two messages with wake-ups of a process."""
TELLING, TRYING = 5.0, 1.0
"""Seconds within which the server must have kept a commit: altogether, and in one try."""
FETCHING = 2.0
"""Seconds after which a request for the next commit is made anew, as the server may have forgotten it."""
REMEMBERED = 120.0
"""Seconds for which the server knows a commit that is told again."""
HEADER_BYTES = 1024
"""Bytes of a message that are left for its headers."""
QUESTION, SECONDS, SIGN, STATUS = "Hookline-Question", "Hookline-Seconds", "Hookline-Sign", "Hookline-Status"
WORKING, FAILED = "working", "failed"
REFUSAL = re.compile(r"permissions violation for (?:publish|subscription) to \"([^\"]+)\"", re.IGNORECASE)
"""What the server says about a subject that this process may not use; it comes without a question of its own."""


async def flush_twice(client: Any) -> None:
    """Wait until the server has processed all that a client of `nats-py` was given to send.

    `Client.flush` writes its PING before what waits in the buffer of the client (2.16), so that its PONG may come
    before the server knows of a subscription that was made a moment ago. The second PING goes behind that buffer.
    """
    await client.flush()
    await client.flush()


class NatsBus(LocalWakeups, Bus):
    """A `Bus` over a NATS server. Use it with `async with`.

    Questions are core requests to a queue group; commits are kept by JetStream in partitions, each of which has one
    message under way, so that the order holds also when a process is killed. Values are in a bucket of JetStream, which
    needs nats-server 2.11 or later. Questions need no JetStream.

    The account of the server that the process logs in with says whom it reaches: give each tenant whose processes may
    not meet an account of its own.

    Args:
        url: `nats://host:4222` or `tls://host:4222`, also with `user:password@` or `token@`; several for a cluster.
        credentials: File with the JWT and the seed of a user (`.creds`).
        nkey_seed: File with the seed of an nkey.
        tls: The certificates to trust and to show; by default those of the system, with `tls://`. With either, a server
            without TLS is refused before this process logs in.
        prefix: First part of all subjects and streams; processes with different ones do not meet.
        wait: Seconds to wait for a server that cannot be reached yet; 0 to fail at once.
        partitions: Number of partitions of commits. All processes must give the same number.
        replicas: Number of servers of a cluster that keep each commit and value.
        keep_seconds: How long commits are kept for those who have not heard them.
        ack_seconds: Seconds after which a commit whose process gives no sign of life is heard by another process.
        net: Shortest and longest time, in seconds, after which a listener of wake-ups is called without a reason.
        poll_seconds: The same while the server is away.

    Raises:
        HookUsageError: If an argument is invalid.
        MissingExtraError: If the extra `nats` is not installed.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        credentials: str | os.PathLike[str] | None = None,
        nkey_seed: str | os.PathLike[str] | None = None,
        tls: ssl.SSLContext | None = None,
        prefix: str = "hookline",
        wait: float = 0.0,
        partitions: int = 16,
        replicas: int = 1,
        keep_seconds: float = 7 * 86400.0,
        ack_seconds: float = 10.0,
        net: Sequence[float] = NET,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        super().__init__(net)
        try:
            self._nats: Any = import_module("nats")
            self._js_errors: Any = import_module("nats.js.errors")
            self._js_api: Any = import_module("nats.js.api")
        except ImportError as error:
            raise MissingExtraError("nats", "NatsBus") from error
        self._urls = _check_urls(url)
        if not isinstance(prefix, str) or not PREFIX.fullmatch(prefix):
            raise HookUsageError(f"`prefix` must be up to 32 letters, digits, '_' and '-'; got {prefix!r:.100}.")
        if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= 256:
            raise HookUsageError(f"`partitions` must be a whole number from 1 to 256; got {partitions!r:.100}.")
        if isinstance(replicas, bool) or not isinstance(replicas, int) or not 1 <= replicas <= 5:
            raise HookUsageError(f"`replicas` must be a whole number from 1 to 5; got {replicas!r:.100}.")
        if wait != 0:
            check_seconds("wait", wait)
        self._login: dict[str, Any] = {
            "user_credentials": None if credentials is None else os.fspath(credentials),
            "nkeys_seed": None if nkey_seed is None else os.fspath(nkey_seed),
            "tls": tls,
        }
        self._prefix, self._wait = prefix, wait
        self._partitions, self._replicas = partitions, replicas
        self._keep_seconds = check_seconds("keep_seconds", keep_seconds)
        self._ack_seconds = check_seconds("ack_seconds", ack_seconds)
        self._poll_seconds = check_seconds("poll_seconds", poll_seconds)
        self._failures = (OSError, TimeoutError, self._nats.errors.Error)
        self._client: Any = None
        self._connected = asyncio.Event()
        self._connections = 0
        self._problem: Exception | None = None
        self._id = secrets.token_hex(8)
        self._asked: dict[str, _Replies] = {}
        self._questions: Counter[tuple[str, str]] = Counter()
        self._refusals: dict[str, str] = {}
        self._has_stream = False
        self._pending: set[str] = set()
        self._flush: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[Any]] = set()
        self._values = NatsValues(
            f"{prefix}-values", replicas=replicas, use_jetstream=self._use_jetstream, failures=self._failures
        )

    @property
    def address(self) -> str:
        """The addresses of the servers, without passwords."""
        return ", ".join(_without_login(url) for url in self._urls)

    @property
    def is_connected(self) -> bool:
        """Whether a server is connected now."""
        return self._connected.is_set()

    @property
    def reconnects(self) -> int:
        """Number of times that the server was connected again after it was away."""
        return max(0, self._connections - 1)

    @property
    def questions(self) -> dict[tuple[str, str], int]:
        """Number of questions that this process has asked, by name and outcome.

        The outcome is `"answered"`, `"nobody"` (no process serves the name), `"late"` (no answer before the deadline),
        or `"failed"`.
        """
        return dict(self._questions)

    def __repr__(self) -> str:
        return f"NatsBus({self.address!r})"

    async def __aenter__(self) -> Self:
        """Connect to the server.

        Raises:
            BusUnavailableError: If it cannot be reached within `wait` seconds, refuses this process, or has no TLS
                although this process wants it.
            HookUsageError: If the bus is open already, or a file with a login cannot be used.
        """
        if self._client is not None:
            raise HookUsageError("The bus is open already.")
        self._client = await self._connect()
        self._connected.set()
        self._connections = 1
        try:
            await self._client.subscribe(f"{self._inbox}.*", cb=self._take_reply)
            await self._client.subscribe(self._wake_subject, cb=self._hear_wake)
            await flush_twice(self._client)
            self._check_allowed(f"{self._inbox}.*", self._wake_subject)
        except BaseException as error:
            await self.aclose()
            if isinstance(error, self._failures) and not isinstance(error, BusUnavailableError):
                raise self._unavailable_error(error) from error
            raise
        self._change_net()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the bus."""
        await self.aclose()

    async def aclose(self) -> None:
        """Send the wake-ups that wait, for two seconds at most, and close the connection. May be called twice."""
        client, self._client = self._client, None
        if client is not None:
            if self._flush is not None:
                self._flush.cancel()
            with suppress(*self._failures):
                async with asyncio.timeout(CLOSING):
                    if self._pending:
                        await client.publish(self._wake_subject, self._take_pending())
                    await flush_twice(client)
            with suppress(*self._failures):
                async with asyncio.timeout(CLOSING):
                    await client.close()
            self._connected.clear()
        await super().aclose()

    async def _connect(self) -> Any:
        """Return a connected client.

        Raises:
            BusUnavailableError: If no server can be reached in time.
            HookUsageError: If a file with a login cannot be used.
        """
        self._check_login()
        ends, pause = asyncio.get_running_loop().time() + self._wait, FIRST_PAUSE
        while True:
            client = self._nats.NATS()
            self._require_tls(client)
            self._problem = None
            try:
                async with asyncio.timeout(CONNECTING * len(self._urls)):
                    await client.connect(
                        self._urls,
                        name="hookline",
                        allow_reconnect=False,
                        connect_timeout=CONNECTING,
                        reconnect_time_wait=FIRST_PAUSE,
                        max_reconnect_attempts=1,
                        ping_interval=10,
                        error_cb=self._note_error,
                        disconnected_cb=self._note_lost,
                        reconnected_cb=self._note_connected,
                        **{name: value for name, value in self._login.items() if value is not None},
                    )
            except (*self._failures, ValueError) as error:
                with suppress(*self._failures):
                    async with asyncio.timeout(CLOSING):  # after a failed TLS handshake, it might wait for ever
                        await client.close()
                # A refusal says more than the reset of the connection that follows it.
                told = error if self._problem is None else self._problem
                reasons = [each for each in (told, error) if self._is_final(each)]
                problem = message_of(reasons[0] if reasons else told)
                left = ends - asyncio.get_running_loop().time()
                if left <= 0 or reasons:
                    raise BusUnavailableError(self.address, problem) from error
                await asyncio.sleep(min(pause, left))
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                # From now on; the first connection must not be tried for ever.
                client.options |= {"allow_reconnect": True, "max_reconnect_attempts": -1}
                return client

    def _is_final(self, error: BaseException | None) -> bool:
        """Return whether it is of no use to try to connect again."""
        text = str(error).lower()
        return isinstance(error, ValueError | _NoTlsError | ssl.SSLError) or "authorization" in text

    def _require_tls(self, client: Any) -> None:
        """Make a client end a connection without TLS before it logs in, if this bus wants TLS.

        Without this, the client connects in plain text where the server, or somebody between, offers no TLS.
        """
        if self._login["tls"] is None and not any(url.startswith("tls://") for url in self._urls):
            return
        log_in = client._connect_command

        def log_in_over_tls() -> bytes:
            writer = getattr(client._transport, "_io_writer", None)
            if writer is not None and writer.get_extra_info("ssl_object") is None:
                raise _NoTlsError("the server offers no TLS, and this process wants it")
            return bytes(log_in())

        client._connect_command = log_in_over_tls

    def _check_login(self) -> None:
        """Refuse a file with a login that cannot be used.

        Raises:
            HookUsageError: With the reason, without what is in the file.
        """
        for name, key in (("credentials", "user_credentials"), ("nkey_seed", "nkeys_seed")):
            file = self._login[key]
            if file is None:
                continue
            try:
                found = SEED.search(Path(file).read_bytes())
            except OSError as error:
                raise HookUsageError(f"The file of `{name}` cannot be read: {error.strerror}: {file}") from None
            try:
                import_module("nkeys").from_seed(bytearray(found[0] if found else b"")).wipe()
            except Exception:
                raise HookUsageError(f"The file of `{name}` holds no valid seed of an nkey: {file}") from None

    async def _note_error(self, error: Exception) -> None:
        if not self._is_final(self._problem):
            self._problem = error
        refusal = REFUSAL.search(str(error))
        if refusal is None:
            logger.info("The bus at %s reports: %s", self.address, message_of(error))
            return
        subject = refusal[1].lower()
        if subject not in self._refusals:
            logger.warning("The bus at %s refuses this process: %s", self.address, refusal[0])
        self._refusals[subject] = refusal[0]
        for replies in self._asked.values():
            if subject in map(str.lower, replies.subjects):
                replies.put_nowait(refusal[0])

    def _check_allowed(self, *subjects: str) -> None:
        """Check that the server has not refused this process a subject.

        Raises:
            BusUnavailableError: If it has.
        """
        for subject in subjects:
            if subject.lower() in self._refusals:
                raise BusUnavailableError(self.address, self._refusals[subject.lower()])

    async def _note_lost(self) -> None:
        if self._client is not None:
            self._connected.clear()
            self._change_net()
            logger.warning("The bus at %s is away; it is connected again as soon as it is back.", self.address)

    async def _note_connected(self) -> None:
        self._connections += 1
        self._refusals.clear()  # the permissions may be others now
        self._has_stream = False  # the server may have lost it
        self._connected.set()
        self._change_net()
        self._call(*self._calls)  # they may have missed something
        await self._values.read_again()
        logger.info("The bus at %s is connected again.", self.address)

    def _open_client(self) -> Any:
        """Return the client.

        Raises:
            HookUsageError: If the bus is not open.
        """
        if self._client is None:
            raise HookUsageError("The bus is not open; use it inside of `async with NatsBus(...) as bus:`.")
        return self._client

    # Wake-ups

    @property
    def _wake_subject(self) -> str:
        return f"{self._prefix}.wake"

    def wake(self, topic: str) -> None:
        """Wake the listeners of a topic, in this process now and in others soon."""
        super().wake(topic)
        if self._client is not None:
            self._pending.add(topic)
            if self._flush is None:
                self._flush = asyncio.get_running_loop().call_later(WAKE_SECONDS, self._send_wakeups)

    def _take_pending(self) -> bytes:
        topics, self._pending = self._pending, set()
        return f"{self._id} {','.join(sorted(topics))}".encode()

    def _send_wakeups(self) -> None:
        self._flush = None
        if self._client is not None and self.is_connected:
            # With the present client, as `aclose` may take it away before the task begins.
            self._start(self._publish_quietly(self._client, self._wake_subject, self._take_pending()))
        elif self._client is not None:
            self._pending.clear()  # who listens is called when it is connected again

    async def _send_quietly(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        """Send a message that may get lost, as it does if the bus is closed."""
        if self._client is not None:
            await self._publish_quietly(self._client, subject, data, headers)

    async def _publish_quietly(
        self, client: Any, subject: str, data: bytes, headers: dict[str, str] | None = None
    ) -> None:
        with suppress(*self._failures):
            await client.publish(subject, data, headers=headers)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _hear_wake(self, message: Any) -> None:
        sender, _, topics = message.data.decode(errors="replace").partition(" ")
        if sender != self._id:
            self._call(*topics.split(","))

    def _pause(self) -> float:
        return super()._pause() if self.is_connected else self._poll_seconds

    # Questions

    @property
    def _inbox(self) -> str:
        return f"_INBOX.{self._prefix}.{self._id}"

    async def _take_reply(self, message: Any) -> None:
        replies = self._asked.get(message.subject.rpartition(".")[2])
        if replies is not None:  # an answer that comes too late, or a second one, is nobody's
            replies.put_nowait(message)

    async def ask(self, name: str, question: bytes, *, deadline: float) -> bytes:
        """Ask one of the processes that serve a name, and return its answer; see `Bus.ask`."""
        check_asking(name, question, deadline)
        client = self._open_client()
        if self.is_connected and len(question) + HEADER_BYTES > client.max_payload:
            raise BusAnswerError(name, f"it has {len(question)} bytes; the bus carries {client.max_payload}")
        token = secrets.token_hex(8)
        subjects = (f"{self._prefix}.ask.{name}", f"{self._prefix}.ask-all.{name}")
        replies = self._asked[token] = _Replies(subjects)
        outcome = "failed"
        try:
            async with asyncio.timeout(deadline) as limit:
                answer = await self._ask(name, question, deadline, f"{self._inbox}.{token}", replies)
            outcome = "answered"
            return answer
        except NobodyServesError:
            outcome = "nobody"
            raise
        except TimeoutError:
            if not limit.expired():
                raise
            outcome = "late"
            why = "" if self.is_connected else f"; the bus at {self.address} is away"
            raise no_answer_error(name, deadline, why) from None
        finally:
            del self._asked[token]
            self._questions[name, outcome] += 1

    async def _ask(self, name: str, question: bytes, deadline: float, inbox: str, replies: _Replies) -> bytes:
        """Ask one process, and all of them whenever it gives no sign, until an answer comes.

        Raises:
            NobodyServesError: If the server says that nobody listens.
            BusAnswerError: If the answer is a failure, or the server refused the question.
        """
        loop = asyncio.get_running_loop()
        ends, patience = loop.time() + deadline, min(PATIENCE, deadline / 4)
        subject, asked_at = replies.subjects[0], self._connections
        while True:
            await self._connected.wait()
            headers = {
                QUESTION: inbox.rpartition(".")[2],
                SECONDS: f"{max(0.001, ends - loop.time()):.3f}",  # not a time: clocks differ
                SIGN: f"{patience / 3:.3f}",
            }
            with suppress(*self._failures):  # it is asked again
                await self._open_client().publish(subject, question, reply=inbox, headers=headers)
            subject = replies.subjects[1]
            while (message := await _get_within(replies, patience)) is not None:
                if isinstance(message, str):
                    raise BusAnswerError(name, f"the server refused it: {message}")
                headers = message.headers or {}
                if headers.get("Status") == "503":
                    if asked_at == self._connections:
                        raise NobodyServesError(name)
                    await asyncio.sleep(patience)  # they may be connecting again, like this process
                    break
                if headers.get(STATUS) == FAILED:
                    raise BusAnswerError(name, message.data.decode(errors="replace"))
                if headers.get(STATUS) != WORKING:
                    return bytes(message.data)

    @asynccontextmanager
    async def answer(self, name: str, handler: Answerer) -> AsyncIterator[None]:
        """Answer questions of a name while the context is open; see `Bus.answer`."""
        check_handler(name, handler)
        client = self._open_client()
        under_way: dict[str, asyncio.Task[None]] = {}

        async def take_question(message: Any) -> None:
            question = (message.headers or {}).get(QUESTION, message.reply)
            if question not in under_way:  # it is asked again while this process is slow
                under_way[question] = task = asyncio.create_task(self._answer_message(message, name, handler))
                task.add_done_callback(lambda _: under_way.pop(question, None))

        subscriptions = [
            await client.subscribe(f"{self._prefix}.ask.{name}", queue=self._prefix, cb=take_question),
            await client.subscribe(f"{self._prefix}.ask-all.{name}", cb=take_question),
        ]
        with suppress(*self._failures):
            await flush_twice(client)
        try:
            self._check_allowed(*(subscription.subject for subscription in subscriptions))
            yield
        finally:
            for subscription in subscriptions:
                with suppress(*self._failures):
                    async with asyncio.timeout(CLOSING):
                        await subscription.drain()
            if client.is_closed:
                for task in under_way.values():
                    task.cancel()  # nobody could get the answer
            if under_way:
                await asyncio.wait(under_way.values())
            with suppress(*self._failures):
                async with asyncio.timeout(CLOSING):
                    await flush_twice(client)

    async def _answer_message(self, message: Any, name: str, handler: Answerer) -> None:
        headers = message.headers or {}
        try:
            seconds, sign = float(headers[SECONDS]), float(headers[SIGN])
        except (KeyError, ValueError):
            logger.warning("A message to %r on the bus is no question, and is ignored", name)
            return
        signing = asyncio.create_task(self._give_signs(message.reply, sign))
        failed = None
        try:
            async with asyncio.timeout(seconds) as limit:
                answer = await call_answerer(handler, message.data)
            room = self._open_client().max_payload - HEADER_BYTES
            if len(answer) > room:
                answer, failed = f"the answer has {len(answer)} bytes; the bus carries {room}".encode(), FAILED
        except Exception as error:
            if limit.expired():
                return  # nobody waits for it any more
            logger.exception("The handler of %r failed", name)
            answer, failed = f"{type(error).__name__}: {message_of(error)}"[:2000].encode(errors="replace"), FAILED
        finally:
            signing.cancel()
        await self._send_quietly(message.reply, answer, None if failed is None else {STATUS: failed})

    async def _give_signs(self, inbox: str, pause: float) -> None:
        while True:
            await asyncio.sleep(max(0.001, pause))
            await self._send_quietly(inbox, b"", {STATUS: WORKING})

    # Committed events

    @property
    def _stream(self) -> str:
        return f"{self._prefix}-events"

    async def _event_stream(self) -> Any:
        """Return JetStream, with the stream of commits.

        Raises:
            BusUnavailableError: If it cannot be reached, or this account may not use it.
            HookUsageError: If its number of partitions is another one.
        """
        jetstream = self._open_client().jetstream(timeout=TRYING)
        if self._has_stream:
            return jetstream
        subjects = [self._subject_of(nth) for nth in range(self._partitions)]
        try:
            try:
                found = (await jetstream.stream_info(self._stream)).config.subjects
            except self._js_errors.NotFoundError:
                await jetstream.add_stream(
                    name=self._stream,
                    subjects=subjects,
                    num_replicas=self._replicas,
                    max_age=self._keep_seconds,
                    duplicate_window=min(REMEMBERED, self._keep_seconds),
                    discard=self._js_api.DiscardPolicy.NEW,  # where it is full, `tell` fails rather than an old commit
                )
                found = subjects
        except self._failures as error:
            raise self._unavailable_error(error) from error
        if sorted(found) != sorted(subjects):
            raise HookUsageError(
                f"The stream {self._stream!r} has {len(found)} partitions, and this bus was given "
                f"partitions={self._partitions}; give all processes the same number, or another `prefix`."
            )
        self._has_stream = True
        return jetstream

    def _subject_of(self, partition: int) -> str:
        return f"{self._prefix}.events.{partition}"

    def _unavailable_error(self, error: BaseException) -> BusUnavailableError:
        problem = message_of(error)
        if isinstance(error, TimeoutError) and self._refusals:
            problem = list(self._refusals.values())[-1]  # why nobody answered
        return BusUnavailableError(self.address, problem)

    async def depths(self) -> dict[str, int]:
        """Return the number of commits that are kept and not heard yet, by name; see `Bus.depths`."""
        jetstream = await self._event_stream()
        depths: dict[str, int] = {}
        seen = 0
        try:
            while found := await jetstream.consumers_info(self._stream, offset=seen):
                seen += len(found)
                for each in found:
                    name = each.name.rpartition("-")[0]  # without the number of the partition
                    depths[name] = depths.get(name, 0) + each.num_pending + each.num_ack_pending
        except self._failures as error:
            raise self._unavailable_error(error) from error
        return depths

    async def stream_id(self) -> str:
        """Return the id of the stream, another one after the server has lost its files; see `Bus.stream_id`."""
        jetstream = await self._event_stream()
        try:
            created = (await jetstream.stream_info(self._stream)).created
        except self._failures as error:
            self._has_stream = False
            raise self._unavailable_error(error) from error
        return "" if created is None else str(created.isoformat())

    async def tell(self, commit: CommittedEvents) -> None:
        """Hand over a commit to all who hear; see `Bus.tell`."""
        check_commit(commit)
        data = msgspec.json.encode(commit)
        client = self._open_client()
        if self.is_connected and len(data) + HEADER_BYTES > client.max_payload:
            raise CommitTooLargeError(commit.id, len(data), client.max_payload - HEADER_BYTES)
        subject = self._subject_of(partition_of(commit.operation_id, self._partitions))
        # The same in every try: the server keeps it once.
        headers = {"Nats-Msg-Id": sha256(commit.message_id.encode(errors="surrogatepass")).hexdigest()}

        async def publish(_: Any) -> None:
            jetstream = await self._event_stream()
            try:
                await jetstream.publish(subject, data, timeout=1.0, headers=dict(headers))
            except self._js_errors.NoStreamResponseError:
                self._has_stream = False  # somebody has removed it
                raise

        await self._use_jetstream(publish)

    async def _use_jetstream(self, work: Callable[[Any], Awaitable[_Result]]) -> _Result:
        """Do something with JetStream, and try again while the server is away.

        Args:
            work: `async (jetstream) -> result`.

        Raises:
            BusUnavailableError: If it did not succeed within `TELLING` seconds, or the server refused it.
        """
        self._open_client()
        problem: BaseException | None = None
        refused_before = len(self._refusals)
        task = asyncio.current_task()
        cancelled_before = 0 if task is None else task.cancelling()
        try:
            async with asyncio.timeout(TELLING):
                while True:
                    raise_if_cancelled(cancelled_before)
                    await self._connected.wait()
                    try:
                        return await work(self._open_client().jetstream(timeout=TRYING))
                    except self._js_errors.APIError:
                        raise
                    except (*self._failures, BusUnavailableError) as error:
                        if len(self._refusals) > refused_before or (isinstance(error, TimeoutError) and self._refusals):
                            raise self._unavailable_error(TimeoutError()) from error
                        problem = error
                        await asyncio.sleep(FIRST_PAUSE)
        except (TimeoutError, self._js_errors.APIError) as error:
            raise self._unavailable_error(problem if isinstance(error, TimeoutError) and problem else error) from error

    @asynccontextmanager
    async def hear(self, name: str, handler: Hearer, *, where: EventFilter | None = None) -> AsyncIterator[None]:
        """Hear every commit that was told for a name, while the context is open; see `Bus.hear`."""
        check_handler(name, handler)
        handler = select_commits(name, handler, check_filter(where))
        client, draining = self._open_client(), Draining()
        jetstream = await self._event_stream()
        try:
            subscriptions = [await self._subscribe(jetstream, name, nth) for nth in range(self._partitions)]
        except self._failures as error:
            raise self._unavailable_error(error) from error
        tasks = [
            asyncio.create_task(self._hear_partition(each, name, nth, handler, draining))
            for nth, each in enumerate(subscriptions)
        ]
        try:
            yield
        finally:
            await draining.finish(tasks, seconds=0.0 if client.is_closed else DRAINING)

    async def _subscribe(self, jetstream: Any, name: str, partition: int) -> Any:
        durable = f"{name}-{partition}"
        await jetstream.add_consumer(
            self._stream,
            durable_name=durable,
            filter_subject=self._subject_of(partition),
            # "all" would confirm what a process that was killed had fetched and not heard.
            ack_policy=self._js_api.AckPolicy.EXPLICIT,
            ack_wait=self._ack_seconds,
            max_ack_pending=1,  # the order holds only if a commit waits for the one before it
        )
        return await jetstream.pull_subscribe_bind(durable, stream=self._stream)

    async def _hear_partition(
        self, subscription: Any, name: str, partition: int, handler: Hearer, draining: Draining
    ) -> None:
        pause = FIRST_PAUSE
        try:
            while True:
                raise_if_cancelled()
                try:
                    [message] = await subscription.fetch(1, timeout=FETCHING)
                except TimeoutError:
                    continue
                except self._failures as error:
                    logger.info("Commits cannot be fetched from the bus, and are in %g s: %s", pause, message_of(error))
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)
                    subscription = await self._subscribe_again(subscription, name, partition)
                else:
                    pause = FIRST_PAUSE
                    with suppress(*self._failures), draining.hearing():  # what could not be confirmed is heard again
                        await self._hear_message(message, handler)
                    # A process that stops ends the task here: the server would give the next commit that the task asks
                    # for to nobody, and to another process only after `ack_seconds`.
                    await asyncio.sleep(0)
        finally:
            with suppress(*self._failures):
                await subscription.unsubscribe()

    async def _subscribe_again(self, subscription: Any, name: str, partition: int) -> Any:
        """Return a subscription in the place of one that failed: a server may have lost the stream and the consumer."""
        self._has_stream = False
        try:
            renewed = await self._subscribe(await self._event_stream(), name, partition)
        except HookUsageError as error:
            logger.error("%r cannot hear commits: %s", name, error)
        except (BusUnavailableError, *self._failures) as error:
            logger.info("%r cannot hear commits yet: %s", name, message_of(error))
        else:
            with suppress(*self._failures):
                await subscription.unsubscribe()
            return renewed
        return subscription

    async def _hear_message(self, message: Any, handler: Hearer) -> None:
        try:
            commit = msgspec.json.decode(message.data, type=CommittedEvents)
        except msgspec.MsgspecError as error:
            logger.error("A message in the stream %r holds no commit, and is left out: %s", self._stream, error)
            await message.term()
            return
        commit = msgspec.structs.replace(commit, delivered=message.metadata.num_delivered)
        confirming = asyncio.create_task(self._keep(message))
        try:
            await handler(commit)
        except asyncio.CancelledError:
            with suppress(*self._failures):
                await message.nak()  # another process hears it at once
            raise
        except Exception:
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(message.metadata.num_delivered, 10))
            logger.exception("A handler failed with the commit %s, and gets it again in %g s", commit.id, pause)
            await message.nak(delay=pause)
        else:
            await message.ack()
        finally:
            confirming.cancel()

    async def _keep(self, message: Any) -> None:
        """Say from time to time that the commit is being heard."""
        while True:
            await asyncio.sleep(self._ack_seconds / 3)
            with suppress(*self._failures):
                await message.in_progress()

    # Values

    async def put(self, key: str, value: bytes, *, seconds: float | None = None) -> None:
        """Give a key a value, for all processes; see `Bus.put`."""
        check_value(key, value, seconds)
        await self._values.put(key, value, seconds)

    async def get(self, key: str) -> bytes | None:
        """Return the present value of a key; see `Bus.get`."""
        return await self._values.get(check_key(key))

    async def delete(self, key: str) -> None:
        """Take the value of a key away; see `Bus.delete`."""
        await self._values.delete(check_key(key))

    def watch(self, prefix: str, call: Watcher) -> AbstractAsyncContextManager[None]:
        """Call a function with the values of keys, and with each change; see `Bus.watch`."""
        return self._values.watch(check_watcher(prefix, call), call)


class _Replies(asyncio.Queue[Any]):
    """What comes back for a question: messages, and a text if the server refuses the question.

    Args:
        subjects: The subjects of one process and of all.
    """

    def __init__(self, subjects: tuple[str, str]) -> None:
        super().__init__()
        self.subjects = subjects


class _NoTlsError(ConnectionError):
    """A connection that should have TLS has none."""


async def _get_within(queue: asyncio.Queue[Any], seconds: float) -> Any:
    """Return the next item of a queue; `None` if none comes in time."""
    try:
        async with asyncio.timeout(seconds):
            return await queue.get()
    except TimeoutError:
        return None


def _check_urls(url: object) -> list[str]:
    """Return the URLs of the servers as a list.

    Raises:
        HookUsageError: If one is invalid.
    """
    urls: list[Any] = list(url) if isinstance(url, tuple | list) else [url]
    for each in urls:
        if not isinstance(each, str) or not re.match(r"(nats|tls|ws|wss)://[^\s]+$", each):
            raise HookUsageError(
                "The URL of NatsBus must be 'nats://host:4222' or 'tls://host:4222', also with 'user:password@'."
            )
    if not urls:
        raise HookUsageError("NatsBus needs the URL of a server, such as 'nats://host:4222'.")
    return urls


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
