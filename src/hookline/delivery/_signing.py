"""Sign deliveries and verify their signatures, with keys that are known by name."""

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


class _Shared:
    """A `whsec_` key: both sides know it."""

    version = "v1"

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def signature(self, text: bytes) -> bytes:
        return hmac.digest(self._secret, text, "sha256")

    def accepts(self, text: bytes, signature: bytes) -> bool:
        return hmac.compare_digest(self.signature(text), signature)


class _Public:
    """A `whpk_` key: it verifies only."""

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


class _Private(_Public):
    """A `whsk_` key: it signs, and its public half verifies."""

    def __init__(self, seed: bytes) -> None:
        self._signer = _ed25519().Ed25519PrivateKey.from_private_bytes(seed)
        super().__init__(self._signer.public_key().public_bytes_raw())

    def signature(self, text: bytes) -> bytes:
        signature: bytes = self._signer.sign(text)
        return signature


class KeyRing:
    """Named keys, each a list of secrets of which every one signs, so that receivers can change over in their own time.

    A process that sends holds `whsec_` keys, which receivers share, or `whsk_` keys, of which receivers know only the
    public half, `whpk_`. A process that receives may hold any of the three.

    Args:
        keys: By name, newest first; `""` is the one that webhooks use unless they name another.

    Raises:
        WebhookKeyError: If one cannot be read.
        MissingExtraError: If one is asymmetric, and `cryptography` is not installed.
    """

    def __init__(self, keys: Mapping[str, Sequence[str]] | None = None) -> None:
        self._keys: dict[str, tuple[_Key, ...]] = {}
        for name, secrets in (keys or {}).items():
            if isinstance(secrets, str):
                raise WebhookKeyError(f"Key {name!r}", "a key is a list of secrets, newest first; got one string")
            self._keys[name] = tuple(_read(secret, f"Key {name!r}") for secret in secrets)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> KeyRing:
        """The keys that `HOOKLINE_WEBHOOK_KEY` holds, separated by spaces, newest first.

        `HOOKLINE_WEBHOOK_KEY_BILLING` holds those of the name `"billing"`.

        Args:
            environment: The variables; `os.environ` unless given.

        Raises:
            WebhookKeyError: If one cannot be read.
        """
        ring = cls()
        for variable, value in (os.environ if environment is None else environment).items():
            name = variable.removeprefix(f"{ENVIRONMENT_KEY}_").lower()
            if variable == ENVIRONMENT_KEY:
                name = ""
            elif not variable.startswith(f"{ENVIRONMENT_KEY}_") or not name:
                continue
            if secrets := value.split():
                ring._keys[name] = tuple(_read(secret, variable) for secret in secrets)
        return ring

    def rotate(self, name: str, new: str, keep: int = 1) -> None:
        """Sign with a new secret from now on, and with some of the old ones too.

        Drop the old ones (`keep=0` with the next rotation) once every receiver knows the new one.

        Args:
            name: Of the key; one that is not there yet is made.
            new: The new secret.
            keep: How many of the old secrets go on signing.

        Raises:
            WebhookKeyError: If the new secret cannot be read.
        """
        kept = self._keys.get(name, ())[: max(0, keep)]
        self._keys[name] = (_read(new, f"Key {name!r}"), *kept)
        logger.info("Webhook key %r was rotated; %d older secrets still sign", name, len(kept))

    def add(self, name: str, other: KeyRing) -> None:
        """Sign with the secrets of another ring of that name too."""
        self._keys[name] = (*self._keys.get(name, ()), *other._keys.get(name, ()))

    def signs(self, name: str = "") -> bool:
        """Whether there is a secret of that name that can sign."""
        return any(isinstance(key, _Shared | _Private) for key in self._keys.get(name, ()))

    def signatures(self, text: bytes, name: str = "") -> str:
        """The signatures of a text by every secret of a name, as `webhook-signature` has them.

        Raises:
            WebhookKeyError: If there is none.
        """
        signing = [key for key in self._keys.get(name, ()) if isinstance(key, _Shared | _Private)]
        if not signing:
            raise WebhookKeyError(
                f"Key {name!r}",
                "this process has no secret of that name to sign with; give KeyRing one, or set "
                + (f"{ENVIRONMENT_KEY}_{name.upper()}" if name else ENVIRONMENT_KEY),
            )
        return " ".join(f"{key.version},{b64encode(key.signature(text)).decode()}" for key in signing)

    def accepts(self, text: bytes, signatures: str) -> bool:
        """Whether one of the signatures is by one of the secrets, of whatever name."""
        given = list(_signatures(signatures))
        keys = [key for secrets in self._keys.values() for key in secrets]
        return any(version == key.version and key.accepts(text, decoded) for version, decoded in given for key in keys)

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(f'{name!r}: {len(keys)}' for name, keys in self._keys.items())})"


