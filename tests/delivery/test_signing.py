"""Signatures: what we sign others accept, what others sign we accept, and nothing else."""

from __future__ import annotations

import base64
import importlib
import logging
import time
from datetime import UTC, datetime
from typing import Any

import pytest
import standardwebhooks
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from hookline.delivery import (
    KeyRing,
    Verified,
    WebhookKeyError,
    WebhookVerificationError,
    generate_key,
    public_key,
    sign,
    verify,
)
from hookline.errors import HooklineError, HookUsageError, MissingExtraError

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PRIVATE = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="
BODY = b'{"type": "onComplete", "text": "\xc3\xa4"}'
NOW = 1_700_000_000


def signed(keys: Any = SECRET, *, delivery: str = "msg_1", at: int = NOW, body: bytes = BODY) -> dict[str, str]:
    return sign(delivery, at, body, keys)


def test_what_was_signed_is_verified() -> None:
    assert verify(signed(), BODY, SECRET, now=NOW) == Verified(id="msg_1", timestamp=NOW)


@pytest.fixture(params=["standardwebhooks", "svix.webhooks"])
def package(request: pytest.FixtureRequest) -> Any:
    """What another package signs and verifies with. It is loaded only here, as that takes long."""
    return importlib.import_module(request.param).Webhook


class TestInterop:
    def test_the_package_accepts_what_we_sign(self, package: Any) -> None:
        secret = generate_key()

        package(secret).verify(BODY, sign("msg_1", int(time.time()), BODY, secret))

    def test_the_package_accepts_one_of_several_signatures(self, package: Any) -> None:
        old, new = generate_key(), generate_key()
        headers = sign("msg_1", int(time.time()), BODY, [new, generate_key("ed25519"), old])

        for secret in (old, new):
            package(secret).verify(BODY, headers)

    def test_we_accept_what_the_package_signs(self, package: Any) -> None:
        secret, now = generate_key(), int(time.time())
        signature = package(secret).sign("msg_1", datetime.fromtimestamp(now, UTC), BODY.decode())
        headers = {"webhook-id": "msg_1", "webhook-timestamp": str(now), "webhook-signature": signature}

        assert verify(headers, BODY, secret).id == "msg_1"

    def test_both_refuse_what_was_changed(self, package: Any) -> None:
        secret = generate_key()
        headers = sign("msg_1", int(time.time()), BODY, secret)

        with pytest.raises(standardwebhooks.WebhookVerificationError):
            package(secret).verify(BODY + b" ", headers)
        with pytest.raises(WebhookVerificationError):
            verify(headers, BODY + b" ", secret)


