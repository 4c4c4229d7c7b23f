"""The description of the API is true: what it allows works, what it forbids is refused, and nothing breaks."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from hookline.server._description import encode_description
from hookline.server.routes import ROUTES
from hookline.store import SqlStore
from tests.server.site import Site, delivery, endpoint, execution, operation

DESCRIPTION = json.loads(encode_description())
# The key of the test comes with every request, so that none is made up.
WITHOUT_KEYS = json.loads(
    encode_description(), object_hook=lambda found: {k: v for k, v in found.items() if k != "security"}
)
# A stream never ends, and the key of the test must not be revoked by it.
LABELS = sorted(
    label
    for path, methods in DESCRIPTION["paths"].items()
    for label in (f"{method.upper()} {path}" for method in methods)
    if "stream" not in path and label != "DELETE /v1/keys/{id}"
)


class Description:
    """What makes requests of the description and checks their answers. It is loaded where it is needed: it takes long."""

    def __init__(self) -> None:
        import schemathesis
        from schemathesis.checks import not_a_server_error
        from schemathesis.specs.openapi import checks

        self.operations = {
            found.ok().label: found.ok() for found in schemathesis.openapi.from_dict(WITHOUT_KEYS).get_all_operations()
        }
        self.checks = [
            not_a_server_error,
            checks.status_code_conformance,
            checks.content_type_conformance,
            checks.response_headers_conformance,
            checks.response_schema_conformance,
            checks.negative_data_rejection,
            checks.unsupported_method,
        ]

    def cases(self, label: str, mode: str) -> st.SearchStrategy[Any]:
        from schemathesis import GenerationMode

        return self.operations[label].as_strategy(generation_mode=GenerationMode(mode))


@pytest.fixture(scope="module")
def description() -> Description:
    return Description()


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    """Somebody who keeps a connection: to open one for each request takes longer than most answers."""
    from requests import Session

    with Session() as session:
        yield session


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, dict[str, list[str]]]]:
    """A server that has something of everything, and the ids by the beginnings of their addresses."""
    with Site(f"sqlite:///{tmp_path_factory.mktemp('encode_description') / 'store.db'}") as site:
        yield site, asyncio.run(fill(site))


async def fill(site: Site) -> dict[str, list[str]]:
    async with SqlStore(site.url) as store, site.client() as client:
        hooks = []
        for point, handler in (("ToolCall.guard", "deny"), ("afterStep", "log"), ("ModelCall.around", "budget")):
            body = {"name": point, "point": point, "handler": handler}
            made = await client.post("/v1/hooks", json=body)
            if made.status_code == 201:
                hooks.append(made.json()["id"])
        await endpoint(store)
        await execution(site)
        logs = [each["id"] for each in (await client.get("/v1/hooks/logs")).json()["items"]]
        return {
            "/v1/hooks/logs/": logs,
            "/v1/hooks/": hooks,
            "/v1/operations/": [await operation(store), await operation(store, status="done", pending=[])],
            "/v1/deliveries/": [await delivery(store, status=status) for status in ("dead", "delivered", "pending")],
        }


@pytest.mark.parametrize("examples", [3, pytest.param(30, marks=pytest.mark.soak)])
@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("label", LABELS)
def test_no_request_is_answered_otherwise_than_described(
    label: str,
    mode: str,
    examples: int,
    description: Description,
    session: Any,
    filled: tuple[Site, dict[str, list[str]]],
) -> None:
    site, ids = filled
    known = next((found for start, found in ids.items() if start in label), [])

    @settings(max_examples=examples, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
    @given(case=description.cases(label, mode), real=st.booleans(), nth=st.integers(0, 2))
    def check(case: Any, real: bool, nth: int) -> None:
        if known and real and mode == "positive" and "id" in case.path_parameters:
            case.path_parameters["id"] = known[nth % len(known)]
        case.call_and_validate(
            base_url=site.address,
            session=session,
            headers={"authorization": f"Bearer {site.admin}"},
            checks=description.checks,
            timeout=120,
        )

    with contextlib.suppress(Unsatisfiable):  # where there is nothing to be wrong
        check()


def test_every_route_is_described_with_the_errors_that_it_may_answer_with() -> None:
    for handler in ROUTES:
        for path in handler.paths:
            for method in handler.http_methods:
                found = DESCRIPTION["paths"][path.replace(":str", "")][method.lower()]
                assert found["summary"]
                assert found["description"]
                assert found["operationId"] == handler.handler_name
                for status, answer in found["responses"].items():
                    if int(status) >= 400 and path != "/ready":
                        assert list(answer["content"]) == ["application/problem+json"], (path, status)
                assert {"400", "408", "431", "500", "503"} <= set(found["responses"])
                if handler.opt["scope"] is not None:
                    assert found["security"] == [{"key": []}]
                    assert {"401", "403", "429", "500", "503"} <= set(found["responses"])


def test_what_is_done_once_for_a_key_says_so_and_that_it_may_be_under_way() -> None:
    for path, methods in DESCRIPTION["paths"].items():
        for method, told in methods.items():
            [*named] = [each for each in told.get("parameters", ()) if each["name"] == "Idempotency-Key"]
            assert [each["in"] for each in named] == (["header"] if method == "post" else []), path
            assert not named or "409" in told["responses"], path


def test_a_stream_of_what_has_ended_and_a_body_that_may_be_left_out_are_described() -> None:
    paths = DESCRIPTION["paths"]

    assert set(paths["/v1/operations/{id}/stream"]["get"]["responses"]) >= {"200", "204"}
    assert paths["/v1/hooks/{id}/test"]["post"]["requestBody"]["required"] is False
    assert paths["/v1/hooks/{id}/toggle"]["put"]["requestBody"]["required"] is True


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        ("/v1/operations", "status", "waiting_for_human"),
        ("/v1/hooks", "point", "ToolCall.guard"),
        ("/v1/hooks/logs", "status", "denied"),
        ("/v1/hooks/logs", "point", "ToolCall"),
        ("/v1/hooks/stats", "point", "afterStep"),
        ("/v1/deliveries", "status", "dead"),
    ],
)
def test_parameters_of_few_values_are_described_by_them(path: str, name: str, value: str) -> None:
    [told] = [each for each in DESCRIPTION["paths"][path]["get"]["parameters"] if each["name"] == name]

    assert value in told["schema"]["enum"]


def test_it_is_openapi_3_1_and_documents_every_field() -> None:
    assert DESCRIPTION["openapi"].startswith("3.1")
    for name, schema in DESCRIPTION["components"]["schemas"].items():
        assert schema["description"], name
        for field, its in schema.get("properties", {}).items():
            assert its.get("description") or "$ref" in its or "const" in its or "enum" in its, f"{name}.{field}"


@pytest.mark.anyio
async def test_it_is_there_without_a_key(lasting_site: Site) -> None:
    async with lasting_site.client("") as client:
        answer = await client.get("/schema/openapi.json")

    assert answer.json() == DESCRIPTION
