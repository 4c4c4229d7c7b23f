"""Files are a source of definitions; a broken one is told of with its line, and the old set stays active."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookline.registry import DefinitionConflictError, DefinitionError, DefinitionFileError, Registry
from hookline.registry._files import load_file
from hookline.store import SqlStore
from tests.tables import for_each

from .scenes import FACTORIES, definition, ids, until

pytestmark = pytest.mark.anyio

TOML = """\
# Hooks of everybody.
[[hooks]]
name = "No shell"
point = "ToolCall.guard"
handler = "deny-tools"
priority = 10
config = { tools = ["bash"] }

[[hooks]]
id = "told"
name = "Told"
point = "afterToolCall"
tenant_id = "acme"
[hooks.webhook]
url = "https://a.example/x"
event_fields = ["content"]
"""
YAML = """\
hooks:
  - name: No shell
    point: ToolCall.guard
    handler: deny-tools
    priority: 10
    config: {tools: [bash]}
  - id: told
    name: Told
    point: afterToolCall
    tenantId: acme
    webhook:
      url: https://a.example/x
      eventFields: [content]
"""


@pytest.mark.parametrize(("name", "text"), [("a.toml", TOML), ("a.yaml", YAML), ("a.yml", YAML)])
async def test_both_kinds_of_files_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)

    async with Registry(files=[file]) as registry:
        first, told = (await registry.list("acme")).items
        assert (first.name, first.priority, first.config, first.source) == (
            "No shell",
            10,
            {"tools": ["bash"]},
            str(file),
        )
        assert told.webhook is not None
        assert (told.id, told.tenant_id, told.webhook.event_fields) == ("told", "acme", ["content"])
        assert ids(registry.hooks("acme")) == [first.id, "told"]
        assert ids(registry.hooks("other")) == [first.id]

    async with Registry(files=[file]) as again:
        assert (await again.list("acme")).items == [first, told]


async def test_all_files_of_a_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[[hooks]]\nname="a"\npoint="afterStep"\nhandler="log"\n')
    (tmp_path / "b.yaml").write_text("hooks: [{name: b, point: afterStep, handler: log}]")
    (tmp_path / "notes.txt").write_text("nothing")

    async with Registry(files=[tmp_path], refresh_seconds=0.02) as registry:
        assert {each.name for each in (await registry.list()).items} == {"a", "b"}
        (tmp_path / "c.yml").write_text("hooks: [{name: c, point: afterStep, handler: log}]")
        await until(lambda: len(registry.hooks()) == 3)
        (tmp_path / "a.toml").unlink()
        await until(lambda: len(registry.hooks()) == 2)


BROKEN: list[tuple[str, str, int | None, str]] = [
    ("toml", '[[hooks]]\nname = "a\n', 2, "not TOML"),
    ("toml", '[[hooks]]\nname = "a"\npoint = ', 3, "not TOML"),
    ("toml", '[[hooks]]\nname = "a"\n\n[[hooks]]\nname = "b"\npoint = "nowhere"\nhandler = "log"', 1, "missing"),
    (
        "toml",
        '[[hooks]]\nname = "a"\npoint = "afterStep"\nhandler = "log"\n[[hooks]]\nname = "b"\npoint = "nowhere"\nhandler="log"',
        7,
        "not a point",
    ),
    ("toml", '[[hooks]]\nname = "a"\npoint = "afterStep"\nhandler = "log"\npriority = 5000', 5, "<= 1000"),
    ("toml", '[[hooks]]\nname = "a"\npoint = "afterStep"\nhandler = "log"\non_eror = "open"', 5, "onEror"),
    ("toml", '[[hooks]]\nname = "a"\npoint = "afterStep"\nhandler = "log"\nrevision = 3', 5, "registry"),
    ("toml", '[[hooks]]\nname = "a"\npoint = "afterStep"\n[hooks.webhook]\nurl = "ftp://x"', 5, "https"),
    (
        "toml",
        '[[hooks]]\nname = "a"\ndescription = """\n[[hooks]]\n"""\npoint = "afterStep"\nhandler = "log"\npriority = -1',
        8,
        ">= 0",
    ),
    ("toml", "hooks = [{name = 'a'}]", 1, "missing"),
    ("toml", "\nhook = []", 2, "unknown key"),
    ("toml", "hooks = 3", 1, "list of tables"),
    ("toml", '# [hooks]\n\n[hooks]\nname = "a"', 3, "list of tables"),
    ("toml", "[[hooks]]\nother = 1\n[other]\nhooks = 2", 3, "unknown key"),
    ("toml", '[[hooks]]\nname = "a"\n[["hooks-of-mine"]]\nname = "b"', 3, "unknown key"),
    (
        "toml",
        'hooks = [\n  {name = "a", point = "afterStep", handler = "log"}, # a [\n'
        '  {name = "]}", point = "afterStep", handler = "log", priority = 5000},\n]',
        3,
        "<= 1000",
    ),
    (
        "toml",
        '[[ hooks ]] # """\nname = "a"\npoint = "afterStep"\n["hooks".webhook]\nurl = "https://x"\n"timeout" = 0\n# """',
        6,
        "0.1 to 300",
    ),
    (
        "toml",
        '[[hooks]]\nname = "a"\npoint = "afterStep"\nwebhook.url = "https://x"\nwebhook . event_fields = ["y"]',
        5,
        "no fields",
    ),
    (
        "toml",
        '[[hooks]]\nname = "a"\npoint = "afterStep"\nwebhook.url = "https://x"\nwebhook.headers = {a = 1}',
        5,
        "expected `str`",
    ),
    (
        "yaml",
        "hooks:\n- name: a\n  point: afterStep\n  webhook:\n    url: https://x\n    timeout: 0",
        6,
        "0.1 to 300",
    ),
    ("yaml", "hooks:\n- name: a\n  point: afterStep\n  handler: log\n  tags:\n  - a\n  - ''", 7, "length >= 1"),
    ("yaml", "hooks:\n  - name: a\n   point: b", 3, "not YAML"),
    ("yaml", "hooks:\n  - name: a\n    point: afterStep\n    handler: log\n    timeout: -3\n", 5, "> 0"),
    ("yaml", "hooks:\n  - name: a\n    name: b", 3, "twice"),
    ("yaml", "hooks:\n  - just text", 2, "mapping"),
    ("yaml", "hooks: 3", 1, "list"),
    ("yaml", "hoks: []", 1, "unknown key"),
    ("yaml", "[1, 2]", 1, "mapping"),
    ("yaml", "hooks: !!python/object/apply:os.system [id]", 1, "tag"),
]