class TestAsymmetricKeys:
    def test_cryptography_accepts_what_we_sign(self) -> None:
        headers = signed(PRIVATE)
        version, _, signature = headers["webhook-signature"].partition(",")
        public = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key(PRIVATE).removeprefix("whpk_")))

        assert version == "v1a"
        public.verify(base64.b64decode(signature), f"msg_1.{NOW}.".encode() + BODY)

    def test_we_accept_what_cryptography_signs(self) -> None:
        private = Ed25519PrivateKey.generate()
        public = "whpk_" + base64.b64encode(private.public_key().public_bytes_raw()).decode()
        signature = base64.b64encode(private.sign(f"msg_1.{NOW}.".encode() + BODY)).decode()
        headers = {"webhook-id": "msg_1", "webhook-timestamp": str(NOW), "webhook-signature": f"v1a,{signature}"}

        assert verify(headers, BODY, public, now=NOW).id == "msg_1"

    def test_a_public_key_verifies_but_does_not_sign(self) -> None:
        ring = KeyRing({"": [public_key(PRIVATE)]})

        assert verify(signed(PRIVATE), BODY, ring, now=NOW).id == "msg_1"
        assert not ring.signs()
        with pytest.raises(WebhookKeyError, match="no signing secret of that name"):
            signed(ring)

    def test_the_public_half_is_the_one_of_the_specification(self) -> None:
        assert public_key(PRIVATE) == "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="

    def test_a_seed_without_its_public_half_is_the_same_key(self) -> None:
        seed = base64.b64decode(PRIVATE.removeprefix("whsk_"))[:32]

        assert public_key("whsk_" + base64.b64encode(seed).decode()) == public_key(PRIVATE)

    def test_a_shared_key_does_not_pass_for_a_public_one(self) -> None:
        """An attacker knows the public key, and signs with it as if it were a shared one."""
        public = public_key(PRIVATE)
        headers = signed("whsec_" + public.removeprefix("whpk_"))

        for version in ("v1", "v1a"):
            forged = {**headers, "webhook-signature": headers["webhook-signature"].replace("v1", version)}
            with pytest.raises(WebhookVerificationError):
                verify(forged, BODY, public, now=NOW)

    @pytest.mark.parametrize("secret", [SECRET, PRIVATE])
    def test_a_signature_counts_as_what_it_says_it_is_and_to_the_letter(self, secret: str) -> None:
        headers = signed(secret)
        version, _, signature = headers["webhook-signature"].partition(",")
        other = "v1a" if version == "v1" else "v1"

        for forged in (
            f"{other},{signature}",
            f"{version},!{signature}",
            f"{version},{signature[:4]}\t{signature[4:]}",
        ):
            with pytest.raises(WebhookVerificationError):
                verify({**headers, "webhook-signature": forged}, BODY, secret, now=NOW)

    def test_without_cryptography_it_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives.asymmetric", None)

        with pytest.raises(MissingExtraError, match=r"pip install .*\[server\]"):
            KeyRing({"": [PRIVATE]})


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"webhook-id": ""}, "missing"),
            ({"webhook-id": "msg_2"}, "no signature"),
            ({"webhook-id": "msg.1"}, "printable"),
            ({"webhook-id": "msg 1"}, "printable"),
            ({"webhook-id": "m" * 257}, "printable"),
            ({"webhook-timestamp": str(NOW + 1)}, "no signature"),
            ({"webhook-timestamp": str(NOW - 301)}, "too old"),
            ({"webhook-timestamp": str(NOW + 301)}, "future"),
            ({"webhook-timestamp": f"{NOW}.0"}, "unix seconds"),
            ({"webhook-timestamp": "-1"}, "unix seconds"),
            ({"webhook-timestamp": "nan"}, "unix seconds"),
            ({"webhook-timestamp": "\u0661\u0662"}, "unix seconds"),
            ({"webhook-timestamp": "9" * 400}, "unix seconds"),
            ({"webhook-signature": "v1"}, "no signature"),
            ({"webhook-signature": "v1,***"}, "no signature"),
            ({"webhook-signature": "v1,YQ"}, "no signature"),
            ({"webhook-signature": "v1,"}, "no signature"),
            ({"webhook-signature": "v1,\u00e4"}, "no signature"),
            ({"webhook-signature": "v2,YWJj"}, "no signature"),
            ({"webhook-signature": " , ,, v1a,AAAA"}, "no signature"),
            ({"webhook-signature": "v1,YWJj " * 10_000}, "too long"),
        ],
    )
    def test_a_wrong_header_is_refused_with_its_reason(self, change: dict[str, str], reason: str) -> None:
        with pytest.raises(WebhookVerificationError, match=reason):
            verify({**signed(), **change}, BODY, [SECRET, PRIVATE], now=NOW)

    @pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
    def test_a_header_that_is_there_twice_is_refused(self, name: str) -> None:
        headers = signed()

        for twice in (
            [*headers.items(), (name, headers[name])],
            [*headers.items(), (name.upper(), headers[name])],
            [(key.encode(), value.encode()) for key, value in [*headers.items(), (name, headers[name])]],
            CIMultiDict([*headers.items(), (name, headers[name])]),
            {**headers, name.title(): headers[name]},
        ):
            with pytest.raises(WebhookVerificationError, match="more than once"):
                verify(twice, BODY, SECRET, now=NOW)

    @pytest.mark.parametrize("headers", [None, 3, [1], [()], [("a",)], "text", b"bytes", {}, {1: 2}, [(None, None)]])
    def test_headers_that_are_none_are_refused(self, headers: Any) -> None:
        with pytest.raises(WebhookVerificationError):
            verify(headers, BODY, SECRET)

    def test_another_key_is_refused(self) -> None:
        with pytest.raises(WebhookVerificationError, match="known key"):
            verify(signed(), BODY, [generate_key(), PRIVATE], now=NOW)

    def test_no_key_accepts_nothing(self) -> None:
        with pytest.raises(WebhookVerificationError):
            verify(signed(), BODY, KeyRing(), now=NOW)

    @pytest.mark.parametrize("clock", [{"tolerance": float("nan")}, {"now": float("nan")}, {"tolerance": -1.0}])
    def test_a_clock_that_is_none_accepts_nothing(self, clock: dict[str, float]) -> None:
        with pytest.raises(WebhookVerificationError):
            verify(signed(), BODY, SECRET, **{"now": NOW, **clock})

    def test_the_tolerance_ends_where_it_says(self) -> None:
        for now in (NOW - 300, NOW + 300):
            assert verify(signed(), BODY, SECRET, now=now)
        for now in (NOW - 301, NOW + 301):
            with pytest.raises(WebhookVerificationError):
                verify(signed(), BODY, SECRET, now=now)

    def test_a_parsed_body_is_a_mistake_of_the_caller(self) -> None:
        with pytest.raises(HookUsageError, match="received bytes"):
            verify(signed(), BODY.decode(), SECRET)  # type: ignore[arg-type]
        with pytest.raises(HookUsageError, match="the bytes to sign"):
            signed(body="{}")  # type: ignore[arg-type]

    @pytest.mark.parametrize("given_id", ["", "a.b", "a b", "a\n", "ä", "x" * 257, None])
    def test_an_id_that_cannot_be_signed_is_a_mistake_of_the_caller(self, given_id: Any) -> None:
        with pytest.raises(HookUsageError, match="id of a delivery"):
            signed(delivery=given_id)


