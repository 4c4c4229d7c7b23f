"""Sign webhooks and verify their signatures (Standard Webhooks), with named keys: HMAC-SHA256 or Ed25519."""

from __future__ import annotations

import binascii
import hmac
import logging
import os
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from hookline.errors import HooklineError, HookUsageError, MissingExtraError, define_error

__all__ = [
    "ANSWER_PREFIX",
    "SIGNATURE_HEADERS",
    "KeyRing",
    "Keys",
    "Verified",
    "WebhookKeyError",
    "WebhookVerificationError",
    "as_key_ring",
    "generate_key",
    "public_key",
    "sign",
    "verify",
]

logger = logging.getLogger("hookline")

ENVIRONMENT_KEY = "HOOKLINE_WEBHOOK_KEY"


@define_error("{where}: {problem}")
class WebhookKeyError(HooklineError, ValueError):
    """A signing key cannot be used.

    Attributes:
        where: Which key; never the key itself.
        problem: What is wrong, and how to fix it.
    """

    where: str
    problem: str


class _Key(Protocol):
    version: str

    def accepts(self, text: bytes, signature: bytes) -> bool: ...


class _SharedKey:
    """A `whsec_` key (HMAC), which sender and receiver share."""

    version = "v1"

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def signature(self, text: bytes) -> bytes:
        return hmac.digest(self._secret, text, "sha256")

    def accepts(self, text: bytes, signature: bytes) -> bool:
        return hmac.compare_digest(self.signature(text), signature)


class _PublicKey:
    """A `whpk_` key (Ed25519), which verifies only."""

    version = "v1a"

    def __init__(self, public: bytes) -> None:
        self.public = public
        self._verifier = _ed25519().Ed25519PublicKey.from_public_bytes(public)

    def accepts(self, text: bytes, signature: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature

        try:
            self._verifier.verify(signature, text)
        except InvalidSignature:
            return False
        return True


class _PrivateKey(_PublicKey):
    """A `whsk_` key (Ed25519), which signs; its public half verifies."""

    def __init__(self, seed: bytes) -> None:
        self._signer = _ed25519().Ed25519PrivateKey.from_private_bytes(seed)
        super().__init__(self._signer.public_key().public_bytes_raw())

    def signature(self, text: bytes) -> bytes:
        signature: bytes = self._signer.sign(text)
        return signature


_SIGNING = (_SharedKey, _PrivateKey)


class KeyRing:
    """Named keys. Each is a list of secrets that all sign, so that receivers can rotate in their own time.

    A sending process holds `whsec_` keys, which it shares with receivers, or `whsk_` keys, of which receivers know only
    the public half, `whpk_`. A receiving process may hold any of the three.

    Args:
        keys: The secrets by name, newest first; `""` is the key of webhooks that name none.

    Raises:
        WebhookKeyError: If a secret cannot be parsed.
        MissingExtraError: If a secret is asymmetric, and `cryptography` is not installed.
    """

    def __init__(self, keys: Mapping[str, Sequence[str]] | None = None) -> None:
        self._keys: dict[str, tuple[_Key, ...]] = {}
        for name, secrets in (keys or {}).items():
            if isinstance(secrets, str):
                raise WebhookKeyError(f"Key {name!r}", "a key must be a list of secrets, newest first; got one string")
            self._keys[name] = tuple(_parse_key(secret, f"Key {name!r}") for secret in secrets)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> KeyRing:
        """Read keys from environment variables, each with secrets separated by spaces, newest first.

        `HOOKLINE_WEBHOOK_KEY` holds the unnamed key, `HOOKLINE_WEBHOOK_KEY_BILLING` the key `"billing"`.

        Args:
            environment: The environment variables; `os.environ` by default.

        Raises:
            WebhookKeyError: If a secret cannot be parsed.
        """
        ring = cls()
        for variable, value in (os.environ if environment is None else environment).items():
            name = variable.removeprefix(f"{ENVIRONMENT_KEY}_").lower()
            if variable == ENVIRONMENT_KEY:
                name = ""
            elif not variable.startswith(f"{ENVIRONMENT_KEY}_") or not name:
                continue
            if secrets := value.split():
                ring._keys[name] = tuple(_parse_key(secret, variable) for secret in secrets)
        return ring

    def rotate(self, name: str, new: str, keep: int = 1) -> None:
        """Add a new secret to a key, and keep some of the old ones.

        Drop the old secrets (`keep=0` with the next rotation) once every receiver knows the new one.

        Args:
            name: The name of the key; a key of a new name is created.
            new: The new secret.
            keep: Number of old secrets that go on signing.

        Raises:
            WebhookKeyError: If the new secret cannot be parsed.
        """
        kept = self._keys.get(name, ())[: max(0, keep)]
        self._keys[name] = (_parse_key(new, f"Key {name!r}"), *kept)
        logger.info("Webhook key %r was rotated; %d older secrets still sign", name, len(kept))

    def add(self, name: str, other: KeyRing) -> None:
        """Append the secrets that another ring has under that name."""
        self._keys[name] = (*self._keys.get(name, ()), *other._keys.get(name, ()))

    def signs(self, name: str = "") -> bool:
        """Return whether the key of that name has a secret that can sign."""
        return any(isinstance(key, _SIGNING) for key in self._keys.get(name, ()))

    def signatures(self, text: bytes, name: str = "") -> str:
        """Sign a text with every secret of a key, and return the value of `webhook-signature`.

        Raises:
            WebhookKeyError: If the key has no secret that can sign.
        """
        signing = [key for key in self._keys.get(name, ()) if isinstance(key, _SIGNING)]
        if not signing:
            raise WebhookKeyError(
                f"Key {name!r}",
                "this process has no signing secret of that name; add it to the KeyRing, or set "
                + (f"{ENVIRONMENT_KEY}_{name.upper()}" if name else ENVIRONMENT_KEY),
            )
        return " ".join(f"{key.version},{b64encode(key.signature(text)).decode()}" for key in signing)

    def accepts(self, text: bytes, signatures: str) -> bool:
        """Return whether at least one of the signatures is by one of the secrets, of any key."""
        given = list(_parse_signatures(signatures))
        keys = [key for secrets in self._keys.values() for key in secrets]
        return any(version == key.version and key.accepts(text, decoded) for version, decoded in given for key in keys)

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(f'{name!r}: {len(keys)}' for name, keys in self._keys.items())})"


