"""The site of the documentation is built once, without a warning; its links lead somewhere and its search finds things."""

from __future__ import annotations

import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html import unescape
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec
import pytest
from filelock import FileLock

from hookline.events import EVENTS

from .markdown import PAGES, ROOT, anchors, links

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

DOCS = ROOT / "docs"
PROJECT = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
# Without the collector of garbage, which would take an eighth of the time; at the end of a process it runs unless all is
# frozen.
BUILD = """
import atexit, gc, runpy
gc.disable()
atexit.register(gc.freeze)
runpy.run_module("zensical", run_name="__main__", alter_sys=True)
"""
NOWHERE = "http://127.0.0.1:9"
"""A proxy that does not exist: what wants to fetch something fails."""
SAID, DONE = "said.txt", "No issues found"
"""What the generator printed, and its last words if it has nothing to warn of."""


def pages_of(nav: object) -> Iterator[str]:
    """The pages of a navigation, in its order."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, list | dict):
        for each in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_of(each)


NAV = list(pages_of(PROJECT["nav"]))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Build the site, once for all workers."""
    pytest.importorskip("zensical")  # `make test` installs it, with the group `docs`
    base = tmp_path_factory.getbasetemp()
    home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site-of-the-docs"
    with FileLock(f"{home}.lock"):
        if not (home / SAID).exists():
            build(home)
    said = (home / SAID).read_text()
    assert DONE in said, said
    return home / "site"


