"""Sign the questions of remote hooks and their answers with secrets that both processes know."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from hookline.bus._messages import Answerer, BusAnswerError
from hookline.errors import HookUsageError

__all__ = [
    "ANSWER",
    "QUESTION",
    "SECRET_VARIABLE",
    "Secret",
    "SignedMessage",
    "UnsignedAnswerError",
    "check_secret",
    "read_signed",
    "sign",
    "sign_answers",
]

Secret: TypeAlias = str | Sequence[str]
"""A secret, or several, newest first: all of them sign, and one signature that fits is enough."""

SECRET_VARIABLE = "HOOKLINE_REMOTE_SECRET"
"""The environment variable with the secrets of remote hooks, separated by spaces."""
SHORTEST = 24
"""Characters that a secret has at least."""
QUESTION, ANSWER = "question", "answer"


class UnsignedAnswerError(BusAnswerError):
    """An answer has no valid signature, so that it is none."""


class SignedMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question or an answer with its signatures, as JSON.

    Attributes:
        id: The id of the question, which its answer repeats, so that no other question can get this answer.
        signatures: HMAC-SHA256 of kind, name, id and body with each secret, as hexadecimal digits.
        body: The JSON that is signed.
    """

    id: str
    signatures: list[str]
    body: msgspec.Raw


def check_secret(secret: object) -> tuple[bytes, ...]:
    """Return the secrets as bytes; none for `None`.

    Raises:
        HookUsageError: If one is no text, or too short. The error never contains it.
    """
    if secret is None:
        return ()
    given = [secret] if isinstance(secret, str) else secret
    if not isinstance(given, tuple | list) or not given or not all(isinstance(each, str) for each in given):
        raise HookUsageError("`secret` must be a text, or a list of texts, newest first.")
    if any(len(each) < SHORTEST for each in given):
        raise HookUsageError(
            f"A secret must have at least {SHORTEST} characters; make one with `hookline.delivery.generate_key()`."
        )
    return tuple(each.encode(errors="surrogatepass") for each in given)


def sign_answers(handler: Answerer, name: str, secret: tuple[bytes, ...]) -> Answerer:
    """Return an answerer that refuses questions without a valid signature, and signs the answers.

    Args:
        handler: Answers a question.
        name: The name that is served.
        secret: The secrets; none for the handler itself.
    """
    if not secret:
        return handler

    async def answer(message: bytes) -> bytes:
        id, question = read_signed(QUESTION, name, message, secret)  # noqa: A001
        return sign(ANSWER, name, id, await handler(question), secret)

    return answer


def read_signed(
    kind: str,
    name: str,
    message: bytes,
    secret: tuple[bytes, ...],
    id: str | None = None,  # noqa: A002
) -> tuple[str, bytes]:
    """Return the id and the body of a signed message.

    Args:
        kind: `"question"` or `"answer"`.
        name: The name that is asked.
        message: The message.
        secret: The secrets, of which one must have signed.
        id: The id that it must have; any by default.

    Raises:
        HookUsageError: If it has no valid signature.
    """
    try:
        signed = msgspec.json.decode(message, type=SignedMessage)
    except msgspec.MsgspecError:
        raise HookUsageError(f"The {kind} is not signed; give both processes the same `secret`.") from None
    body = bytes(signed.body)
    expected = _signatures(kind, name, signed.id, body, secret)
    is_right = any(_is_same(each, given) for each in expected for given in signed.signatures[:8])
    if not is_right or (id is not None and not _is_same(signed.id, id)):
        raise HookUsageError(f"The signature of the {kind} is wrong; give both processes the same `secret`.")
    return signed.id, body


def sign(kind: str, name: str, id: str, body: bytes, secret: tuple[bytes, ...]) -> bytes:  # noqa: A002
    """Return a body as a `SignedMessage`, signed with each secret."""
    signatures = _signatures(kind, name, id, body, secret)
    return msgspec.json.encode(SignedMessage(id=id, signatures=signatures, body=msgspec.Raw(body)))


def _signatures(kind: str, name: str, id: str, body: bytes, secret: tuple[bytes, ...]) -> list[str]:  # noqa: A002
    # As JSON, so that no other division of the four has the same text.
    text = msgspec.json.encode(["hookline", kind, name, id]) + body
    return [hmac.digest(each, text, "sha256").hex() for each in secret]


def _is_same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(errors="surrogatepass"), other.encode(errors="surrogatepass"))
