"""The resident process: holds the sessions of coding agents, and answers the questions of their hook processes.

It listens on a socket in a folder that only its user may enter. The protocol is one line and a body each way::

    VERSION RULE EVENT SECONDS LENGTH          the client, with LENGTH bytes of the host's JSON
    +hookline CODE OUT ERR                     the resident process, with OUT bytes of stdout and ERR of stderr

The `+` says that the question has arrived. Without it nothing was judged, and the client may ask another process. It
may also do so if the line ends after `+?`: a person is being asked, and another process takes over the question.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from hookline.errors import HooklineError, message_of
from hookline.hosts._abandoning import abandon_interrupted, abandon_orphans
from hookline.hosts._answers import HookVerdict, HostReply
from hookline.hosts._command.client import VERSION
from hookline.hosts._installation import HOOK, Installation, read_installation
from hookline.hosts._moments import Moment
from hookline.hosts._pending_calls import reject_forgotten
from hookline.hosts._policy import InstalledPolicy
from hookline.hosts._reading import QuestionError, SessionEvent, read_event
from hookline.hosts._sessions import HostPatience, QuestionMoved, Session, capabilities_of
from hookline.runtime import AdapterRun

__all__ = ["HostDecision", "Resident", "ResidentStatus", "SessionStatus", "run_resident"]

logger = logging.getLogger("hookline")

LONGEST_QUESTION = 64 * 1024 * 1024
LONGEST_LOG = 1024 * 1024
KEPT_DECISIONS = 50
ANSWER_SECONDS = 0.25
"""How much sooner than the client the resident process gives up, so that its reason still arrives."""
IDLE_SECONDS = 6 * 3600.0
LOOK_SECONDS = 60.0
INTERRUPT_SECONDS = 0.5
"""Seconds between two looks for interrupted operations at least; see `hookline.store`."""
MOST_AGENTS = 10_000


class HostDecision(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One answer of the resident process, as `hookline host status` shows it.

    Attributes:
        time: When, in unix seconds.
        session: The session.
        event: The host's event.
        tool: The tool, if there is one.
        decision: `"deny"`, `"ask"`, `"continue"`, `"changed"`, `"stop"`, `"error"`; `""` if nothing was said.
        reason: The reason.
        duration_ms: How long the answer took.
    """

    time: float
    session: str
    event: str
    tool: str = ""
    decision: str = ""
    reason: str = ""
    duration_ms: float = 0.0


class SessionStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An open session.

    Attributes:
        session: The host's id.
        operation_id: Its operation.
        idle_seconds: How long ago its last event was.
    """

    session: str
    operation_id: str
    idle_seconds: float


class ResidentStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The state of a resident process, as it describes itself.

    Attributes:
        pid: Its process id.
        version: Its version.
        started: When it started, in unix seconds.
        questions: Number of questions so far.
        sessions: The open sessions.
        unknown_events: How often each event came that this version does not know.
        unknown_fields: How often each field came that this version does not know.
        decisions: The last answers, oldest first.
    """

    pid: int
    version: str
    started: float
    questions: int
    sessions: list[SessionStatus]
    unknown_events: dict[str, int]
    unknown_fields: dict[str, int]
    decisions: list[HostDecision]


