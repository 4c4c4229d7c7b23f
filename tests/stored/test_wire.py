"""What an earlier version has written as JSON is read as what it was, and today's JSON is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hookline import Event, decode, encode, json_schema
from hookline.adapters.agent_hooks import PolicyHooks
from hookline.delivery import public_key, sign, verify
from hookline.events import EVENTS as ALL_EVENTS

from . import bank
from .files import FILES, added_paths, read_json, without_times
from .samples import EVENTS_MADE, RECORDS
from .scenes import Notes, describe_api, run_scripts, send_events

pytestmark = pytest.mark.anyio

LINES = (FILES / "wire" / "events.jsonl").read_bytes().splitlines()
EVENTS = [pytest.param(line, event, id=event.hook_type) for line, event in zip(LINES, EVENTS_MADE, strict=True)]
STORED: dict[str, Any] = read_json("wire/records.json")


@pytest.mark.parametrize(("line", "event"), EVENTS)
def test_a_stored_event_is_read_as_what_it_was(line: bytes, event: Event) -> None:
    assert decode(line) == event


@pytest.mark.parametrize(("line", "event"), EVENTS)
def test_an_event_is_written_with_the_same_values(line: bytes, event: Event) -> None:
    """The order of the keys of a tool request has changed since; no digest and no signature depends on it."""
    assert msgspec.json.decode(encode(event)) == msgspec.json.decode(line) | {"tags": []}


def test_the_schema_of_events_still_says_what_it_said() -> None:
    stored = msgspec.json.decode(
        msgspec.json.encode(read_json("wire/schema.json")).replace(b"ToolCalling", b"ToolRequest")
    )

    stored["$defs"]["ToolRequest"]["required"].remove("toolCallId")  # a request may come without one since

    assert added_paths(_without_words(stored), _without_words(json_schema())) == {
        "$.$defs.ToolRequest.properties.toolCallId.default",
        "$.$defs.PendingTool.properties.askedBy",  # omitted unless a hook asks
        *(f"$.$defs.{each.__name__}.properties.tags" for each in ALL_EVENTS.values()),
    }


def _without_words(schema: Any) -> Any:
    """Return a schema without descriptions, which are not part of the wire, and titles, which are Python's names."""
    if isinstance(schema, dict):
        kept = {key: value for key, value in schema.items() if key not in ("description", "title")}
        return {key: _without_words(value) for key, value in kept.items()}
    return [_without_words(each) for each in schema] if isinstance(schema, list) else schema


@pytest.mark.parametrize("name", list(STORED))
def test_a_stored_record_is_read_as_what_it_was(name: str) -> None:
    made = RECORDS[name]

    assert msgspec.convert(STORED[name], type(made)) == made


@pytest.mark.parametrize("name", list(STORED))
def test_a_record_is_written_with_every_key_that_it_had(name: str) -> None:
    added = {"$.cost_known"} if name == "ModelResponse" else set()
    assert added_paths(STORED[name], msgspec.json.decode(msgspec.json.encode(RECORDS[name]))) == added


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # deliveries need it
async def test_receivers_are_sent_the_same_bodies() -> None:
    stored = read_json("wire/webhooks.json")

    sent = {name: msgspec.json.decode(each.payload) for name, each in (await send_events()).items()}

    assert sorted(sent) == sorted(stored)
    for name, body in sent.items():
        assert added_paths(without_times(stored[name]["payload"]), without_times(body)) <= {"$.tags"}, name


async def test_policies_are_asked_in_the_same_words() -> None:
    notes = Notes()
    agent = bank.banker(bank.Bank(), [bank.PAUSING[0], bank.turn("Nothing is due.")])

    await notes.watch(agent, PolicyHooks(notes))

    stored, asked = (
        # Two calls of one step overlap: the order of their points is up to the event loop.
        sorted((without_times(each) | {"sequence": None, "session": None} for each in contexts), key=json.dumps)
        for contexts in (read_json("wire/agent_hooks.json"), json.loads(msgspec.json.encode(notes.contexts)))
    )
    assert [each["interception_point"] for each in asked] == [each["interception_point"] for each in stored]
    for before, now in zip(stored, asked, strict=True):
        assert added_paths(before, now) == set()


@pytest.mark.parametrize("kind", ["hmac", "ed25519"])
def test_deliveries_are_signed_as_they_were(kind: str) -> None:
    stored = read_json("wire/signatures.json")
    body, key, headers = stored["body"].encode(), stored["signed"][kind]["key"], stored["signed"][kind]["headers"]
    sent_at = int(headers["webhook-timestamp"])

    verified = verify(headers, body, [key if kind == "hmac" else public_key(key)], now=sent_at)

    assert (verified.id, verified.timestamp) == ("msg_1", sent_at)
    assert sign("msg_1", sent_at, body, [key]) == headers


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # scripts need it
async def test_scripts_read_the_same_documents(tmp_path: Path) -> None:
    read = without_times(await run_scripts(tmp_path))

    added = added_paths(without_times(read_json("wire/scripts.json")), read)
    assert {
        path for path in added if not path.endswith((".call.parentOperationId", ".call.tags", ".event.tags"))
    } == set()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the server needs it
async def test_the_http_api_has_every_address_parameter_and_field_that_it_had() -> None:
    stored, now = (fields_of(each) for each in (read_json("wire/openapi.json"), await describe_api()))

    assert stored - now == LOST_FIELDS


LOST_FIELDS: set[str] = set()
"""What the HTTP API took or gave when 8ffe382 was made, and does not any more."""


def fields_of(description: dict[str, Any]) -> set[str]:
    """Return the addresses of an API, each with its parameters, and its fields by path and kind."""
    schemas = description["components"]["schemas"]
    found: set[str] = set()

    def walk(where: str, schema: dict[str, Any], above: tuple[str, ...]) -> None:
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            if name not in above:
                walk(where, schemas[name], (*above, name))
            return
        if "type" in schema:
            found.add(f"{where}: {schema['type']}")
        for value in schema.get("enum", ()):
            found.add(f"{where} = {value!r}")
        for name, inner in schema.get("properties", {}).items():
            walk(f"{where}.{name}", inner, above)
        if isinstance(schema.get("items"), dict):
            walk(f"{where}[]", schema["items"], above)
        for alternative in (*schema.get("oneOf", ()), *schema.get("anyOf", ()), *schema.get("allOf", ())):
            walk(where, alternative, above)

    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            where = f"{method.upper()} {path}"
            found.add(where)
            for parameter in operation.get("parameters", ()):
                walk(f"{where} {parameter['in']} {parameter['name']}", parameter["schema"], ())
            for kind, body in operation.get("requestBody", {}).get("content", {}).items():
                walk(f"{where} takes {kind}", body["schema"], ())
            for status, answer in operation["responses"].items():
                found.add(f"{where} gives {status}")
                for kind, body in answer.get("content", {}).items():
                    walk(f"{where} gives {status} {kind}", body["schema"], ())
    return found