@for_each("kind, text, line, says", BROKEN)
def test_what_is_wrong_is_told_with_file_and_line(
    tmp_path: Path, kind: str, text: str, line: int | None, says: str
) -> None:
    file = tmp_path / f"broken.{kind}"
    file.write_text(text)

    with pytest.raises(DefinitionFileError, match=says) as refused:
        load_file(file)

    assert (refused.value.file, refused.value.line) == (str(file), line)
    assert str(refused.value).startswith(f"{file}, line {line}: " if line else f"{file}: ")


@for_each("data", [b"\xff\xfe", b"a = 1\nb = '\xff'"])
def test_a_file_that_is_no_text_is_told_of(tmp_path: Path, data: bytes) -> None:
    for name in ("a.toml", "a.yaml"):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DefinitionFileError, match="UTF-8") as refused:
            load_file(tmp_path / name)
        assert refused.value.line == 1 + data.count(b"\n")


def test_two_definitions_of_one_name_are_told_of(tmp_path: Path) -> None:
    one = '[[hooks]]\nname = "a"\npoint = "afterStep"\nhandler = "log"\n'
    (tmp_path / "a.toml").write_text(one)
    (tmp_path / "b.toml").write_text("\n\n" + one)

    registry = Registry(files=[tmp_path / "a.toml", tmp_path / "b.toml"])

    with pytest.raises(DefinitionFileError, match="twice") as refused:
        registry._files.load()
    assert (refused.value.file, refused.value.line) == (str(tmp_path / "b.toml"), 3)