def build(home: pathlib.Path) -> None:
    """Build the site in a folder of its own, so that it is no other one's `site/`, and without a network."""
    home.mkdir()
    shutil.copytree(DOCS, home / "docs")
    shutil.copy(ROOT / "zensical.toml", home)
    (home / "src").symlink_to(ROOT / "src")
    network = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), NOWHERE)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, "build", "--strict"],
        cwd=home,
        env={**os.environ, **network, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    (home / SAID).write_text(re.sub(r"\x1b\[[\d;]*m", "", done.stdout))


def test_the_site_is_built_without_a_warning(site: pathlib.Path) -> None:
    said = (site.parent / SAID).read_text()

    assert DONE in said
    assert "Warning" not in said


def test_every_link_of_the_site_leads_to_a_page_and_an_anchor_that_exist(site: pathlib.Path) -> None:
    broken = []
    files = {str(each) for each in site.rglob("*") if each.is_file()}
    for page in site.rglob("*.html"):
        for link in set(references_of(page)):
            name, _, fragment = link.partition("#")
            target = os.path.normpath(f"{page.parent}/{unquote(name)}") if name else str(page)
            known = target in files and (
                not fragment or not target.endswith(".html") or unquote(fragment) in ids_of(target)
            )
            if not known and page.name != "404.html":  # its links are seen from the root of a server
                broken.append(f"{page.relative_to(site)}: {link}")

    assert broken == []


def test_no_page_loads_anything_from_another_host(site: pathlib.Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe|link)\b[^>]*(?:src|href)="?(?:https?:)?//[^>]*>', page.read_text())

        assert loaded == [], page.name


def test_every_page_has_its_place_in_the_navigation() -> None:
    pages = {str(page.relative_to(DOCS)) for page in PAGES if page.is_relative_to(DOCS)}

    assert sorted(NAV) == sorted(pages), "put it into `nav` of zensical.toml, once"


def test_the_first_page_leads_to_every_page_of_the_navigation() -> None:
    linked = {link.partition("#")[0] for link in links((DOCS / "index.md").read_text())}

    assert set(NAV) - {"index.md"} <= linked, "add it to its card in docs/index.md"


def test_the_list_for_language_models_has_every_page_as_markdown(site: pathlib.Path) -> None:
    listed = re.findall(r"^- \[.*?\]\(<?(.*?\.md)>?\)", (site / "llms.txt").read_text(), re.MULTILINE)

    assert sorted(listed) == sorted(NAV)
    assert all((site / name).is_file() for name in listed)
    assert (site / "llms-full.txt").stat().st_size > 100_000


@pytest.mark.parametrize("kind", EVENTS.values(), ids=lambda kind: kind.__name__)
def test_the_reference_shows_every_field_of_an_event(site: pathlib.Path, kind: type[msgspec.Struct]) -> None:
    section = section_of(site / "reference" / "events.html", f"hookline.{kind.__name__}")

    shown = {cells[0] for cells in cells_of(section) if cells}

    assert shown >= {field.name for field in msgspec.structs.fields(kind)}


def test_the_reference_shows_type_default_and_wire_name_of_a_field(site: pathlib.Path) -> None:
    section = section_of(site / "reference" / "events.html", "hookline.AfterToolCall")
    rows = {cells[0]: cells[1:] for cells in cells_of(section) if cells}

    assert rows["tool_name"] == ["str", "The tool's name there. On the wire: apiName.", "required"]
    assert rows["mocked"][-1] == "False"
    assert rows["answered_by"][0] == "str | None"
    assert rows["time_unix_nano"][-1] == "time.time_ns()"


def test_the_reference_spells_out_the_values_that_a_parameter_may_have(site: pathlib.Path) -> None:
    section = section_of(site / "reference" / "runtime.html", "hookline.exec_agent")
    rows = {cells[0]: cells[1:] for cells in cells_of(section) if cells}

    assert rows["release"][0] == "Literal['checked', 'incremental']"
    assert rows["hooks"][0] == "Iterable[AnyHook]"


def section_of(page: pathlib.Path, name: str) -> str:
    """The part of a page from the heading of a name to the next heading of that kind."""
    return page.read_text().partition(f'<h3 id="{name}"')[2].partition("<h3 ")[0]


def cells_of(section: str) -> Iterator[list[str]]:
    """The texts of the cells of tables, row by row."""
    for row in re.findall(r"<tr\b.*?</tr>", section, re.DOTALL):
        cells = re.findall(r"<td\b[^>]*>(.*?)</td>", row, re.DOTALL)
        yield [" ".join(unescape(re.sub(r"<[^>]+>", "", cell)).split()) for cell in cells]


def references_of(page: pathlib.Path) -> Iterator[str]:
    """Where the links, pictures, styles and scripts of a page lead, other hosts aside."""
    for found in re.finditer(r'<[a-z]+\b[^>]*?\s(?:href|src)="([^"]*)"', page.read_text()):
        link = unescape(found[1])
        # The address of the site is not known yet; see `site_url`.
        if not re.match(r"[a-z]+:|//|/", link):
            yield link


@functools.cache
def ids_of(page: str) -> frozenset[str]:
    text = pathlib.Path(page).read_text()
    return frozenset(unescape(found) for found in re.findall(r'\s(?:id|name)="([^"]+)"', text))


@pytest.fixture(scope="module")
def page(browser: Browser, site: pathlib.Path) -> Iterator[Page]:
    """The first page, opened from its file, with the search open."""
    context = browser.new_context()
    opened = context.new_page()
    opened.goto((site / "index.html").as_uri())
    opened.get_by_role("button", name="Search").click()
    yield opened
    context.close()


@pytest.mark.parametrize(
    ("words", "leads_to"),
    [
        ("callback", "observe-a-run"),
        ("middleware", "steer-a-run"),
        ("interceptor", "steer-a-run"),
        ("PreToolUse", "steer-a-run"),
        ("guardrail", "ready-made-hooks"),
        ("human in the loop", "ask-a-person"),
        ("span", "trace-runs"),
        ("replay", "record-and-replay"),
        ("VCR", "record-and-replay"),
        ("RunHooks", "openai-agents"),
        ("AgentMiddleware", "langchain"),
        ("before_tool_callback", "google-adk"),
        ("HookProvider", "strands"),
        ("checkpoint", "durable-runs"),
        ("dead letter", "run-the-outbox"),
        ("stub", "mock-tools"),
        ("kill switch", "hook-definitions"),
        ("jailbreak", "injection-attacks"),
    ],
)
def test_a_word_of_another_tool_is_found_and_leads_to_our_page(page: Page, words: str, leads_to: str) -> None:
    from playwright.sync_api import expect

    results = page.get_by_role("option")

    page.get_by_role("combobox", name="Search").fill(words)
    expect(results.first).to_have_attribute("href", re.compile(rf"[?&]h={words.split()[0]}\b"))

    first = [each.get_attribute("href") or "" for each in results.all()[:6]]
    assert leads_to in {pathlib.Path(target).stem for href in first for target in targets_of(href)}


def targets_of(href: str) -> Iterator[str]:
    """The page of a result, and those that its section on the page of words links to."""
    name, _, fragment = href.partition("#")
    yield name.partition("?")[0]
    if "/words.html" in name:
        sections = re.split(r"^## ", (DOCS / "words.md").read_text(), flags=re.MULTILINE)
        yield from (link for section in sections if fragment in anchors(f"## {section}") for link in links(section))


@pytest.fixture(scope="module")
def narrow_screen(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 390, "height": 844})
    yield context
    context.close()


@pytest.mark.parametrize("name", ["index", "how-to/hooks-zoo", "reference/runtime", "reference/http-api"])
def test_a_page_fits_a_narrow_screen_and_loads_all_it_needs(
    narrow_screen: BrowserContext, site: pathlib.Path, name: str
) -> None:
    opened = narrow_screen.new_page()
    failed: list[str] = []
    requested: list[str] = []
    opened.on("pageerror", lambda error: failed.append(str(error)))
    opened.on("requestfailed", lambda request: failed.append(request.url))
    opened.on("request", lambda request: requested.append(request.url))

    opened.goto((site / f"{name}.html").as_uri())

    assert opened.evaluate("document.documentElement.scrollWidth") <= 390
    assert failed == []
    assert [url for url in requested if not url.startswith(("file:", "data:", "blob:"))] == []
    opened.close()
