"""Master keys, which encrypt the endpoints' signing secrets in the database (AES-256-GCM)."""

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
"""Environment variable that holds the master keys."""
KEY_BYTES, NONCE_BYTES = 32, 12
URL_SAFE = str.maketrans("-_", "+/")
FORMAT_HINT = "a master key is 32 random bytes in base64; create one with `openssl rand -base64 32`"


@define_error("The signing secrets of endpoints cannot be used: {problem}.")
class MasterKeyError(HooklineError):
    """Secrets of endpoints cannot be encrypted or decrypted in this process. Deliveries wait; none is sent unsigned.

    Attributes:
        problem: What is wrong, and how to fix it; never a key.
    """

    problem: str


class MasterKeys:
    """The keys that encrypt the signing secrets of endpoints, with AES-256-GCM.

    During a rotation there are several: the newest encrypts, each of them decrypts.

    Args:
        keys: 32 bytes each, in base64, newest first.
        file: The file that holds the keys, if there is one; it is read again when a key is missing.

    Attributes:
        ids: The ids of the keys in the database, newest first. A key cannot be derived from its id.

    Raises:
        MasterKeyError: If there is no key, or one cannot be parsed.
        MissingExtraError: If `cryptography` is not installed.
    """

    def __init__(self, keys: Iterable[str], *, file: Path | None = None) -> None:
        self.file = file
        self._keys = _parse_keys(list(keys), str(file) if file is not None else "`keys`")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> MasterKeys | None:
        """Read the keys from `HOOKLINE_MASTER_KEY` (newest first, separated by spaces); `None` if it is not set.

        Args:
            environment: The environment variables; `os.environ` by default.

        Raises:
            MasterKeyError: If a key cannot be parsed.
        """
        given = (os.environ if environment is None else environment).get(MASTER_KEY, "").split()
        try:
            return cls(given) if given else None
        except MasterKeyError as error:
            raise MasterKeyError(error.problem.replace("`keys`", MASTER_KEY, 1)) from None

    @classmethod
    def from_file(cls, path: Path) -> MasterKeys:
        """Read the keys from a file: one per line, newest first.

        Raises:
            MasterKeyError: If the file cannot be read, or a key in it cannot be parsed.
        """
        return cls(_read_file(path), file=path)

    @classmethod
    def generate(cls) -> MasterKeys:
        """Generate one new random key."""
        return cls([generate_master_key()])

    @classmethod
    def in_file(cls, path: Path) -> MasterKeys:
        """Read the keys from a file; a missing file is created with a new key, readable by its owner only.

        If several processes create the file at the same time, one succeeds and the others read what it wrote.

        Raises:
            MasterKeyError: If the file can neither be read nor created.
        """
        if not path.exists():
            with suppress(FileExistsError):
                _replace_file(path, [generate_master_key()], replace=False)
        return cls.from_file(path)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the keys in the database, newest first."""
        return tuple(self._keys)

    def seal(self, key_id: str, plain: bytes, about: bytes) -> bytes:
        """Encrypt a secret.

        Args:
            key_id: The id of the key that encrypts.
            plain: The secret.
            about: The owner of the secret (AES-GCM's associated data); decryption fails for any other owner.

        Raises:
            MasterKeyError: If there is no key of that id.
        """
        nonce = os.urandom(NONCE_BYTES)
        sealed: bytes = self._cipher(key_id).encrypt(nonce, plain, about)
        return nonce + sealed

    def unseal(self, key_id: str, sealed: bytes, about: bytes) -> bytes:
        """Decrypt a secret.

        Raises:
            MasterKeyError: If there is no key of that id, or the secret was changed or belongs to another owner.
        """
        from cryptography.exceptions import InvalidTag

        try:
            plain: bytes = self._cipher(key_id).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], about)
        except (InvalidTag, ValueError):
            raise MasterKeyError(
                "a secret in the database was changed, or belongs to another endpoint; create a new one"
            ) from None
        return plain

    def knows(self, key_id: str) -> bool:
        """Return whether a key of that id is here; the key file is read again if it is not."""
        if key_id not in self._keys and self.file is not None:
            with suppress(MasterKeyError):
                self._keys = _parse_keys(_read_file(self.file), str(self.file))
        return key_id in self._keys

    def _cipher(self, key_id: str) -> Any:
        if not self.knows(key_id):
            where = f"{self.file} does not hold it" if self.file is not None else f"{MASTER_KEY} does not hold it"
            raise MasterKeyError(
                f"they are encrypted with the master key {key_id}, and {where}; use the same key as the other "
                "processes of this database"
            )
        return self._keys[key_id]

    def __repr__(self) -> str:
        return f"MasterKeys({', '.join(self.ids)})"


def generate_master_key() -> str:
    """Generate the text of a new key, as a key file or the environment variable holds it."""
    return b64encode(os.urandom(KEY_BYTES)).decode()


def rotate_key_file(path: Path) -> tuple[MasterKeys, str]:
    """Add a new key to a file, in front of the keys that are there.

    Returns:
        All keys of the file, and the text of the new key.

    Raises:
        MasterKeyError: If the file cannot be read or written.
    """
    new = generate_master_key()
    _replace_file(path, [new, *_read_file(path)], replace=True)
    return MasterKeys.from_file(path), new


def write_key_file(path: Path, key: str) -> None:
    """Replace all keys of a file by one.

    Raises:
        MasterKeyError: If the file cannot be written.
    """
    _replace_file(path, [key], replace=True)


def _read_file(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise MasterKeyError(f"{path} cannot be read ({why}); {FORMAT_HINT}") from None


def _replace_file(path: Path, keys: list[str], *, replace: bool) -> None:
    """Write a key file atomically: a reader finds all keys or none."""
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


def _parse_keys(keys: list[str], where: str) -> dict[str, Any]:
    """Parse keys into ciphers, by the ids of the keys.

    Raises:
        MasterKeyError: If there is no key, or one cannot be parsed. The error never contains a key.
    """
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise MissingExtraError("server", "Secrets of endpoints") from None
    if not keys:
        raise MasterKeyError(f"{where} contains no master key; {FORMAT_HINT}")
    found: dict[str, Any] = {}
    for key in keys:
        try:
            raw = b64decode(key.translate(URL_SAFE) + "=" * (-len(key) % 4), validate=True)
        except (binascii.Error, ValueError, TypeError):
            raw = b""
        if len(raw) != KEY_BYTES:
            raise MasterKeyError(f"{where} does not contain a valid master key; {FORMAT_HINT}")
        found[sha256(b"hookline master key\0" + raw).hexdigest()[:16]] = AESGCM(raw)
    return found
