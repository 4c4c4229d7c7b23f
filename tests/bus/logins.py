"""Certificates, nkeys and JWTs for real servers of the tests, made anew each time."""

from __future__ import annotations

import base64
import json
import os
import ssl
import time
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import nkeys
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Authority", "OperatorMode", "new_nkey"]


def new_nkey(kind: int = nkeys.PREFIX_BYTE_USER) -> Any:
    """Return a new key pair of a user, account or operator."""
    return nkeys.from_seed(bytearray(nkeys.encode_seed(os.urandom(32), kind)))


class Authority:
    """A certificate authority in a folder.

    Args:
        folder: Where its files are.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority {folder.name}")])
        self.file = folder / "ca.pem"
        made = self._certificate(self._name, self._key).add_extension(x509.BasicConstraints(True, None), critical=True)
        self.file.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def _certificate(self, name: x509.Name, key: Any) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
        )

    def issue(self, name: str) -> tuple[Path, Path]:
        """Return the files of a new certificate for 127.0.0.1 and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        made = self._certificate(subject, key).add_extension(names, critical=False).sign(self._key, hashes.SHA256())
        files = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files

    def context(self, *certificate: Path) -> ssl.SSLContext:
        """Return the settings of a client that trusts this authority, and shows a certificate."""
        context = ssl.create_default_context(cafile=str(self.file))
        if certificate:
            context.load_cert_chain(*certificate)
        return context


class OperatorMode:
    """An operator of servers, with accounts and users as JWTs.

    Attributes:
        settings: The settings of a server.
    """

    def __init__(self) -> None:
        self._operator = new_nkey(nkeys.PREFIX_BYTE_OPERATOR)
        self.accounts = {name: new_nkey(nkeys.PREFIX_BYTE_ACCOUNT) for name in ("SYS", "ONE", "TWO")}
        public = {name: pair.public_key.decode() for name, pair in self.accounts.items()}
        unlimited = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
        unlimited |= {"wildcards": True}
        storage = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
        preload = "\n".join(
            f"{public[name]}: "
            + _sign_jwt(
                self._operator,
                pair,
                name,
                {"type": "account", "limits": unlimited | ({} if name == "SYS" else storage)},
            )
            for name, pair in self.accounts.items()
        )
        operator = _sign_jwt(
            self._operator, self._operator, "operator", {"type": "operator", "system_account": public["SYS"]}
        )
        self.settings = f"operator: {operator}\nresolver: MEMORY\nresolver_preload: {{\n{preload}\n}}\n"

    def write_credentials(self, file: Path, account: str) -> Path:
        """Write the credentials of a new user of an account, as `nsc` does."""
        pair = new_nkey()
        token = _sign_jwt(self.accounts[account], pair, "user", {"type": "user", "subs": -1, "data": -1, "payload": -1})
        file.write_text(
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{pair.seed.decode()}\n------END USER NKEY SEED------\n"
        )
        return file


def _sign_jwt(issuer: Any, subject: Any, name: str, claims: dict[str, Any]) -> str:
    payload = {
        "jti": base64.b32encode(os.urandom(32)).decode().rstrip("="),
        "iat": int(time.time()),
        "iss": issuer.public_key.decode(),
        "sub": subject.public_key.decode(),
        "name": name,
        "nats": {**claims, "version": 2},
    }
    parts = [_encode(json.dumps(part).encode()) for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, payload)]
    return ".".join([*parts, _encode(issuer.sign(".".join(parts).encode()))])


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
