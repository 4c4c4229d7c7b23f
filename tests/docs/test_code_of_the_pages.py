"""What the pages show is run, and the output that they show is what it prints."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import io
import pathlib
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator

import anyio
import pytest

from tests.forks import forking_python
from tests.tables import for_each

from . import scripted
from .markdown import PAGES, ROOT, Block, blocks, title

NEEDS = {
    "agent-framework": "agent_framework",
    "claude-agent-sdk": "claude_agent_sdk",
    "fastmcp": "fastmcp",
    "google-adk": "google.adk",
    "langchain": "langgraph",
    "openai-agents": "agents",
    "own-loop": "anthropic",
    "pydantic-ai": "pydantic_ai",
    "strands": "strands",
}
"""Pages of frameworks that are not installed together with all others; `make adapters` runs each in its environment."""


SERVED = {"own-loop"}
"""Pages that call a provider: a scripted one on loopback, whose address the clients read from the environment."""


class Page:
    """A page that is run from top to bottom, in one namespace and one empty folder."""

    def __init__(self, path: pathlib.Path, backend: str) -> None:
        self.path = path
        self.backend = backend
        self.namespace: dict[str, object] = {"__name__": "__page__", "scripted": scripted}
        self.printed: str | None = None
        self.skips = False

    def take(self, block: Block) -> None:
        if block.marker.startswith("needs:"):
            self.skips = not is_installed(block.marker.removeprefix("needs:").strip())
        if self.skips:
            return
        if block.marker.startswith("file:"):
            pathlib.Path(block.marker.removeprefix("file:").strip()).write_text(block.code)
            self.printed = None
        elif block.marker == "output":
            assert self.printed is not None, f"{self.where(block)}: no code before this output"
            assert _lines(block.code) == _lines(self.printed), f"{self.where(block)}: the output shown is another one"
        elif block.marker == "run" or block.marker.startswith("run:"):
            code = int(block.marker.removeprefix("run").removeprefix(":") or 0)
            self.printed = "".join(self.run_command(line, code) for line in block.code.splitlines() if line.strip())
        elif block.language == "python":
            self.printed = self.run_python(block)
        else:
            self.printed = None

    def run_python(self, block: Block) -> str:
        # Blank lines in front make tracebacks name the line of the page.
        code = compile("\n" * (block.line - 1) + self.code_offline(block), str(self.path), "exec", dont_inherit=True)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(code, self.namespace)
        if "run_sync(" in block.code:
            close_event_loop()
        return out.getvalue()

    def code_offline(self, block: Block) -> str:
        """The code of a block, with the replacements that its marker names: a scripted model for a real one."""
        code = block.code
        if block.marker.startswith("offline:"):
            for replacement in block.marker.removeprefix("offline:").split("; "):
                shown, _, run = replacement.strip().partition(" is ")
                assert code.count(shown) == 1, f"{self.where(block)}: {shown!r} is not there once"
                code = code.replace(shown, run)
        return code

    def run_command(self, line: str, code: int) -> str:
        program, *arguments = shlex.split(line)
        if program == "hookline":  # in this process: a new one imports all for longer than most commands take
            # `make adapters` runs pages where the command line is not installed.
            from typer.testing import CliRunner

            from hookline.cli._app import app

            result = CliRunner().invoke(app, arguments, prog_name="hookline")
            assert result.exit_code == code, f"{line}: {result.stderr}"
            return result.stdout
        assert program == "python", line
        done = subprocess.run(
            [forking_python("hookline"), *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == code, f"{line}: {done.stderr}"
        return done.stdout

    def where(self, block: Block) -> str:
        return f"{title(self.path)}:{block.line}"


def close_event_loop() -> None:
    """Close the event loop that `run_sync` of a framework has left in this thread."""
    with warnings.catch_warnings(), contextlib.suppress(RuntimeError):
        warnings.simplefilter("ignore", DeprecationWarning)
        asyncio.get_event_loop().close()
    asyncio.set_event_loop(None)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def forget_modules_of(folder: pathlib.Path) -> None:
    """A module of a page, or of an example, would hide another one of the same name from later tests."""
    for path in folder.rglob("*.py"):
        for name in {path.stem, ".".join(path.relative_to(folder).with_suffix("").parts)}:
            if str(getattr(sys.modules.get(name), "__file__", None) or "").startswith(str(folder)):
                del sys.modules[name]


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def has_code(path: pathlib.Path) -> bool:
    return any(block.language == "python" or block.marker.startswith("run") for block in blocks(path.read_text()))


@contextlib.contextmanager
def serve_models(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serve models on loopback that search for the last word of the prompt, and then say what they found."""
    from .served_models import answer, serve

    with serve(answer) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", url.removesuffix("/v1"))
        for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
            monkeypatch.setenv(name, "key")
        yield


def runs_here(block: Block) -> bool:
    """Whether a block calls `anyio.run` in this process."""
    return "anyio.run(" in block.code and not block.marker.startswith("file:")


def runs() -> list[object]:
    """Each page that has code with each loop that it can have here.

    `anyio.run` takes another one; `asyncio.run` does not, nor does a file that is run in a process of its own.
    """
    return [
        pytest.param(path, backend, id=f"{title(path)}-{backend}")
        for path in filter(has_code, PAGES)
        for backend in ("asyncio", "trio")
        if backend == "asyncio" or any(map(runs_here, blocks(path.read_text())))
    ]


@pytest.mark.parametrize(("path", "backend"), runs())
def test_every_python_block_runs_and_prints_what_the_page_shows(
    path: pathlib.Path, backend: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = NEEDS.get(path.stem)
    if module is not None and not is_installed(module):
        pytest.skip(f"{module} is not installed here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(anyio, "run", functools.partial(anyio.run, backend=backend))
    page = Page(path, backend)
    forget_modules_of(ROOT / "docs" / "examples")

    try:
        with serve_models(monkeypatch) if path.stem in SERVED else contextlib.nullcontext():
            for block in blocks(path.read_text()):
                page.take(block)
    finally:
        forget_modules_of(tmp_path)


@for_each("path", PAGES, ids=title)
def test_every_block_has_a_language_and_every_marker_is_known(path: pathlib.Path) -> None:
    for block in blocks(path.read_text()):
        where = f"{title(path)}:{block.line}"
        assert block.language in ("python", "sh", "text", "json", "toml", "yaml", "ts", "dockerfile", "ini"), where
        kinds = ("file:", "generated", "needs:", "offline:", "run:")
        known = block.marker in ("", "output", "run", "workflow") or block.marker.startswith(kinds)
        assert known, f"{where}: {block.marker}"
        if block.marker.startswith("needs:"):
            assert block.marker.removeprefix("needs:").strip() in NEEDS.values(), where
        if block.marker == "output":
            assert block.language in ("text", "json"), where