Keys: TypeAlias = KeyRing | Sequence[str] | str


def generate_key(kind: Literal["hmac", "ed25519"] = "hmac") -> str:
    """A new secret: `whsec_...`, to be shared with the receiver, or `whsk_...`, of which `public_key` is shared."""
    if kind == "hmac":
        return f"whsec_{b64encode(os.urandom(32)).decode()}"
    if kind != "ed25519":
        raise HookUsageError(f"A key is of the kind 'hmac' or 'ed25519'; got {kind!r}.")
    seed = os.urandom(32)
    return f"whsk_{b64encode(seed + _Private(seed).public).decode()}"


def public_key(secret: str) -> str:
    """The public half, `whpk_...`, of a `whsk_` key, for receivers.

    Raises:
        WebhookKeyError: If it is no such key.
    """
    key = _read(secret, "public_key")
    if not isinstance(key, _Public):
        raise WebhookKeyError("public_key", "only an asymmetric key (whsk_) has a public half")
    return f"whpk_{b64encode(key.public).decode()}"


def as_key_ring(keys: Keys) -> KeyRing:
    """Keys as a ring, however they are given.

    Raises:
        WebhookKeyError: If one cannot be read.
    """
    if isinstance(keys, KeyRing):
        return keys
    return KeyRing({"": [keys] if isinstance(keys, str) else list(keys)})


def _read(secret: object, where: str) -> _Key:
    """A key from its text.

    Raises:
        WebhookKeyError: Without the text, which is secret.
    """
    prefix, _, text = secret.partition("_") if isinstance(secret, str) else ("", "", "")
    if prefix not in ("whsec", "whsk", "whpk"):
        raise WebhookKeyError(where, "a key begins with whsec_, whsk_ or whpk_; `generate_key()` makes one")
    try:
        raw = b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise WebhookKeyError(where, f"what follows {prefix}_ is not base64") from None
    if prefix == "whsec":
        if not 24 <= len(raw) <= 64:
            raise WebhookKeyError(where, f"a whsec_ key has 24 to 64 bytes; got {len(raw)}")
        return _Shared(raw)
    if prefix == "whpk":
        if len(raw) != 32:
            raise WebhookKeyError(where, f"a whpk_ key has 32 bytes; got {len(raw)}")
        return _Public(raw)
    if len(raw) not in (32, 64):
        raise WebhookKeyError(where, f"a whsk_ key has 32 bytes, or 64 with its public half; got {len(raw)}")
    key = _Private(raw[:32])
    if raw[32:] not in (b"", key.public):
        raise WebhookKeyError(where, "the public half in the whsk_ key belongs to another key")
    return key


def _signatures(header: str) -> Iterator[tuple[str, bytes]]:
    """The signatures that can be read; what is of another version, or no base64, is passed over."""
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
"""Begins the id with which an answer is signed. Without it, a question sent back would be a signed answer to itself."""
SIGNATURE_HEADERS = ("webhook-id", "webhook-timestamp", "webhook-signature")
ID = re.compile(r"[!-\-/-~]{1,256}")
"""Printable, and no `.`, which would make the signed text ambiguous."""
TIMESTAMP = re.compile(r"[0-9]{1,15}")
LONGEST_SIGNATURES = 4096
"""Characters of `webhook-signature`: some forty signatures, each of which costs work to refuse."""