class TestKeyRings:
    @pytest.mark.parametrize(
        ("secret", "problem"),
        [
            ("", "begins with"),
            ("secret", "begins with"),
            ("whsec", "24 to 64"),
            (None, "begins with"),
            ("whsec_***", "not base64"),
            ("whsec_ä", "not base64"),
            ("whsec_" + base64.b64encode(b"x" * 23).decode(), "24 to 64"),
            ("whsec_" + base64.b64encode(b"x" * 65).decode(), "24 to 64"),
            ("whsk_" + base64.b64encode(b"x" * 31).decode(), "32 bytes"),
            ("whsk_" + base64.b64encode(b"x" * 64).decode(), "another key"),
            ("whpk_" + base64.b64encode(b"x" * 33).decode(), "32 bytes"),
        ],
    )
    def test_a_key_that_is_none_is_refused_and_not_shown(self, secret: Any, problem: str) -> None:
        with pytest.raises(WebhookKeyError, match=problem) as caught:
            KeyRing({"billing": [secret]})

        text = f"{caught.value!r} {caught.value}"
        assert "billing" in text
        assert not secret or "_" not in secret or secret.partition("_")[2] not in text

    def test_one_string_is_no_list(self) -> None:
        with pytest.raises(WebhookKeyError, match="newest first"):
            KeyRing({"": SECRET})

    def test_nothing_shows_a_secret(self) -> None:
        ring = KeyRing({"": [SECRET, PRIVATE], "billing": [generate_key()]})

        shown = f"{ring!r} {ring} {vars(ring)}"
        assert repr(ring) == "KeyRing('': 2, 'billing': 1)"
        assert not any(secret[10:30] in shown for secret in (SECRET, PRIVATE))

    def test_both_secrets_sign_after_a_rotation_and_one_after_the_next(self, caplog: pytest.LogCaptureFixture) -> None:
        first, second, third = generate_key(), generate_key("ed25519"), generate_key()
        ring = KeyRing({"": [first]})

        with caplog.at_level(logging.INFO, "hookline"):
            ring.rotate("", second)
        during = signed(ring)
        ring.rotate("", third, keep=0)
        after = signed(ring)

        assert all(verify(during, BODY, secret, now=NOW) for secret in (first, public_key(second)))
        assert verify(after, BODY, third, now=NOW)
        for secret in (first, second):
            with pytest.raises(WebhookVerificationError):
                verify(after, BODY, secret, now=NOW)
        assert "rotated" in caplog.text
        assert second not in caplog.text

    def test_a_rotation_keeps_as_many_as_it_says(self) -> None:
        ring = KeyRing()
        for _ in range(5):
            ring.rotate("billing", generate_key(), keep=2)

        assert repr(ring) == "KeyRing('billing': 3)"

    def test_a_bad_rotation_changes_nothing(self) -> None:
        ring = KeyRing({"": [SECRET]})

        with pytest.raises(WebhookKeyError):
            ring.rotate("", "whsec_short")
        assert verify(signed(ring), BODY, SECRET, now=NOW)

    def test_a_name_that_is_not_there_says_which_variable_to_set(self) -> None:
        with pytest.raises(WebhookKeyError, match="HOOKLINE_WEBHOOK_KEY_BILLING"):
            sign("msg_1", NOW, BODY, KeyRing({"": [SECRET]}), name="billing")

    def test_the_environment_holds_keys_by_name(self) -> None:
        first, second, billing = generate_key(), generate_key(), generate_key()
        ring = KeyRing.from_environment(
            {
                "HOOKLINE_WEBHOOK_KEY": f" {second}  {first}\n",
                "HOOKLINE_WEBHOOK_KEY_BILLING": billing,
                "HOOKLINE_WEBHOOK_KEY_": "nothing",
                "HOOKLINE_WEBHOOK_KEYS": "nothing",
                "HOOKLINE_WEBHOOK_KEY_EMPTY": " ",
            }
        )

        assert repr(ring) == "KeyRing('': 2, 'billing': 1)"
        assert verify(sign("msg_1", NOW, BODY, ring, name="billing"), BODY, billing, now=NOW)

    def test_a_bad_key_in_the_environment_is_named_by_its_variable(self) -> None:
        with pytest.raises(WebhookKeyError, match="HOOKLINE_WEBHOOK_KEY_BILLING") as caught:
            KeyRing.from_environment({"HOOKLINE_WEBHOOK_KEY_BILLING": "hunter2"})
        assert "hunter2" not in str(caught.value)

    def test_no_two_generated_keys_are_the_same(self) -> None:
        assert len({generate_key(kind) for kind in ("hmac", "ed25519") for _ in range(50)}) == 100
        with pytest.raises(HookUsageError):
            generate_key("rsa")  # type: ignore[arg-type]
        with pytest.raises(WebhookKeyError, match="public half"):
            public_key(SECRET)