async def test_a_registry_does_not_open_with_a_broken_or_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[[hooks]")

    for name in ("a.toml", "missing.yaml"):
        with pytest.raises(DefinitionFileError):
            await Registry(files=[tmp_path / name]).__aenter__()


@pytest.mark.parametrize(
    "broken",
    [
        "[[hooks]",
        TOML.replace('"deny-tools"', '"os:system"'),
        TOML.replace("10", "5000"),
        TOML.replace('["bash"]', "[]"),
        None,
    ],
    ids=["syntax", "handler", "priority", "config", "gone"],
)
async def test_the_old_set_stays_active_while_a_file_is_broken(
    tmp_path: Path, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "a.toml"
    file.write_text(TOML)
    async with Registry(files=[file], refresh_seconds=0.02) as registry:
        before = (await registry.list()).items
        file.unlink() if broken is None else file.write_text(broken)
        await until(lambda: registry.problems)
        for _ in range(5):
            await registry.refresh()

        assert (await registry.list()).items == before
        assert str(file) in registry.problems[0]
        assert len([each for each in caplog.records if each.levelno == logging.ERROR]) == 1
        file.write_text(TOML.replace("No shell", "Still no shell"))
        await until(lambda: not registry.problems)
        assert (await registry.list()).items[0].name == "Still no shell"


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ('handler = "gone"', 4),
        ('handler = "deny"\nconfig.reason = 5', 5),
        ('handler = "deny"\n\n[hooks.config]\nreson = "x"', 6),
        ('script = "gone.py"', 4),
    ],
    ids=["handler", "value", "argument", "script"],
)
async def test_what_cannot_work_breaks_a_file_at_the_start_as_it_does_later(
    tmp_path: Path, body: str, line: int
) -> None:
    file = tmp_path / "a.toml"
    file.write_text("")
    async with Registry(files=[file], refresh_seconds=60) as registry:
        file.write_text(f'[[hooks]]\nname = "a"\npoint = "ToolCall.guard"\n{body}\n')
        await registry.refresh()
        told = registry.problems[0]

    with pytest.raises(DefinitionFileError) as refused:
        await Registry(files=[file]).__aenter__()

    assert refused.value.line == line
    assert told.endswith(str(refused.value))


async def test_a_definition_of_a_file_is_switched_for_every_process_and_for_good(
    tmp_path: Path, database_url: str
) -> None:
    file = tmp_path / "a.toml"
    file.write_text(f'[[hooks]]\nname = "a"\npoint = "ToolCall.guard"\nhandler = "{FACTORIES}:say"\n')
    async with (
        SqlStore(database_url) as store,
        Registry(store, files=[file], modules=[FACTORIES]) as one,
        Registry(store, files=[file], modules=[FACTORIES], refresh_seconds=0.02) as other,
    ):
        stored = (await one.list()).items[0]
        off = await one.set_enabled(stored.id, False, if_revision=stored.revision)

        assert (off.enabled, off.source) == (False, str(file))
        assert await one.get(stored.id) == off
        assert one.hooks() == []
        await until(lambda: not other.hooks())
        with pytest.raises(DefinitionConflictError):
            await other.set_enabled(stored.id, True, if_revision=stored.revision)
        file.write_text(file.read_text() + "priority = 7\n")
        await until(lambda: not other.problems and other._snapshot.of_tenant("")[stored.id].priority == 7)
        assert other.hooks() == []
        await other.set_enabled(stored.id, True)
        assert len(other.hooks()) == 1


async def test_a_definition_of_a_file_is_changed_there_and_nowhere_else(tmp_path: Path, database_url: str) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[[hooks]]\nname = "a"\npoint = "afterStep"\nhandler = "log"\ntenant_id = "acme"\n')
    async with SqlStore(database_url) as store, Registry(store, files=[file], quota=1) as registry:
        stored = (await registry.list("acme")).items[0]

        for refused in (registry.update(stored.id, {"name": "b"}), registry.delete(stored.id, tenant_id="acme")):
            with pytest.raises(DefinitionError, match="change it there"):
                await refused
        with pytest.raises(DefinitionConflictError):
            await registry.create(definition(name="a", point="afterStep", handler="log", tenant_id="acme"))
        # It does not count for the quota.
        await registry.create(definition(name="b", point="afterStep", handler="log", tenant_id="acme"))