Keys: TypeAlias = KeyRing | Sequence[str] | str


def generate_key(kind: Literal["hmac", "ed25519"] = "hmac") -> str:
    """Generate a secret: `whsec_...`, shared with the receiver, or `whsk_...`, whose `public_key` is shared."""
    if kind == "hmac":
        return f"whsec_{b64encode(os.urandom(32)).decode()}"
    if kind != "ed25519":
        raise HookUsageError(f"The kind of a key must be 'hmac' or 'ed25519'; got {kind!r}.")
    seed = os.urandom(32)
    return f"whsk_{b64encode(seed + _PrivateKey(seed).public).decode()}"


def public_key(secret: str) -> str:
    """Return the public half (`whpk_...`) of a `whsk_` key, for receivers.

    Raises:
        WebhookKeyError: If the key is not a `whsk_` or `whpk_` key.
    """
    key = _parse_key(secret, "public_key")
    if not isinstance(key, _PublicKey):
        raise WebhookKeyError("public_key", "only an asymmetric key (whsk_) has a public half")
    return f"whpk_{b64encode(key.public).decode()}"


def as_key_ring(keys: Keys) -> KeyRing:
    """Convert a secret or a list of secrets into a `KeyRing`.

    Raises:
        WebhookKeyError: If a secret cannot be parsed.
    """
    if isinstance(keys, KeyRing):
        return keys
    return KeyRing({"": [keys] if isinstance(keys, str) else list(keys)})


def _parse_key(secret: object, where: str) -> _Key:
    """Parse the text of a key.

    Raises:
        WebhookKeyError: If it cannot be parsed. The error never contains the text, which is secret.
    """
    prefix, _, text = secret.partition("_") if isinstance(secret, str) else ("", "", "")
    if prefix not in ("whsec", "whsk", "whpk"):
        raise WebhookKeyError(where, "a key begins with whsec_, whsk_ or whpk_; create one with `generate_key()`")
    try:
        raw = b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise WebhookKeyError(where, f"the part after {prefix}_ is not base64") from None
    if prefix == "whsec":
        if not 24 <= len(raw) <= 64:
            raise WebhookKeyError(where, f"a whsec_ key has 24 to 64 bytes; got {len(raw)}")
        return _SharedKey(raw)
    if prefix == "whpk":
        if len(raw) != 32:
            raise WebhookKeyError(where, f"a whpk_ key has 32 bytes; got {len(raw)}")
        return _PublicKey(raw)
    if len(raw) not in (32, 64):
        raise WebhookKeyError(where, f"a whsk_ key has 32 bytes, or 64 with its public half; got {len(raw)}")
    key = _PrivateKey(raw[:32])
    if raw[32:] not in (b"", key.public):
        raise WebhookKeyError(where, "the public half in the whsk_ key belongs to another key")
    return key


def _parse_signatures(header: str) -> Iterator[tuple[str, bytes]]:
    """Yield version and bytes of each signature in a header; entries that are not base64 are skipped."""
    for each in header.split(" "):
        version, comma, text = each.partition(",")
        if comma:
            try:
                yield version, b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                continue


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise MissingExtraError("server", "An asymmetric webhook key") from None
    return ed25519


ANSWER_PREFIX = "answer_"
"""Prefix of the id under which an answer is signed. Without it, a question sent back would pass as its own answer."""
SIGNATURE_HEADERS = ("webhook-id", "webhook-timestamp", "webhook-signature")
ID = re.compile(r"[!-\-/-~]{1,256}")
"""Printable ASCII without `.`, which would make the signed text ambiguous."""
TIMESTAMP = re.compile(r"[0-9]{1,15}")
LONGEST_SIGNATURES = 4096
"""Longest `webhook-signature`, in characters: about forty signatures. Each costs work to check."""


