"""Secrets are taken out of what a cassette keeps, and ordinary words are not."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.errors import HookUsageError
from hookline.evals import SuiteRun
from hookline.evals.cassettes import Cassette
from hookline.evals.cassettes._cassette import SECRET_KEYS, Redaction

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nab+/=\n-----END RSA PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1g"


@pytest.mark.parametrize(
    "name",
    [
        *("password", "passwd", "new_password", "userPassword", "password2", "PASSWORD", "passwordHash", "secret"),
        *("clientSecret", "client-secret", "token", "access_token", "X-Auth-Token", "api_key", "apiKey", "apikey"),
        *("OPENAI_API_KEY", "api-key", "Authorization", "cookie", "Set-Cookie", "aws_secret_access_key", "privateKey"),
        *("credential", "credentials", "accessKeyId", "id_token", "PGPASSWORD", "dbpassword", "MYAPIKEY"),
    ],
)
def test_a_field_with_a_secret_name_is_redacted_however_it_is_spelt(name: str) -> None:
    redaction = Redaction()

    assert redaction.value({"a": [{name: "hunter2"}]}) == {"a": [{name: "[redacted]"}]}
    assert redaction.value({name: {"user": "me", "n": [1]}}) == {name: {"user": "[redacted]", "n": ["[redacted]"]}}
    assert "hunter2" not in redaction.text(f"first\n{name}: hunter2 and more\nlast")
    assert "hunter2" not in redaction.text(f"it has {name}=hunter2, and so on")
    assert "hunter2" not in redaction.text(f'cut off: {{"{name}": "hunter2", "x')


@pytest.mark.parametrize(
    "name",
    [
        *("tokens", "max_tokens", "token_count", "author", "authors", "authority", "page_token", "nextPageToken"),
        *("secretary", "passenger", "tokenizer", "keyboard", "monkey", "key", "api_keys_count", "cookie_consent"),
        *("public_key", "passed", "compass", "nextpagetoken", "cassettesecretary"),
    ],
)
def test_a_field_with_an_ordinary_name_is_left_alone(name: str) -> None:
    redaction = Redaction()

    assert redaction.value({name: "x", "n": [{name: 1}]}) == {name: "x", "n": [{name: 1}]}
    for text in (f"{name}: 5", f"{name}=5", f'{{"{name}": "5"}}'):
        assert redaction.text(text) == text


@pytest.mark.parametrize(
    ("secret", "around"),
    [
        ("Bearer abcdef0123456789", "sent {} to it"),
        ("Basic dXNlcjpwYXNzd29yZA==", "sent {} to it"),
        ("sk-proj-abcdef0123456789abcd", "use {}, please"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "<{}>"),
        ("xoxb-1234567890-abcdef", "{}"),
        ("AKIAIOSFODNN7EXAMPLE", "id {} here"),
        ("hf_abcdefghijklmnopqrstuvwxyz01234567", "{}"),
        ("gsk_abcdefghijklmnopqrstuvwxyz01234567", "key {}"),
        ("ya29.a0AfH6SMBx-abcdefghijkl", "{}, "),
        ("SG.abcdefghijklmnopqrst.uvwxyz0123456789abcd", "{} "),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----\nabc\n-----END PGP PRIVATE KEY BLOCK-----", "a {}"),
        (JWT, "jwt {}."),
        (PEM, "before\n{}\nafter"),
        ("user:hunter2", "https://{}@example.org/x"),
        (":hunter2", "redis://{}@localhost:6379/0"),
    ],
)
def test_a_secret_is_recognised_by_what_it_looks_like(secret: str, around: str) -> None:
    redaction = Redaction()

    assert redaction.text(around.format(secret)) == around.format("[redacted]")
    assert redaction.value({"a": [around.format(secret)]}) == {"a": [around.format("[redacted]")]}
    assert redaction.value({around.format(secret): 1}) == {around.format("[redacted]"): 1}


@pytest.mark.parametrize(
    "text",
    [
        "a basic understanding of bearer certificates",
        "Basic Information for the Bearer of this letter",
        "the tokens: 3, max_tokens: 5, author: Ada",
        "sk-learn is a library, and task-oriented-programming-is-a-style",
        "see https://example.org:8080/a@b and mail ada@example.org",
        "to reset your password: https://example.org/reset",
        "password: null",
        "key: value, token:",
        "AKIA is a prefix",
        "",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert Redaction().text(text) == text


def test_a_result_that_is_json_stays_json_and_keeps_its_layout() -> None:
    redaction = Redaction()
    held = {"user": "me", "auth": [{"api_key": "k", "n": 1}], "ok": True, "credentials": {"login": "l", "none": None}}
    clean = {**held, "auth": [{"api_key": "[redacted]", "n": 1}], "credentials": {"login": "[redacted]", "none": None}}

    assert redaction.text(json.dumps(held)) == json.dumps(clean)
    assert redaction.text(json.dumps(held, indent=2)) == json.dumps(clean, indent=2)
    assert redaction.text(json.dumps(held, separators=(",", ":"))) == json.dumps(clean, separators=(",", ":"))
    assert redaction.text('{"n" :  1.50, "tokens": 3}') == '{"n" :  1.50, "tokens": 3}'


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("password      = hunter2", "password      = [redacted]"),
        ("password:          hunter2", "password:          [redacted]"),
        ("{'password': b'hunter2'}", "{'password': b'[redacted]'}"),
        ('password = """hunter2"""', 'password = """[redacted]"""'),
        ('{"n": 1, "password": "hunter2 and', '{"n": 1, "password": "[redacted]"'),
        ('got {"passwords": ["hunter2", "b]"], "n": 1}', 'got {"passwords": [redacted], "n": 1}'),
        ("{'credentials': {'a': {'b': 'hunter2'}}, 'n': 1}", "{'credentials': [redacted], 'n': 1}"),
        ('{"credentials": {"a": "hunter2"', '{"credentials": [redacted]'),
        ('{"page_token": ["a"], "n": 1', '{"page_token": ["a"], "n": 1'),
        (r'say {"a": "{\"password\": \"hunt\\\"er2\"}"} x', r'say {"a": "{\"password\": \"[redacted]\"}"} x'),
    ],
)
def test_a_value_is_redacted_whole_however_it_is_written(text: str, clean: str) -> None:
    assert Redaction().text(text) == clean


@pytest.mark.parametrize("levels", range(1, 5))
def test_json_within_texts_of_json_is_looked_into(levels: int) -> None:
    held = {"password": "hunter2", "n": 1}
    for level in range(levels):
        held = {"level": level, "body": json.dumps(held)}

    assert "hunter2" not in json.dumps(Redaction().value(held))
    assert "hunter2" not in Redaction().text(json.dumps(held))
    assert "hunter2" not in Redaction().text(f"Got {json.dumps(held)} of it")


def test_a_variable_that_is_named_beside_its_value_is_redacted() -> None:
    held = [
        {"name": "DB_PASSWORD", "value": "hunter2"},
        {"Key": "authorization", "Value": "x"},
        {"name": "Reset my password", "value": 1},
    ]
    clean = [{**held[0], "value": "[redacted]"}, {**held[1], "Value": "[redacted]"}, held[2]]

    assert Redaction().value(held) == clean
    assert Redaction().text(json.dumps(held)) == json.dumps(clean)


def test_a_block_of_yaml_is_redacted_whole() -> None:
    text = "db:\n  password: |\n    hunter2\n    hunter3\n  user: me\n"

    assert Redaction().text(text) == "db:\n  password: [redacted]\n  user: me\n"


def test_a_field_of_a_query_is_redacted_and_a_piece_of_a_path_is_not() -> None:
    redaction = Redaction()

    assert redaction.text("https://a.org/?x=1&token=abc&y=2") == "https://a.org/?x=1&token=[redacted]&y=2"
    assert redaction.text("https://a.org/reset/token=abc") == "https://a.org/reset/token=abc"


LONG_TEXTS = {
    "escaped quotes in a list that was cut off": ('password: ["', '\\"x '),
    "escaped quotes in a mapping": ("password: {", "\\'x "),
    "brackets that never close": ("password: [", "["),
    "quotes in a list": ("password: [", '"'),
    "a quoted value that was cut off": ('token: "', "a\\"),
    "a value in three quotes": ('secret = """', '"x'),
    "a value in escaped quotes": ('token: \\"', "\\\\x"),
    "names without values": ("", "password password_ "),
    "names with values": ("", "password=x "),
    "a key that was cut off": ("-----BEGIN PRIVATE KEY-----", "-x"),
    "urls": ("", "://a:"),
    "spaces": ("password", "   "),
}


