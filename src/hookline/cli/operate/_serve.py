"""`hookline serve`: serve the HTTP API and its web page on a store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hookline.cli._terminal import print_json_lines
from hookline.cli.operate._bus import BusCredentials, BusNkeySeed, BusPrefix, BusUrls, BusWait, make_bus
from hookline.cli.operate._endpoints import MasterKeyFile
from hookline.cli.operate._running import AllowMissingHooks, Environment, Observers, ScriptEnv, WebhookEnv
from hookline.cli.operate._store import (
    DEFAULT_STORE,
    IN_MEMORY,
    AsJson,
    Files,
    Modules,
    Scripts,
    StoreUrl,
    check_store,
    find_modules,
    report_errors_only,
    silence_logger,
)

if TYPE_CHECKING:
    from hookline.server import RateLimit, Server

__all__ = ["serve"]

Agents = Annotated[
    list[str] | None,
    typer.Option(
        metavar="AGENT",
        help="An agent, as package.module:name or file.py:name, whose operations this server resumes and retries; "
        "repeatable.",
    ),
]
BodyTimeout = Annotated[
    float,
    typer.Option(
        min=0.001,
        metavar="SECONDS",
        help="Seconds that a body, or the reading of a response, may stall.",
    ),
]
HeaderTimeout = Annotated[
    float, typer.Option(min=0.001, metavar="SECONDS", help="Seconds to wait for the headers of a request.")
]
AlertUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Where to send alerts: a shadow hook denies at another rate, or a hook fell back to shadow mode.",
    ),
]
AlertWindow = Annotated[
    int,
    typer.Option(
        metavar="SECONDS", help="The window of a rate of denials, which is compared with the one before: 60 to 21600."
    ),
]
AlertMinimum = Annotated[
    int, typer.Option(min=1, metavar="N", help="Calls in a window from which on its rate is compared.")
]
Host = Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen on.")]
MaxBody = Annotated[int, typer.Option(min=1, metavar="BYTES", help="Largest body of a request.")]
MaxConnections = Annotated[int, typer.Option(min=1, metavar="N", help="Largest number of open connections.")]
MaxHeaders = Annotated[
    int,
    typer.Option(min=1024, metavar="BYTES", help="Largest URL and headers of a request together."),
]
Origins = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ORIGIN", help="An origin whose pages may call the API, such as https://ops.example.com; repeatable."
    ),
]
Page = Annotated[bool, typer.Option("--page/--no-page", help="Serve the web page too.")]
Port = Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="The port; 0 for any free port.")]
Quota = Annotated[int, typer.Option(min=0, metavar="N", help="Hook definitions that each tenant may store.")]
Rate = Annotated[int, typer.Option(min=0, metavar="N", help="Requests a minute for each key; 0 for no limit.")]
Retention = Annotated[float, typer.Option(min=0.001, metavar="HOURS", help="How long executions of hooks are kept.")]
TenantRate = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="Requests a minute for all keys of a tenant together; 0 for no limit. The default is five times "
        "--rate-limit.",
    ),
]
TrustedProxies = Annotated[
    list[str] | None,
    typer.Option(
        "--trusted-proxy",
        metavar="ADDRESS",
        help="A proxy, or a network of proxies, whose X-Forwarded-For and X-Forwarded-Proto are trusted; repeatable.",
    ),
]
TraceUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Where the page links to traces, with {trace_id} in it, such as "
        "https://traces.example.com/trace/{trace_id}.",
    ),
]


def serve(
    store: StoreUrl = DEFAULT_STORE,
    host: Host = "127.0.0.1",
    port: Port = 8430,
    files: Files = None,
    scripts: Scripts = None,
    modules: Modules = None,
    script_env: ScriptEnv = None,
    webhook_env: WebhookEnv = None,
    agent: Agents = None,
    allow_missing_hooks: AllowMissingHooks = False,
    quota: Quota = 50,
    retention_hours: Retention = 24.0,
    observers: Observers = False,
    allow_origin: Origins = None,
    rate_limit: Rate = 6000,
    tenant_rate_limit: TenantRate = None,
    max_body: MaxBody = 1024 * 1024,
    max_headers: MaxHeaders = 64 * 1024,
    header_timeout: HeaderTimeout = 30.0,
    body_timeout: BodyTimeout = 30.0,
    max_connections: MaxConnections = 1000,
    trusted_proxies: TrustedProxies = None,
    page: Page = True,
    master_key_file: MasterKeyFile = None,
    trace_url: TraceUrl = None,
    environment: Environment = None,
    bus: BusUrls = None,
    bus_credentials: BusCredentials = None,
    bus_nkey_seed: BusNkeySeed = None,
    bus_prefix: BusPrefix = "hookline",
    bus_wait: BusWait = 0.0,
    alert_url: AlertUrl = None,
    alert_window: AlertWindow = 900,
    alert_minimum: AlertMinimum = 100,
    as_json: AsJson = False,
) -> None:
    """Serve the HTTP API and its web page until Ctrl-C.

    A store that does not exist is created. The first time, an administrator's key is created and shown once.

    HOOKLINE_SESSION_KEY, 32 random characters or more, keeps people signed in. HOOKLINE_MASTER_KEY, 32 random bytes in
    base64, encrypts the signing secrets of endpoints.
    """
    with report_errors_only():
        from hookline.registry import AlertSettings
        from hookline.server import RateLimit
        from hookline.webhooks import Webhook

        exists = check_store(store, creates=True)
        find_modules(modules)
        settings = {
            "url": store,
            "host": host,
            "port": port,
            "files": files or (),
            "modules": modules or (),
            "scripts": scripts,
            "script_env": script_env or (),
            "webhook_env": webhook_env or (),
            "quota": quota,
            "retention_hours": retention_hours,
            "observers": observers,
            "allow_origins": allow_origin or (),
            "rate_limit": RateLimit(requests=rate_limit) if rate_limit else None,
            "tenant_rate_limit": _tenant_rate(tenant_rate_limit),
            "max_body": max_body,
            "max_headers": max_headers,
            "header_timeout": header_timeout,
            "body_timeout": body_timeout,
            "max_connections": max_connections,
            "trusted_proxies": trusted_proxies or (),
            "page": page,
            "allow_missing_hooks": allow_missing_hooks,
            "master_key": master_key_file,
            "trace_url": trace_url,
            "environment": environment,
            "alerts": AlertSettings(
                webhook=None if alert_url is None else Webhook(url=alert_url),
                window=alert_window,
                minimum=alert_minimum,
            ),
        }
        if not exists:
            asyncio.run(_rehearse(settings))
        made = None
        if bus:
            made = make_bus(bus, credentials=bus_credentials, nkey_seed=bus_nkey_seed, prefix=bus_prefix, wait=bus_wait)
        _run_server(settings | {"bus": made}, agents=agent or (), as_json=as_json)


async def _rehearse(settings: dict[str, Any]) -> None:
    """Start the server once on a store in memory, so that settings that are refused leave no file behind."""
    from hookline.delivery import MasterKeys
    from hookline.server import Server, default_key_file

    with silence_logger():
        async with Server(**settings | {"url": IN_MEMORY, "master_key": None, "host": "127.0.0.1", "port": 0}):
            pass
    file = settings["master_key"]
    if file is None and MasterKeys.from_environment() is None:
        file = default_key_file(settings["url"])
    if file is not None and (file.exists() or not os.access(file.parent, os.W_OK)):
        MasterKeys.in_file(file)  # raises what is wrong with it; otherwise it is the server that creates it


def _tenant_rate(given: int | None) -> RateLimit | Literal["auto"] | None:
    from hookline.server import RateLimit

    if given is None:
        return "auto"
    return RateLimit(requests=given) if given else None


def _run_server(settings: dict[str, Any], *, agents: Sequence[str], as_json: bool) -> None:
    """Run a server until it is stopped, and print the address that it listens on."""
    from hookline.cli.chat import AgentArguments, make_agent
    from hookline.server import Server
    from hookline.server import serve as run

    found = [make_agent(AgentArguments(target=each)) for each in agents]
    made: list[Server] = []

    def make() -> Server:
        made.append(Server(**settings, agents=found))
        return made[0]

    def say(text: str) -> None:
        if not as_json:
            typer.echo(text)
        elif text.startswith("hookline listens"):
            key = made[0].first_key
            print_json_lines([{"address": made[0].address, "firstKey": None if key is None else key.key}])

    run(make, say=say)