NAMES = st.sampled_from(["webhook-id", "Webhook-Timestamp", "webhook-signature", "x"]) | st.text()
VALUES = (
    st.text()
    | st.binary()
    | st.sampled_from([*signed([SECRET, PRIVATE]).values(), "v1,", "v1a,AAAA", "1", str(NOW)])
    | st.lists(st.sampled_from(["v1", "v1a", ",", " ", "=", "AAAA", "Ω"])).map("".join)
    | st.none()
)


class TestLaws:
    @given(headers=st.lists(st.tuples(NAMES | st.binary(), VALUES)) | st.dictionaries(NAMES, VALUES), body=st.binary())
    def test_garbage_is_refused_and_raises_nothing_else(self, headers: Any, body: bytes) -> None:
        with pytest.raises(WebhookVerificationError):
            verify(headers, body, [SECRET, PRIVATE], now=NOW)

    @given(
        text=st.from_regex(r"[!-\-/-~]{1,256}", fullmatch=True),
        at=st.integers(0, 10**12),
        body=st.binary(),
        private=st.booleans(),
    )
    def test_whatever_is_signed_is_verified_and_nothing_of_it_may_change(
        self, text: str, at: int, body: bytes, private: bool
    ) -> None:
        secret = PRIVATE if private else SECRET
        headers = sign(text, at, body, secret)

        assert verify(headers, body, secret, now=at) == Verified(id=text, timestamp=at)
        for changed, other in (
            ({**headers, "webhook-id": text[:-1] + ("a" if text[-1] != "a" else "b")}, body),
            ({**headers, "webhook-timestamp": str(at + 1)}, body),
            (headers, body + b"\0"),
        ):
            with pytest.raises(WebhookVerificationError):
                verify(changed, other, secret, now=at)


def test_the_errors_belong_to_the_tree_and_travel() -> None:
    import pickle

    for error in (WebhookKeyError("Key 'x'", "bad"), WebhookVerificationError("old")):
        assert isinstance(error, HooklineError)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
