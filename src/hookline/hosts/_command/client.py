"""The command that a coding agent runs as its hook: ask the resident process, and refuse if it does not answer.

It runs as `python -I -S hook.py RULE EVENT SECONDS FOLDER KEY INSTALLATION [NAME ...]`, dozens of times in a session,
so it imports only what a bare interpreter has loaded anyway, and `_socket`: `socket`, `json` and `argparse` cost 5 to
15 ms each. It sends its stdin unread, and copies the answer.

With the rule `judge` every failure is a refusal: a reason on stderr, nothing on stdout, exit code 2. That is the one
refusal that all coding agents understand. With the rule `tell` a failure says nothing: there, exit code 2 would make an
agent go on, or discard a prompt.
"""

import _socket
import os
import sys

VERSION = "0.1.0"
"""The version of hookline; a resident process of another version ends, and the client starts a new one."""
NAP_SECONDS = 0.01
WAITS = b"+?"
"""The beginning of an answer for which a person is asked."""
OWN_NAMES = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "SHELL")
OWN_PREFIXES = ("LC_", "XDG_", "HOOKLINE_", "OTEL_")
"""The environment of the resident process; the rest, API keys of the coding agent included, stays behind."""


class Refusal(Exception):
    """The question has no answer."""


def now() -> float:
    """Return seconds of a clock that only goes forward."""
    return os.times().elapsed


def nap() -> None:
    """Wait a moment."""
    here, there = _socket.socketpair()
    here.settimeout(NAP_SECONDS)
    try:
        here.recv(1)
    except TimeoutError:
        pass
    here.close()
    there.close()


def read_question(end: float) -> bytes:
    """Return all of stdin, which a host may never close."""
    os.set_blocking(0, False)
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(0, 1 << 20)
        except BlockingIOError:
            if now() >= end:
                raise Refusal("the question did not arrive in time") from None
            nap()
            continue
        if not part:
            return b"".join(parts)
        parts.append(part)


def check_owner(folder: str, key: str) -> None:
    """Refuse a folder or a socket that another user made, or that others may enter.

    Raises:
        FileNotFoundError: If there is none.
    """
    found = os.lstat(folder)
    if found.st_mode & 0o170000 != 0o040000 or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise Refusal(f"{folder} is not a private folder of this user")
    if os.lstat(f"{folder}/{key}.sock").st_uid != os.getuid():
        raise Refusal(f"{folder}/{key}.sock is not a socket of this user")


def connect(folder: str, key: str, end: float) -> "_socket.socket | None":
    """Return a connection to the resident process; `None` if there is none."""
    line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        check_owner(folder, key)
        line.settimeout(max(end - now(), NAP_SECONDS))
        line.connect(f"{folder}/{key}.sock")
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
        line.close()
        return None
    except BaseException:
        line.close()
        raise
    return line


def start(folder: str, key: str, installation: str, names: "list[str]", end: float) -> None:
    """Start the resident process, unless another client is at it, and wait until it listens."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    try:
        check_owner(folder, key)
    except FileNotFoundError:
        pass
    lock = os.open(f"{folder}/{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.lockf(lock, os.F_TLOCK, 0)
    except OSError:  # another client starts it
        os.close(lock)
        nap()
        return
    line = connect(folder, key, end)
    if line is None:
        child = os.fork()
        if child == 0:
            become_resident(folder, key, installation, names)
        while line is None:
            ended, _ = os.waitpid(child, os.WNOHANG)
            if ended:
                raise Refusal(f"the resident process could not start{last_words(f'{folder}/{key}.log')}")
            if now() >= end:
                raise Refusal("the resident process did not start in time")
            nap()
            line = connect(folder, key, end)
    line.close()
    os.close(lock)


def last_words(path: str) -> str:
    """Return the last line of a log, and where the rest of it is."""
    try:
        log = os.open(path, os.O_RDONLY)
        os.lseek(log, -min(os.fstat(log).st_size, 1000), 2)
        lines = os.read(log, 1000).decode(errors="replace").split("\n")
        os.close(log)
    except OSError:
        return ""
    return f": {([line for line in lines if line.strip()] or ['it said nothing'])[-1]} (see {path})"


def become_resident(folder: str, key: str, installation: str, names: "list[str]") -> None:
    """Replace this process by the resident one, in a session of its own and with nothing of the host's open.

    Hosts wait until every process that holds the hook's stdout has ended.
    """
    try:
        os.setsid()
        nothing = os.open("/dev/null", os.O_RDWR)
        log = os.open(f"{folder}/{key}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for number, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(number, target)
        os.closerange(3, 4096)
        os.chdir("/")
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in OWN_NAMES or name in names or name.startswith(OWN_PREFIXES)
        }
        os.execve(sys.executable, [sys.executable, "-P", "-m", "hookline.hosts", installation], kept)
    finally:
        os._exit(127)


def receive(line: "_socket.socket", end: float) -> bytes:
    """Return what the resident process says, up to its end."""
    parts: list[bytes] = []
    while True:
        line.settimeout(max(end - now(), NAP_SECONDS))
        try:
            part = line.recv(1 << 20)
        except ConnectionResetError:
            return b"".join(parts)
        if not part:
            return b"".join(parts)
        parts.append(part)


def ask(rule: str, event: str, folder: str, key: str, installation: str, names: "list[str]", end: float) -> bytes:
    """Return the answer of the resident process, which is started, or replaced, within the same deadline.

    If it ends without an answer, or while it waits for the decision of a person, another one is asked.
    """
    question = read_question(end)
    while now() < end:
        line = connect(folder, key, end)
        if line is None:
            start(folder, key, installation, names, end)
            continue
        head = f"{VERSION} {rule} {event} {max(end - now(), 0):.3f} {len(question)}\n".encode()
        try:
            line.sendall(head + question)
        except (BrokenPipeError, ConnectionResetError):  # it ends, and says why or says nothing
            pass
        answer = receive(line, end)
        line.close()
        if answer and answer != WAITS:
            return answer.replace(WAITS, b"+", 1) if answer.startswith(WAITS) else answer
        nap()  # nothing was judged, or nothing was decided: another one may be asked
    raise Refusal("the resident process did not answer in time")


def main(arguments: "list[str]") -> None:
    """Ask, and end this process with the answer."""
    rule = arguments[0] if arguments else "judge"
    try:
        rule, event, seconds, folder, key, installation, *names = arguments
        answer = ask(rule, event, folder, key, installation, names, now() + float(seconds))
        head, found, body = answer.partition(b"\n")
        words = head.split()
        if not found or len(words) != 4 or words[0] != b"+hookline":
            raise Refusal("the resident process broke off its answer")
        code, out, err = int(words[1]), int(words[2]), int(words[3])
        if len(body) != out + err:
            raise Refusal("the resident process broke off its answer")
    except TimeoutError:
        code, body, out = refuse(rule, "the resident process did not answer in time")
    except BaseException as error:
        code, body, out = refuse(rule, str(error) or type(error).__name__)
    try:
        write(2, body[out:])
        write(1, body[:out])
    except OSError:  # the host does not read it
        code = 2 if rule == "judge" else 0
    os._exit(code)


def refuse(rule: str, reason: str) -> "tuple[int, bytes, int]":
    """Return the exit code and the output of a question that has no answer."""
    if rule != "judge":
        return 0, b"", 0
    return 2, f"hookline: {reason}, so the call is denied.\n".encode(errors="replace"), 0


def write(number: int, data: bytes) -> None:
    """Write all of the data."""
    while data:
        try:
            data = data[os.write(number, data) :]
        except BlockingIOError:  # stdin and stdout may be one socket, which does not block any more
            nap()