@define_error("Not a delivery with a valid signature: {reason}.")
class WebhookVerificationError(HooklineError, ValueError):
    """A request has no valid, recent signature by one of the keys.

    Attributes:
        reason: What is wrong with the request; safe to show to its sender.
    """

    reason: str


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery whose signature was verified.

    Attributes:
        id: The id of the delivery; the same in every attempt.
        timestamp: The time of this attempt, in unix seconds.
    """

    id: str
    timestamp: int


def sign(id: str, timestamp: int, body: bytes, keys: Keys, *, name: str = "") -> dict[str, str]:  # noqa: A002
    """Sign a delivery, and return the three signature headers.

    Args:
        id: The id of the delivery; the same in every attempt.
        timestamp: The time of this attempt, in unix seconds.
        body: The exact bytes that are sent.
        keys: A key ring, or secrets, newest first; each secret of the key signs.
        name: The name of the key in the ring.

    Raises:
        HookUsageError: If the id has characters that cannot be signed, or the body is not `bytes`.
        WebhookKeyError: If there is no secret of that name, or one cannot be parsed.
    """
    if not isinstance(id, str) or not ID.fullmatch(id):
        raise HookUsageError(
            "The id of a delivery must have 1 to 256 printable ASCII characters, without '.' and spaces."
        )
    if not isinstance(body, bytes):
        raise HookUsageError(f"`body` must be the bytes to sign; got {type(body).__name__}.")
    text = f"{id}.{timestamp:d}.".encode() + body
    values = (id, f"{timestamp:d}", as_key_ring(keys).signatures(text, name))
    return dict(zip(SIGNATURE_HEADERS, values, strict=True))


def verify(
    headers: Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]],
    body: bytes,
    keys: Keys,
    *,
    tolerance: float = 300.0,
    now: float | None = None,
) -> Verified:
    """Verify that a request has a recent signature by one of the keys.

    The receiver has to remember ids, since a request may be repeated unchanged within the tolerance. `WebhookGuard`
    verifies and remembers.

    Args:
        headers: The request's headers: a mapping, or pairs of names and values as in ASGI.
        body: The request's body as it came; a body that was parsed and serialized again has other bytes.
        keys: A key ring, of which every key is accepted, or secrets; public keys (`whpk_`) suffice.
        tolerance: Seconds that the signature may be old, or ahead of this machine's clock.
        now: The present time in unix seconds; the clock's by default.

    Raises:
        WebhookVerificationError: If the signature is missing, wrong or not recent.
        HookUsageError: If the body is not `bytes`.
        WebhookKeyError: If a key cannot be parsed.
    """
    if not isinstance(body, bytes):
        raise HookUsageError(f"`body` must be the received bytes; got {type(body).__name__}.")
    ring = as_key_ring(keys)
    id, timestamp, signatures = _extract_signature_headers(headers)  # noqa: A001
    if not ID.fullmatch(id):
        raise WebhookVerificationError("`webhook-id` is not 1 to 256 printable characters without '.'")
    if not TIMESTAMP.fullmatch(timestamp):
        raise WebhookVerificationError("`webhook-timestamp` is not a number of unix seconds")
    age = (time.time() if now is None else now) - int(timestamp)
    if not age <= tolerance:
        raise WebhookVerificationError("`webhook-timestamp` is too old")
    if not age >= -tolerance:
        raise WebhookVerificationError("`webhook-timestamp` is in the future")
    if len(signatures) > LONGEST_SIGNATURES:
        raise WebhookVerificationError("`webhook-signature` is too long")
    if not ring.accepts(f"{id}.{timestamp}.".encode() + body, signatures):
        raise WebhookVerificationError("no signature in `webhook-signature` matches a known key")
    return Verified(id=id, timestamp=int(timestamp))


def _extract_signature_headers(headers: object) -> list[str]:
    """Return the values of the three signature headers.

    Raises:
        WebhookVerificationError: If one of them is missing or repeated.
    """
    found: dict[str, str] = {}
    for name, value in _iterate_headers(headers):
        lower = name.lower()
        if lower in found and lower in SIGNATURE_HEADERS:
            raise WebhookVerificationError(f"`{lower}` appears more than once")
        found[lower] = value
    missing = [name for name in SIGNATURE_HEADERS if not found.get(name)]
    if missing:
        raise WebhookVerificationError(f"`{missing[0]}` is missing")
    return [found[name] for name in SIGNATURE_HEADERS]


def _iterate_headers(headers: object) -> Iterator[tuple[str, str]]:
    given = headers.items() if isinstance(headers, Mapping) else headers
    try:
        for name, value in given:  # type: ignore[attr-defined]
            if isinstance(name, str | bytes) and isinstance(value, str | bytes):
                yield _decode_header(name), _decode_header(value)
    except (TypeError, ValueError):
        raise WebhookVerificationError("its headers cannot be parsed") from None


def _decode_header(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