def test_a_file_may_let_a_webhook_do_what_a_request_may_not(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(
        '[[hooks]]\nname = "a"\npoint = "afterStep"\ntenant_id = "acme"\n[hooks.webhook]\nurl = "local://x"\nkey = "k"\n'
    )

    loaded: list[Any] = load_file(file)

    assert loaded[0][0].webhook.key == "k"


DIGITS = "9" * 5000
"""More than Python turns into a number."""


@for_each(
    "name, text, line",
    [
        ("a.toml", f"x = {DIGITS}\n", 1),
        ("a.toml", f"{TOML}\n# a comment\n[[hooks]]\npriority = -{DIGITS}\n", None),
        ("a.toml", f"{TOML}config.n = 0x{DIGITS}\n", None),
        ("a.toml", f"{TOML}config.n = 1979-05-32\n", None),
        ("a.yaml", f"hooks:\n- name: a\n  priority: {DIGITS}\n", 3),
    ],
)
def test_a_number_that_python_does_not_read_is_told_with_its_line(
    tmp_path: Path, name: str, text: str, line: int | None
) -> None:
    file = tmp_path / name
    file.write_text(text)

    with pytest.raises(DefinitionFileError) as refused:
        load_file(file)
    assert refused.value.line == (line or text.count("\n"))


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode), st.data()))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_file_holds_it_is_read_or_told_of(tmp_path: Path, drawn: bytes | st.DataObject) -> None:
    """Bytes, texts, and files that work with something put in somewhere."""
    if isinstance(drawn, bytes):
        data = drawn
    else:
        whole = TOML.encode()
        start = drawn.draw(st.integers(0, len(whole)))
        end = drawn.draw(st.integers(start, len(whole)))
        put = drawn.draw(
            st.sampled_from([b"", b"[" * 300, DIGITS.encode(), b"\x00", b"1e999", b'"\\ud800"', b"\xff", b"nan"])
        )
        data = whole[:start] + put + whole[end:]
    for name in ("a.toml", "a.yaml"):
        (tmp_path / name).write_bytes(data)
        with suppress(DefinitionFileError):
            load_file(tmp_path / name, lambda definition: definition)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.toml")

    with pytest.raises(DefinitionFileError, match="not a regular file"):
        load_file(tmp_path / "a.toml")


async def test_nothing_in_a_file_ends_the_looking_for_changes(tmp_path: Path, database_url: str) -> None:
    file = tmp_path / "a.toml"
    file.write_text(TOML)
    async with (
        SqlStore(database_url) as one,
        SqlStore(database_url) as two,
        Registry(one, files=[file], refresh_seconds=0.02) as here,
        Registry(two, refresh_seconds=0.02) as there,
    ):
        made = await there.create({"name": "x", "point": "ToolCall.guard", "handler": "deny", "tenantId": "acme"})
        await until(lambda: len(here.hooks("acme")) == 3)
        file.write_text(f"x = {DIGITS}")
        await until(lambda: here.problems)
        assert f"{file}, line 1" in here.problems[0]

        await there.set_enabled(made.id, False)
        await until(lambda: len(here.hooks("acme")) == 2)

        file.write_text(TOML.replace("No shell", "Still no shell"))
        await until(lambda: not here.problems)
        assert (await here.list("")).items[0].name == "Still no shell"


async def test_an_error_that_nobody_thought_of_is_told_and_the_looking_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.toml"
    file.write_text(TOML)
    async with Registry(files=[file], refresh_seconds=0.02) as registry:
        monkeypatch.setattr("tomllib.loads", lambda text: 1 / 0)
        file.write_text(TOML + "\n")
        await until(lambda: registry.problems)
        assert "division by zero" in registry.problems[0]

        monkeypatch.undo()
        file.write_text(TOML)
        await until(lambda: not registry.problems)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_a_file_counts_again_once_it_may_be_read_again(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(TOML)
    async with Registry(files=[file], refresh_seconds=0.02) as registry:
        file.write_text(TOML.replace("No shell", "Still no shell"))
        file.chmod(0)
        await until(lambda: registry.problems)

        file.chmod(0o600)
        await until(lambda: not registry.problems)
        assert [each.name for each in (await registry.list()).items] == ["Still no shell", "Told"]