class Resident:
    """Answers the hook processes of one installation.

    Args:
        installation: The installation.
        path: The file of the installation.
        policy: Its hooks, open.
        look_seconds: How often it looks whether sessions were left, and whether its socket is still there.
        idle_seconds: After which a session counts as left, and a process without sessions ends.
    """

    def __init__(
        self,
        installation: Installation,
        path: Path,
        policy: InstalledPolicy,
        *,
        look_seconds: float = LOOK_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._look_seconds, self._idle_seconds = look_seconds, idle_seconds
        self._installation, self._host, self._policy = installation, installation.find_host(), policy
        self._started = time.time()
        self._capabilities = capabilities_of(self._host)
        self._sessions: dict[str, Session] = {}
        self._parents: dict[str, str] = {}
        """The session or sub-agent that called each sub-agent, where sub-agents have sessions of their own."""
        self._unknown_events: Counter[str] = Counter()
        self._unknown_fields: Counter[str] = Counter()
        self._decisions: deque[HostDecision] = deque(maxlen=KEPT_DECISIONS)
        self._questions = 0
        self._serving: set[asyncio.Task[Any]] = set()
        self._retired = asyncio.Event()
        self._watched = {file: _stamp(file) for file in (path, HOOK, HOOK.with_name("client.py"), *policy.watched)}
        self._socket = Path(installation.sockets) / f"{installation.key}.sock"
        self._inode = 0
        self._server: asyncio.Server | None = None

    async def serve(self) -> None:
        """Listen until another process takes over, `retire` is called, the socket is gone, or nobody asks for hours."""
        server = self._server = await self._listen()
        logger.info("Listening for %s, version %s, process %d.", self._host.title, VERSION, os.getpid())
        watching = asyncio.create_task(self._watch_interrupts())
        last = time.monotonic()
        while not self._retired.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._retired.wait(), self._look_seconds)
            if self._retired.is_set():
                break
            await self._close_left_sessions()
            now = time.monotonic()
            last = now if self._sessions or self._serving else last
            if now - last > self._idle_seconds or not self._owns_socket():  # nobody can ask where the socket is gone
                self.retire()
        server.close()
        if self._serving:  # questions under way get their answers
            await asyncio.wait(self._serving, timeout=self._installation.deadline)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        for session in list(self._sessions.values()):
            with contextlib.suppress(HooklineError):
                await session.leave()
        logger.info("Ended, process %d.", os.getpid())

    async def _close_left_sessions(self) -> None:
        """End sessions that were left, also those of processes that have died, and questions that nobody answers."""
        for name, session in list(self._sessions.items()):
            if session.is_idle(self._idle_seconds):
                self._forget_session(name)
                try:
                    await session.close(done=False)
                except HooklineError as error:
                    logger.warning("Session %s could not be ended: %s", name, message_of(error))
        host = self._host
        try:
            await abandon_orphans(self._policy, host.name, host.title)
            await reject_forgotten(self._policy, host.name, self._capabilities, self._installation.ask_seconds)
        except Exception as error:  # the next look tries again
            logger.warning("Operations that were left could not be looked up: %s", message_of(error))

    async def _watch_interrupts(self) -> None:
        """End operations that somebody interrupts and that no process runs: they wait for a person, or are left."""
        if self._policy.sql is None:
            return
        from hookline.store import INTERRUPTS

        woken = asyncio.Event()
        woken.set()
        async with self._policy.sql.wakeups.woken(INTERRUPTS, woken.set):
            while True:
                await woken.wait()
                woken.clear()
                try:
                    await abandon_interrupted(self._policy, self._host.name, self._host.title)
                except Exception as error:  # the next wake-up, or the slow net, tries
                    logger.info("Operations that are to be interrupted could not be looked up: %s", error)
                await asyncio.sleep(INTERRUPT_SECONDS)

    def retire(self) -> None:
        """Stop listening; questions under way get their answers, new ones start another process."""
        if self._owns_socket():
            with contextlib.suppress(OSError):
                self._socket.unlink()
        if self._server is not None:
            self._server.close()
        self._retired.set()

    def _owns_socket(self) -> bool:
        """Return whether the socket is still there, and this process's."""
        try:
            return self._socket.stat().st_ino == self._inode
        except OSError:
            return False

    async def _listen(self) -> asyncio.Server:
        """Listen at the socket, which appears at once and whole."""
        unfinished = self._socket.with_name(f"{self._installation.key}.{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            unfinished.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(unfinished))
        unfinished.chmod(0o600)
        self._inode = unfinished.stat().st_ino
        server = await asyncio.start_unix_server(self._connected, sock=listener, backlog=1024)
        unfinished.replace(self._socket)
        return server

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._exchange(reader, writer)
        except (OSError, asyncio.IncompleteReadError, ValueError):
            pass  # the client has gone, or is none
        finally:
            self._serving.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a question and write its answer."""
        if not _is_own(writer.get_extra_info("socket")):
            return
        begun = time.perf_counter()
        words = (await reader.readline()).decode().split()
        if len(words) != 5:
            return
        version, rule, event, seconds, length = words
        if rule in ("judge", "tell") and (version != VERSION or not self._is_fresh()):
            self.retire()
            return  # without a word: the client starts the process that replaces this one
        if not 0 <= int(length) <= LONGEST_QUESTION:
            return
        question = await reader.readexactly(int(length))
        writer.write(b"+")
        if rule == "status":
            answer = HostReply(out=msgspec.json.encode(self.status()))
        elif rule == "stop":
            self.retire()
            answer = HostReply()
        else:
            try:
                answer = await self._answer_in_time(reader, writer, event, question, float(seconds), begun)
            except QuestionMoved:
                return  # the client asks the process that replaces this one
        writer.write(b"hookline %d %d %d\n" % (answer.code, len(answer.out), len(answer.err)) + answer.out + answer.err)
        await writer.drain()

    async def _answer_in_time(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        event: str,
        question: bytes,
        seconds: float,
        begun: float,
    ) -> HostReply:
        """Answer a question, unless the client goes away or its time is over; hooks are cancelled then."""

        def announce_wait() -> None:
            if not announced:
                announced.append(True)
                writer.write(b"?")

        announced: list[bool] = []
        judging = asyncio.ensure_future(self.answer(event, question, seconds, begun, announce_wait))
        gone = asyncio.ensure_future(reader.read(1))
        limit = max(seconds - ANSWER_SECONDS, 0.05)
        try:
            await asyncio.wait({judging, gone}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if judging.done():
                return judging.result()
        finally:
            gone.cancel()
            if not judging.done():
                judging.cancel()
            await asyncio.gather(judging, gone, return_exceptions=True)
        reason = f"The hooks did not answer within {limit:.1f} s, so the call is denied."
        self._note(event, "", "", HookVerdict(decision="deny", reason=reason), begun, failed=True)
        return self._refuse(event, reason)

    async def answer(
        self,
        event: str,
        question: bytes,
        seconds: float,
        begun: float,
        announce_wait: Callable[[], None] = lambda: None,
    ) -> HostReply:
        """Read an event, run its hooks, and write the verdict in the host's words.

        Args:
            event: The host's name of the event.
            question: The JSON that the host wrote.
            seconds: How long the client waits.
            begun: When the question came, by `time.perf_counter`.
            announce_wait: Called when a person is asked, whose decision another process can take over from now on.

        Raises:
            QuestionMoved: If this process ends while a person is asked.
        """
        self._questions += 1
        found: SessionEvent | None = None
        try:
            found = read_event(self._host, event, question)
            self._unknown_fields.update(found.unknown)
            if found.moment is Moment.OTHER:
                self._unknown_events[event] += 1
                return HostReply()
            session = self._session_of(found)
            left = seconds - (time.perf_counter() - begun)
            verdict = await session.judge(found, HostPatience(left, announce_wait))
            if found.moment is Moment.SESSION_END:
                self._forget_session(session.session_id)
            answer = self._host.write(found.moment, event, verdict)
        except QuestionMoved:
            raise
        except Exception as error:
            reason = message_of(error)
            if not isinstance(error, HooklineError):
                logger.error("%s of %s failed", event, self._host.title, exc_info=error)
                reason = f"hookline failed ({type(error).__name__}: {reason}), so the call is denied."
            elif not isinstance(error, QuestionError):
                reason = f"{reason.rstrip('.')}. So the call is denied."
            names = (found.session_id, found.tool) if found is not None else ("", "")
            self._note(event, *names, HookVerdict(decision="deny", reason=reason), begun, failed=True)
            return self._refuse(event, reason)
        self._note(event, found.session_id, found.tool, verdict, begun)
        return answer

    def _session_of(self, event: SessionEvent) -> Session:
        """Return the session of an event, which may be new."""
        if event.parent_id and event.agent_id and event.agent_id != event.parent_id:
            self._parents[event.agent_id] = event.parent_id
            if len(self._parents) > MOST_AGENTS:
                del self._parents[next(iter(self._parents))]
        name, seen = event.session_id, {event.session_id}
        while (above := self._parents.get(name)) is not None and above not in seen:
            name = above
            seen.add(name)
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = Session(self._host, name, self._policy, self._retired.is_set)
        return session

    def _forget_session(self, name: str) -> None:
        self._sessions.pop(name, None)
        self._parents = {agent: parent for agent, parent in self._parents.items() if parent != name}

    def _refuse(self, event: str, reason: str) -> HostReply:
        """Return the answer of a question that failed: where it judges a call, the call is denied."""
        if not self._host.judges(event):
            return HostReply()
        verdict = HookVerdict(decision="deny", reason=reason)
        answer = self._host.write(self._host.events[event], event, verdict)
        return answer if answer.out else HostReply(err=f"{reason}\n".encode(errors="replace"), code=2)

    def _note(
        self, event: str, session: str, tool: str, verdict: HookVerdict, begun: float, *, failed: bool = False
    ) -> None:
        """Keep a decision for `host status`, and log the ones that matter. Arguments are never logged."""
        word: str = verdict.decision
        if failed:
            word = "error"
        elif verdict.stop is not None:
            word = "stop"
        elif not word and (verdict.args is not None or verdict.result is not None):
            word = "changed"
        took = (time.perf_counter() - begun) * 1000
        decision = HostDecision(
            time=time.time(),
            session=session,
            event=event,
            tool=tool,
            decision=word,
            reason=verdict.reason[:500] or (verdict.stop or "")[:500],
            duration_ms=round(took, 3),
        )
        self._decisions.append(decision)
        if word:
            logger.log(
                logging.WARNING if failed else logging.INFO,
                "%s %s %s: %s (%.1f ms, session %s)",
                event,
                tool,
                word,
                " ".join(decision.reason.split()),
                took,
                session,
            )

    def status(self) -> ResidentStatus:
        """Return what `hookline host status` shows."""
        now = time.monotonic()
        return ResidentStatus(
            pid=os.getpid(),
            version=VERSION,
            started=self._started,
            questions=self._questions,
            sessions=[
                SessionStatus(session=name, operation_id=each.operation_id, idle_seconds=round(now - each.used, 1))
                for name, each in self._sessions.items()
            ],
            unknown_events=dict(self._unknown_events),
            unknown_fields=dict(self._unknown_fields),
            decisions=list(self._decisions),
        )

    def _is_fresh(self) -> bool:
        """Whether this process still runs what is installed: the installation, the hooks and hookline itself."""
        return not self._retired.is_set() and all(_stamp(file) == stamp for file, stamp in self._watched.items())


def _stamp(file: Path) -> tuple[int, int]:
    try:
        found = os.stat(file)
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


def _is_own(connection: Any) -> bool:
    """Whether a connection comes from a process of this user; the folder keeps others out where nobody can tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(found[4:8], sys.byteorder) in (os.getuid(), 0)


async def _run(path: Path) -> None:
    installation = read_installation(path)
    policy = InstalledPolicy(installation)
    # Refuses hooks that would never be called, before anybody relies on them.
    AdapterRun(policy.own_hooks, capabilities_of(installation.find_host()))
    async with policy:
        resident = Resident(installation, path, policy)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, resident.retire)
        await resident.serve()


def run_resident(path: Path) -> int:
    """Run the resident process of an installation; return its exit code.

    Args:
        path: The file of the installation.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING, stream=sys.stderr)
    logger.setLevel(logging.INFO)
    _shorten_log()
    try:
        asyncio.run(_run(path))
    except HooklineError as error:
        print(f"hookline: {error}", file=sys.stderr, flush=True)
        return 1
    except Exception as error:
        logger.error("The resident process ended", exc_info=error)
        print(f"hookline: {type(error).__name__}: {message_of(error)}", file=sys.stderr, flush=True)
        return 1
    return 0


def _shorten_log() -> None:
    """Put a long log aside, and begin it anew."""
    try:
        log = os.readlink("/proc/self/fd/2")
        if log.endswith(".log") and os.fstat(2).st_size > LONGEST_LOG:
            shutil.copyfile(log, f"{log}.1")
            os.chmod(f"{log}.1", 0o600)
            os.ftruncate(2, 0)
    except OSError:
        return
