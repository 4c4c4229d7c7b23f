"""Bytes that are no text are refused with 400 by every route and every form, wherever they stand, and told in no log."""

from __future__ import annotations

import asyncio
import importlib
import logging
import pkgutil
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from litestar.handlers import HTTPRouteHandler

import hookline.server.page
from hookline.server import SCOPES
from hookline.server.page import _page
from hookline.server.routes import ROUTES
from tests.server.site import Site
from tests.server.test_hooks import problem
from tests.tables import for_each

pytestmark = pytest.mark.anyio

NO_TEXT = (b"\xff", b"\xc3", b"\xed\xa0\x80")
"""A byte of no character, half of one, and a surrogate."""
API = sorted((method, path) for each in ROUTES for path in each.paths for method in each.http_methods)
BODIES = sorted(
    (method, path)
    for each in ROUTES
    for path in each.paths
    for method in each.http_methods
    if "data" in each.parsed_fn_signature.parameters
)


def page_handlers() -> list[HTTPRouteHandler]:
    """Those of every module of the page, so that a new one is among them."""
    modules = [
        importlib.import_module(f"hookline.server.page.{each.name}")
        for each in pkgutil.iter_modules(hookline.server.page.__path__)
    ]
    views = [handler for module in modules for handler in getattr(module, "ROUTES", ())]
    return [*views, *(each for each in vars(_page).values() if isinstance(each, HTTPRouteHandler))]


FORMS = sorted(
    f"/page{path}"
    for each in page_handlers()
    for path in each.paths
    if "POST" in each.http_methods and path != "/{rest:path}"  # which answers 404 to anything
)


@pytest.fixture(scope="module")
def paged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(f"sqlite:///{tmp_path_factory.mktemp('bytes') / 'store.db'}", page=True) as site:
        yield site


@pytest.fixture(autouse=True)
def at_most_a_line_and_no_traceback(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO)
    yield
    told = [record for record in caplog.records if record.levelno >= logging.INFO and record.name != "httpx"]
    assert not [record for record in told if record.exc_info]
    assert not told


def target_of(path: str, id: str = "x") -> str:  # noqa: A002
    return path.replace("{id:str}", id)


def test_there_are_routes_with_bodies_and_forms_to_be_tried() -> None:
    assert len(BODIES) >= 9
    assert len(FORMS) >= 6


@for_each("method, path", BODIES)
async def test_a_body_that_is_not_utf8_is_malformed(paged: Site, method: str, path: str) -> None:
    async with paged.client(headers={"content-type": "application/json"}) as client:
        for wrong in NO_TEXT:
            for body in (b'{"name":"%b"}' % wrong, b'{"%b":1}' % wrong, wrong):
                answer = await client.request(method, target_of(path), content=body)

                problem(answer, 400, "malformed")


@for_each("method, path", [each for each in API if "{" in each[1]])
async def test_a_path_that_is_not_utf8_is_malformed(paged: Site, method: str, path: str) -> None:
    async with paged.client() as client:
        for wrong in NO_TEXT:
            written = "".join(f"%{byte:02x}" for byte in wrong)

            problem(await client.request(method, target_of(path, f"a{written}b")), 400, "malformed")


@for_each("method, path", API)
async def test_a_query_string_that_is_not_utf8_is_malformed(paged: Site, method: str, path: str) -> None:
    async with paged.client() as client:
        for wrong in NO_TEXT:
            written = "".join(f"%{byte:02x}" for byte in wrong)
            problem(await client.request(method, f"{target_of(path)}?limit=1&{written}=1"), 400, "malformed")


@for_each("name", ["content-type", "if-match", "if-none-match", "last-event-id", "idempotency-key"])
async def test_a_header_that_the_api_reads_is_malformed_where_it_is_no_text(paged: Site, name: str) -> None:
    async with paged.client() as client:
        for method, path in API:
            answer = await client.request(method, target_of(path), headers={name.encode(): b"\xff"})  # type: ignore[dict-item]

            problem(answer, 400, "malformed")


async def test_headers_that_nobody_reads_may_be_anything(paged: Site) -> None:
    headers = {b"user-agent": b"caf\xe9", b"cookie": b"other=\xff", b"x-request-id": b"\xff"}
    async with paged.client() as client:
        answer = await client.get("/v1/hooks", headers=headers)  # type: ignore[arg-type]

    assert answer.status_code == 200
    assert answer.headers["x-request-id"].isalnum()


@pytest.mark.parametrize(("method", "path"), API[:1] + BODIES[:1], ids=" ".join)
async def test_raw_bytes_in_an_address_are_malformed(
    paged: Site, method: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    to = urlsplit(paged.address)
    reader, writer = await asyncio.open_connection(to.hostname, to.port)
    writer.write(f"{method} {target_of(path)}".encode() + b"\xff HTTP/1.1\r\nhost: x\r\n\r\n")
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"malformed"' in answer
    assert [record.exc_info for record in caplog.records] == [None]
    caplog.clear()


@for_each("path", FORMS)
async def test_a_form_that_is_not_utf8_is_malformed(paged: Site, path: str) -> None:
    cookies = await signed_in(paged)
    async with paged.client("", cookies=cookies) as client:
        for wrong in NO_TEXT:
            written = "".join(f"%{byte:02x}" for byte in wrong).encode()
            for body in (b"token=" + written, written + b"=1", b"token=" + wrong)[: None if wrong == NO_TEXT[0] else 1]:
                answer = await client.post(target_of(path), content=body, headers={"content-type": FORM})

                assert (answer.status_code, "text/html" in answer.headers["content-type"]) == (400, True)
        other = await client.post(target_of(path), files={"token": b"\xff"})

    assert other.status_code == 400


FORM = "application/x-www-form-urlencoded"


async def signed_in(site: Site) -> dict[str, str]:
    from hookline.server import Caller

    door = site.server._app._app._page  # type: ignore[attr-defined]
    caller = Caller(key_id=site.admin.split("_")[1], tenant_id="", scopes=frozenset(SCOPES))
    sessions = door._context.sessions
    return {"hookline_session": sessions.cookie(sessions.create(caller))}