@pytest.mark.parametrize("shape", LONG_TEXTS)
def test_the_time_grows_with_the_length_of_a_text_and_not_with_its_square(shape: str) -> None:
    redaction, (start, repeated) = Redaction(), LONG_TEXTS[shape]

    def seconds(times: int) -> float:
        text, took = start + repeated * times, []
        for _ in range(3):
            began = time.process_time()
            redaction.text(text)
            took.append(time.process_time() - began)
        return min(took)

    assert seconds(16_000) < 48 * max(seconds(1_000), 1e-4)  # 16 would be linear, 256 quadratic


def test_names_patterns_and_the_replacement_can_be_chosen() -> None:
    redaction = Redaction(
        keys=(*SECRET_KEYS, "iban"), patterns=[r"\d{4}", re.compile("x+")], replacement="***", also=str.upper
    )

    assert redaction.value({"iban": "DE1", "userIBAN": "DE2", "a": "no 1234"}) == {
        "IBAN": "***",
        "USERIBAN": "***",
        "A": "NO ***",
    }
    assert redaction.text("password=a axxb AKIAIOSFODNN7EXAMPLE") == "PASSWORD=*** A***B AKIAIOSFODNN7EXAMPLE"


@pytest.mark.parametrize("wrong", [{"keys": "password"}, {"keys": [1]}, {"patterns": "x"}, {"patterns": ["("]}])
def test_a_redaction_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(HookUsageError, match="of a Redaction"):
        Redaction(**wrong)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [*"ab \n\t\"'{}:=[]|>\\,", "password", "token: ", '"api_key": "x"', "Bearer a1b2c3d4", JWT, "x"]
        ),
        max_size=14,
    ).map("".join)
)
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    redaction = Redaction()

    once = redaction.text(text)

    assert redaction.text(once) == once


def test_no_result_of_the_four_suites_is_changed(real: SuiteRun) -> None:
    redaction = Redaction()
    results = [text for result in real.results for text in result.tool_results]

    assert len(results) == 339
    assert [text for text in results if redaction.text(text) != text] == []


def test_the_password_of_the_banking_suite_is_in_no_cassette(real: SuiteRun) -> None:
    changed = [
        recording
        for operation_id, operation in real.operations.items()
        for recording in Cassette.of_events(operation_id, operation.events).recordings
        if recording.tool.endswith("update_password")
    ]

    assert changed
    assert {recording.args["password"] for recording in changed} == {"[redacted]"}
