"""The installed command when all goes wrong: it refuses by itself where a call is judged, and says nothing elsewhere."""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import itertools
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hookline.hosts import ask_status
from hookline.hosts._command import client
from tests.hosts.installed import Installed, Ran, alive, end_resident, frames, installed, wait_for_end


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Installed]:
    with installed(tmp_path, seconds=10.0) as made:
        yield made


@pytest.fixture
def unforked(tmp_path: Path) -> Iterator[Installed]:
    """A host whose resident process is Python as it starts."""
    with installed(tmp_path, seconds=10.0, forked=False) as made:
        yield made


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Installed]:
    """A host whose hooks have little time."""
    with installed(tmp_path, seconds=1.5) as made:
        while made.bash("echo first", session="s-0").code:  # the first start may take longer than that
            pass
        yield made


def test_the_client_imports_nothing_that_a_bare_interpreter_has_not_loaded() -> None:
    imported = set()
    for name in ("client.py", "hook.py"):
        for node in ast.walk(ast.parse(Path(client.__file__).with_name(name).read_text())):
            assert not isinstance(node, ast.ImportFrom)
            imported |= {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()

    assert imported == {"_socket", "os", "sys", "client"}


def test_the_client_is_of_the_version_that_is_installed() -> None:
    assert importlib.metadata.version("hookline") == client.VERSION


def test_the_resident_process_starts_with_the_first_question(unforked: Installed) -> None:
    assert ask_status(unforked.installation) is None

    answer = unforked.bash("deny this")

    assert "not on my machine" in answer.out
    assert alive(unforked.pid)


def test_a_policy_that_cannot_be_read_denies_and_says_why(unforked: Installed) -> None:
    Path(unforked.installation.folder, "policy.py").write_text("hooks = 1 +\n")

    answer = unforked.bash("echo hi")

    assert (answer.code, answer.out) == (2, "")
    assert "could not start" in answer.err
    assert "SyntaxError" in answer.err
    assert unforked.ask("Stop", {}) == Ran(0, "", "")


def test_a_changed_policy_holds_from_the_next_question_on(host: Installed) -> None:
    assert host.bash("echo hi") == Ran(0, "", "")
    old = host.pid
    file = Path(host.installation.folder, "policy.py")

    file.write_text(file.read_text().replace('"deny" in command', '"echo" in command'))

    assert "not on my machine" in host.bash("echo hi", call="other").out
    assert host.pid != old
    wait_for_end(old)


def test_a_resident_process_of_another_version_is_replaced_within_the_same_question(host: Installed) -> None:
    host.bash("echo hi")
    old = host.pid
    folder = Path(host.installation.folder)
    code, hook = Path(client.__file__), Path(client.__file__).with_name("hook.py")
    (folder / "client.py").write_text(code.read_text().replace(f'VERSION = "{client.VERSION}"', 'VERSION = "9.9.9"'))
    (folder / "hook.py").write_text(hook.read_text())
    words = host.installation.command_words("PreToolUse")
    words[words.index(str(hook))] = str(folder / "hook.py")
    words[words.index("10")] = "1.5"

    # No process of that version can be started here: what counts is that the old one gives way and nothing runs.
    event, frame = host.shell("echo hi")
    ran = subprocess.run(words, input=str(frame).encode(), capture_output=True, timeout=20, env=host.environment())

    assert (ran.returncode, ran.stdout) == (2, b"")
    assert event == "PreToolUse"
    wait_for_end(old)


def test_a_question_under_way_is_answered_while_the_process_is_replaced(tmp_path: Path) -> None:
    policy = """
import asyncio
from pathlib import Path

from hookline import Deny, Hooks, ToolCall

hooks = Hooks("policy")


@hooks.guard(ToolCall)
async def wait(call):
    if call.args["command"] == "wait":
        Path(__file__).with_name("waiting").touch()
        while not Path(__file__).with_name("go").exists():
            await asyncio.sleep(0.01)
        return Deny("by the old one")
"""
    with installed(tmp_path, policy=policy) as host:
        folder = Path(host.installation.folder)
        under_way = host.start(*host.shell("wait"))
        wait_until(lambda: (folder / "waiting").exists())
        old = host.pid
        (folder / "policy.py").write_text(policy.replace("by the old one", "by the new one"))
        assert host.bash("echo hi", session="s-2") == Ran(0, "", "")
        new = host.pid
        (folder / "go").touch()

        answer = host.finish(under_way)

        assert new != old
        assert "by the old one" in answer.out
        assert "by the new one" in host.bash("wait", session="s-3").out
        wait_for_end(old)


def test_a_resident_process_that_is_killed_with_a_question_denies_the_call(host: Installed) -> None:
    answer = host.bash("die")

    assert (answer.code, answer.out) == (2, "")
    assert "broke off its answer" in answer.err
    assert host.bash("echo again", session="s-2") == Ran(0, "", "")


def test_a_frozen_resident_process_denies_the_call_in_time_and_delays_nothing_else_for_ever(hasty: Installed) -> None:
    pid = hasty.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        judged, told = hasty.bash("echo hi"), hasty.ask("Stop", frames("claude")[-2][1])
    finally:
        os.kill(pid, signal.SIGCONT)

    assert judged.code == 2
    assert "did not answer in time" in judged.err
    assert (judged.out, told) == ("", Ran(0, "", ""))


def test_a_hook_that_blocks_the_process_denies_the_call(hasty: Installed) -> None:
    pid = hasty.pid
    try:
        answer = hasty.bash("freeze")
    finally:
        os.kill(pid, signal.SIGKILL)

    assert (answer.code, answer.out) == (2, "")
    assert "did not answer in time" in answer.err


def test_a_slow_hook_is_cancelled_and_the_reason_arrives_in_the_hosts_words(hasty: Installed) -> None:
    answer = hasty.bash("slow")

    assert answer.code == 0
    assert "The hooks did not answer within" in answer.json["hookSpecificOutput"]["permissionDecisionReason"]
    assert hasty.bash("echo hi", call="next") == Ran(0, "", "")


def test_an_answer_that_breaks_off_denies_the_call(tmp_path: Path) -> None:
    with installed(tmp_path, seconds=0.6) as host:
        Path(host.installation.sockets).mkdir(mode=0o700)
        for said in (b"", b"+", b"+hookline 0 5 0\nab", b"+hookline 0 0 0", b"nonsense", b"+hookline x 0 0\n"):
            with serving(host, said):
                judged, told = host.bash("echo hi"), host.ask("Stop", {})

            assert (judged.code, judged.out) == (2, "")
            assert judged.err.strip()
            assert told == Ran(0, "", "")


def test_a_client_that_is_killed_denies_the_call(hasty: Installed) -> None:
    pid = hasty.pid
    os.kill(pid, signal.SIGSTOP)
    process = hasty.start(*hasty.shell("echo hi"))
    try:
        client_pid = wait_until(lambda: child_of(process.pid))
        os.kill(client_pid, signal.SIGKILL)
        answer = hasty.finish(process)
    finally:
        os.kill(pid, signal.SIGCONT)

    assert (answer.code, answer.out) == (2, "")
    assert "its command failed, so the call is denied" in answer.err


def test_a_python_that_was_removed_denies_the_call(host: Installed) -> None:
    line = host.installation.command("PreToolUse").replace(host.installation.python, "/nowhere/python")

    ran = subprocess.run(["/bin/sh", "-c", line], input=b"{}", capture_output=True, timeout=20)

    assert (ran.returncode, ran.stdout) == (2, b"")
    assert b"its command failed" in ran.stderr


def test_a_question_that_never_ends_denies_the_call(hasty: Installed) -> None:
    read, write = os.pipe()
    try:
        ran = subprocess.run(
            ["/bin/sh", "-c", hasty.installation.command("PreToolUse")], stdin=read, capture_output=True, timeout=20
        )
    finally:
        os.close(read)
        os.close(write)

    assert (ran.returncode, ran.stdout) == (2, b"")
    assert b"did not arrive in time" in ran.stderr


def test_stdin_that_is_a_socket_is_read(host: Installed) -> None:
    here, there = socket.socketpair()
    with here, there:
        process = subprocess.Popen(
            ["/bin/sh", "-c", host.installation.command("PreToolUse")],
            stdin=there.fileno(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        here.sendall(json.dumps(host.shell("deny this")[1]).encode())
        here.shutdown(socket.SHUT_WR)
        answer = host.finish(process)

    assert "not on my machine" in answer.out


def test_only_this_user_may_enter_the_folder_of_the_socket(host: Installed) -> None:
    host.bash("echo hi")
    folder = Path(host.installation.sockets)

    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in folder.iterdir()} == {0}


def test_a_folder_that_others_may_enter_is_refused(host: Installed) -> None:
    Path(host.installation.sockets).mkdir(mode=0o700)
    Path(host.installation.sockets).chmod(0o755)

    answer = host.bash("echo hi")

    assert (answer.code, answer.out) == (2, "")
    assert "is not a private folder of this user" in answer.err
    Path(host.installation.sockets).chmod(0o700)


def test_a_link_in_place_of_the_folder_is_refused(host: Installed, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    Path(host.installation.sockets).symlink_to(tmp_path / "elsewhere")

    answer = host.bash("echo hi")

    assert (answer.code, answer.out) == (2, "")
    assert "is not a private folder of this user" in answer.err
    Path(host.installation.sockets).unlink()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as two users")
def test_a_folder_and_a_socket_of_another_user_are_refused(hasty: Installed) -> None:
    end_resident(hasty.installation)
    folder = Path(hasty.installation.sockets)
    with serving(hasty, b"+hookline 0 0 0\n"):
        os.chown(folder / f"{hasty.installation.key}.sock", 4321, 4321)
        by_socket = hasty.bash("echo hi")
        os.chown(folder, 4321, 4321)
        by_folder = hasty.bash("echo hi")
        os.chown(folder, 0, 0)

    assert (by_socket.code, by_folder.code) == (2, 2)
    assert "is not a socket of this user" in by_socket.err
    assert "is not a private folder of this user" in by_folder.err


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as two users")
def test_another_user_who_gets_at_the_socket_is_told_nothing(host: Installed) -> None:
    host.bash("echo hi")
    folder = Path(host.installation.sockets)
    temporary = Path(tempfile.gettempdir())
    assert temporary in folder.parents  # the folders above it belong to the machine
    around = itertools.takewhile(temporary.__ne__, folder.parents)
    for path in (*around, folder, folder / f"{host.installation.key}.sock"):
        path.chmod(path.stat().st_mode | 0o077)
    question = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
        "s.sendall(b'0 status - 1 0\\n'); print(s.recv(100))"
    )

    ran = subprocess.run(
        ["/usr/bin/env", "python3", "-c", question, str(folder / f"{host.installation.key}.sock")],
        user=4321,
        capture_output=True,
        timeout=20,
        cwd="/",
    )

    folder.chmod(0o700)
    assert ran.stdout.strip() in (b"b''", b"")


def test_two_projects_have_processes_of_their_own(tmp_path: Path) -> None:
    with installed(tmp_path / "one") as one, installed(tmp_path / "two", policy=_DENIES_ALL) as two:
        assert one.bash("echo hi") == Ran(0, "", "")
        assert "all of it" in two.bash("echo hi").out
        assert one.pid != two.pid


def test_clients_that_start_at_once_start_one_process(host: Installed) -> None:
    processes = [
        host.start(*host.shell("deny it" if nth % 2 else "echo hi", session=f"s-{nth % 3}", call=f"call-{nth}"))
        for nth in range(20)
    ]

    answers = [host.finish(each) for each in processes]

    assert [("not on my machine" in each.out, each.code, each.err) for each in answers] == [
        (bool(nth % 2), 0, "") for nth in range(20)
    ]
    assert host.log.count("Listening") == 1


def test_200_questions_at_once_are_all_answered(host: Installed) -> None:
    host.bash("echo hi")
    lines = []
    for nth in range(200):
        event, frame = host.shell("deny it" if nth % 2 else "echo hi", session=f"s-{nth % 7}", call=f"call-{nth}")
        line = client.connect(host.installation.sockets, host.installation.key, client.now() + 20)
        assert line is not None
        body = json.dumps(frame).encode()
        line.sendall(f"{client.VERSION} judge {event} 20 {len(body)}\n".encode() + body)
        lines.append(line)

    answers = [client.receive(line, client.now() + 20) for line in lines]

    for line in lines:
        line.close()
    assert [b"not on my machine" in each for each in answers] == [bool(nth % 2) for nth in range(200)]
    assert all(each.startswith(b"+hookline 0 ") for each in answers)


def test_the_environment_that_the_host_hands_over_is_neither_kept_nor_logged(unforked: Installed) -> None:
    unforked.bash("crash now")

    environment = Path(f"/proc/{unforked.pid}/environ").read_bytes()

    assert b"sk-very-secret" not in environment
    assert b"CLAUDECODE" not in environment
    assert "sk-very-secret" not in unforked.log
    assert "crash now" not in unforked.log


def test_events_and_fields_of_newer_versions_pass_and_are_counted(host: Installed) -> None:
    event, frame = host.shell("echo hi", newField=1)

    assert host.ask(event, frame) == Ran(0, "", "")
    assert host.ask("FutureEvent", frame) == Ran(0, "", "")
    status = ask_status(host.installation)
    assert status is not None
    assert status.unknown_events == {"FutureEvent": 1}
    assert status.unknown_fields == {"newField": 2}


def test_status_shows_the_last_decisions_and_no_arguments(host: Installed) -> None:
    host.bash("deny this")

    status = ask_status(host.installation)

    assert status is not None
    assert [(each.event, each.tool, each.decision, each.reason) for each in status.decisions] == [
        ("PreToolUse", "Bash", "deny", "not on my machine")
    ]
    assert "deny this" not in host.log


_DENIES_ALL = """
from hookline import Deny, Hooks, ToolCall

hooks = Hooks("policy")
hooks.guard(ToolCall)(lambda call: Deny("all of it"))
"""


class serving:
    """A server at the socket of an installation that says the same to everybody."""

    def __init__(self, host: Installed, said: bytes) -> None:
        self._path = f"{host.installation.sockets}/{host.installation.key}.sock"
        self._said = said

    def __enter__(self) -> None:
        Path(self._path).unlink(missing_ok=True)  # of a resident process that was ended before it could
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._path)
        self._listener.listen(16)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            with line, contextlib.suppress(OSError):  # the client may have gone
                line.recv(1 << 20)
                line.sendall(self._said)

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        os.unlink(self._path)


def wait_until(found):  # type: ignore[no-untyped-def]
    """Wait for something that another process does, and return it."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def child_of(pid: int) -> int | None:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found[0]) if found else None