@define_error("Not a delivery that was signed for us: {reason}.")
class WebhookVerificationError(HooklineError, ValueError):
    """A request was not signed with one of the keys, or not just now.

    Attributes:
        reason: What is wrong with it; it may be told to whoever sent it.
    """

    reason: str


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery whose signature was verified.

    Attributes:
        id: Of the delivery; the same in every attempt.
        timestamp: When this attempt was signed, in unix seconds.
    """

    id: str
    timestamp: int


def sign(id: str, timestamp: int, body: bytes, keys: Keys, *, name: str = "") -> dict[str, str]:  # noqa: A002
    """The three headers that sign a delivery.

    Args:
        id: Of the delivery; the same in every attempt.
        timestamp: Of this attempt, in unix seconds.
        body: What is sent, byte by byte.
        keys: A ring, or secrets, newest first; every one of the name signs.
        name: Which key of the ring.

    Raises:
        HookUsageError: If the id cannot be signed, or the body is no bytes.
        WebhookKeyError: If there is no secret of that name, or one cannot be read.
    """
    if not isinstance(id, str) or not ID.fullmatch(id):
        raise HookUsageError("The id of a delivery is 1 to 256 printable ASCII characters without '.' or spaces.")
    if not isinstance(body, bytes):
        raise HookUsageError(f"What is signed is the body as bytes; got {type(body).__name__}.")
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
    """Make sure that a request was signed with one of the keys, and just now.

    It is the receiver's duty to remember ids: a request may come again, unchanged, within the tolerance. `WebhookGuard`
    does both.

    Args:
        headers: Of the request: a mapping, or pairs of names and values, as ASGI has them.
        body: Of the request, as it came: what was parsed and written again has other bytes.
        keys: A ring, of which every key is accepted, or secrets; public keys (`whpk_`) will do.
        tolerance: How many seconds old, or ahead of our clock, the signature may be.
        now: Unix seconds; the clock's unless given.

    Raises:
        WebhookVerificationError: If anything about the request is wrong.
        HookUsageError: If the body is no bytes.
        WebhookKeyError: If a key cannot be read.
    """
    if not isinstance(body, bytes):
        raise HookUsageError(f"What is verified is the body as it came, as bytes; got {type(body).__name__}.")
    ring = as_key_ring(keys)
    id, timestamp, signatures = _signed_headers(headers)  # noqa: A001
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
        raise WebhookVerificationError("no signature in `webhook-signature` is by a known key")
    return Verified(id=id, timestamp=int(timestamp))


def _signed_headers(headers: object) -> list[str]:
    """The values of the three headers, each of which is there exactly once.

    Raises:
        WebhookVerificationError: If that is not so.
    """
    found: dict[str, str] = {}
    for name, value in _pairs(headers):
        lower = name.lower()
        if lower in found and lower in SIGNATURE_HEADERS:
            raise WebhookVerificationError(f"`{lower}` is there more than once")
        found[lower] = value
    missing = [name for name in SIGNATURE_HEADERS if not found.get(name)]
    if missing:
        raise WebhookVerificationError(f"`{missing[0]}` is missing")
    return [found[name] for name in SIGNATURE_HEADERS]


def _pairs(headers: object) -> Iterator[tuple[str, str]]:
    given = headers.items() if isinstance(headers, Mapping) else headers
    try:
        for name, value in given:  # type: ignore[attr-defined]
            if isinstance(name, str | bytes) and isinstance(value, str | bytes):
                yield _text(name), _text(value)
    except (TypeError, ValueError):
        raise WebhookVerificationError("its headers cannot be read") from None


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
