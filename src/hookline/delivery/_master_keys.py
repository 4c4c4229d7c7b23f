"""Master keys: what encrypts the signing secrets that a database keeps."""

from __future__ import annotations

import binascii
import os
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from hookline.errors import HooklineError, MissingExtraError, define_error

__all__ = ["MASTER_KEY", "MasterKeyError", "MasterKeys"]

MASTER_KEY = "HOOKLINE_MASTER_KEY"
"""Names the variable that has the master keys."""
KEY_BYTES, NONCE_BYTES = 32, 12
URL_SAFE = str.maketrans("-_", "+/")
HOW = "a master key is 32 random bytes in base64, as `openssl rand -base64 32` gives them"


@define_error("The signing secrets of endpoints cannot be used: {problem}.")
class MasterKeyError(HooklineError):
    """The secrets of endpoints cannot be decrypted or encrypted here. Nothing is lost, and nothing is sent unsigned.

    Attributes:
        problem: What is wrong, and how to fix it; never a key.
    """

    problem: str


class MasterKeys:
    """The keys under which the signing secrets of endpoints are encrypted, with AES-256-GCM.

    Several are given while one takes the place of another: each of them decrypts.

    Args:
        keys: 32 bytes each, in base64, newest first.
        file: Where they stand, if they stand in a file, which is read again when one is missing.

    Attributes:
        ids: What the keys are called in the database, newest first; a key cannot be found out from its id.

    Raises:
        MasterKeyError: If there is none, or one cannot be read.
        MissingExtraError: If `cryptography` is not installed.
    """

    def __init__(self, keys: Iterable[str], *, file: Path | None = None) -> None:
        self.file = file
        self._keys = _read(list(keys), str(file) if file is not None else "`keys`")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> MasterKeys | None:
        """The keys that `HOOKLINE_MASTER_KEY` holds, separated by spaces, newest first; `None` if it is not set.

        Args:
            environment: The variables; `os.environ` unless given.

        Raises:
            MasterKeyError: If one cannot be read.
        """
        given = (os.environ if environment is None else environment).get(MASTER_KEY, "").split()
        try:
            return cls(given) if given else None
        except MasterKeyError as error:
            raise MasterKeyError(error.problem.replace("`keys`", MASTER_KEY, 1)) from None

    @classmethod
    def from_file(cls, path: Path) -> MasterKeys:
        """The keys that a file holds, one in a line, newest first.

        Raises:
            MasterKeyError: If it cannot be read, or one of them cannot.
        """
        return cls(_lines(path), file=path)

    @classmethod
    def generate(cls) -> MasterKeys:
        """A new key, which nobody else has."""
        return cls([new_key()])

    @classmethod
    def in_file(cls, path: Path) -> MasterKeys:
        """The keys of a file, which is made if it is not there, and which only its owner may read.

        Of several processes that make it at the same time, one does, and the others read what that wrote.

        Raises:
            MasterKeyError: If it can neither be read nor made.
        """
        if not path.exists():
            with suppress(FileExistsError):
                _put(path, [new_key()], replace=False)
        return cls.from_file(path)

    @property
    def ids(self) -> tuple[str, ...]:
        """What the keys are called in the database, newest first."""
        return tuple(self._keys)

    def seal(self, key_id: str, plain: bytes, about: bytes) -> bytes:
        """Encrypt a secret.

        Args:
            key_id: Which key encrypts.
            plain: The secret.
            about: What it belongs to; it is decrypted only for the same.

        Raises:
            MasterKeyError: If there is no such key.
        """
        nonce = os.urandom(NONCE_BYTES)
        sealed: bytes = self._cipher(key_id).encrypt(nonce, plain, about)
        return nonce + sealed

    def unseal(self, key_id: str, sealed: bytes, about: bytes) -> bytes:
        """Decrypt a secret.

        Raises:
            MasterKeyError: If there is no such key, or the secret was changed, or belongs to something else.
        """
        from cryptography.exceptions import InvalidTag

        try:
            plain: bytes = self._cipher(key_id).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], about)
        except (InvalidTag, ValueError):
            raise MasterKeyError(
                "a secret in the database was changed, or is another endpoint's; make a new one for that endpoint"
            ) from None
        return plain

    def knows(self, key_id: str) -> bool:
        """Whether a key is here; a file is read once more if it is not."""
        if key_id not in self._keys and self.file is not None:
            with suppress(MasterKeyError):
                self._keys = _read(_lines(self.file), str(self.file))
        return key_id in self._keys

    def _cipher(self, key_id: str) -> Any:
        if not self.knows(key_id):
            where = f"{self.file} does not hold it" if self.file is not None else f"{MASTER_KEY} does not hold it"
            raise MasterKeyError(
                f"they are encrypted under the master key {key_id}, and {where}; give this process the key that the "
                "other processes of this database have"
            )
        return self._keys[key_id]

    def __repr__(self) -> str:
        return f"MasterKeys({', '.join(self.ids)})"


def new_key() -> str:
    """A new key as a file or the environment holds it."""
    return b64encode(os.urandom(KEY_BYTES)).decode()


def rotate_file(path: Path) -> tuple[MasterKeys, str]:
    """Put a new key into a file, before those that are there.

    Returns:
        All keys of the file, and the text of the new one.

    Raises:
        MasterKeyError: If the file cannot be read or written.
    """
    new = new_key()
    _put(path, [new, *_lines(path)], replace=True)
    return MasterKeys.from_file(path), new


def keep_in_file(path: Path, key: str) -> None:
    """Leave one key in a file.

    Raises:
        MasterKeyError: If the file cannot be written.
    """
    _put(path, [key], replace=True)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise MasterKeyError(f"{path} cannot be read ({why}); {HOW}") from None


def _put(path: Path, keys: list[str], *, replace: bool) -> None:
    """Write a file as a whole: who reads it finds all keys, or none."""
    beside = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    try:
        opened = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(opened, "w") as stream:
            stream.write("".join(f"{key}\n" for key in keys))
            stream.flush()
            os.fsync(opened)
        if replace:
            beside.replace(path)
        else:
            os.link(beside, path)
    except FileExistsError:
        raise
    except OSError as error:
        raise MasterKeyError(f"{path} cannot be written ({error.strerror}); set {MASTER_KEY} instead") from None
    finally:
        with suppress(OSError):
            beside.unlink()


def _read(keys: list[str], where: str) -> dict[str, Any]:
    """The ciphers of keys by their ids.

    Raises:
        MasterKeyError: Without any key in it.
    """
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise MissingExtraError("server", "Secrets of endpoints") from None
    if not keys:
        raise MasterKeyError(f"{where} holds no master key; {HOW}")
    found: dict[str, Any] = {}
    for key in keys:
        try:
            raw = b64decode(key.translate(URL_SAFE) + "=" * (-len(key) % 4), validate=True)
        except (binascii.Error, ValueError, TypeError):
            raw = b""
        if len(raw) != KEY_BYTES:
            raise MasterKeyError(f"{where} holds something else than a master key; {HOW}")
        found[sha256(b"hookline master key\0" + raw).hexdigest()[:16]] = AESGCM(raw)
    return found
