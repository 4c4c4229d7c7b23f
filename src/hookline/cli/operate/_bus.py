"""The bus of a command: a NATS server that carries wake-ups and questions between the processes of a store."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hookline.bus import NatsBus

__all__ = ["BusCredentials", "BusNkeySeed", "BusPrefix", "BusUrls", "BusWait", "bus_from_environment", "make_bus"]

BUS = "HOOKLINE_BUS"

BusUrls = Annotated[
    list[str] | None,
    typer.Option(
        "--bus",
        metavar="URL",
        envvar=BUS,
        help="A NATS server that all processes of the store share: nats://host:4222; repeatable, for a cluster.",
    ),
]
BusCredentials = Annotated[
    Path | None,
    typer.Option(
        "--bus-credentials", metavar="FILE", envvar=f"{BUS}_CREDENTIALS", help="Log in to it with this .creds file."
    ),
]
BusNkeySeed = Annotated[
    Path | None,
    typer.Option(
        "--bus-nkey-seed", metavar="FILE", envvar=f"{BUS}_NKEY_SEED", help="Log in to it with the nkey of this seed."
    ),
]
BusPrefix = Annotated[
    str, typer.Option("--bus-prefix", metavar="TEXT", envvar=f"{BUS}_PREFIX", help="First part of all its subjects.")
]
BusWait = Annotated[
    float,
    typer.Option("--bus-wait", min=0.0, metavar="SECONDS", help="Seconds to wait for it at the start, if it is away."),
]


def make_bus(
    urls: Sequence[str], *, credentials: Path | None, nkey_seed: Path | None, prefix: str, wait: float
) -> NatsBus:
    """Return the bus that the options name; it is not open yet.

    Raises:
        HookUsageError: If an option is invalid.
        MissingExtraError: If the extra `nats` is not installed.
    """
    from hookline.bus import NatsBus

    return NatsBus(list(urls), credentials=credentials, nkey_seed=nkey_seed, prefix=prefix, wait=wait)


def bus_from_environment() -> NatsBus | None:
    """Return the bus that `HOOKLINE_BUS` and the variables beside it name; `None` without one. It is not open yet.

    Raises:
        HookUsageError: If a variable is invalid.
        MissingExtraError: If the extra `nats` is not installed.
    """
    if not (urls := os.environ.get(BUS, "").split()):
        return None

    def file(name: str) -> Path | None:
        given = os.environ.get(f"{BUS}_{name}")
        return Path(given) if given else None

    prefix = os.environ.get(f"{BUS}_PREFIX") or "hookline"
    return make_bus(urls, credentials=file("CREDENTIALS"), nkey_seed=file("NKEY_SEED"), prefix=prefix, wait=0.0)
