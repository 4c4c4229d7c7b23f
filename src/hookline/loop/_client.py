"""Create a client whose model calls go through the hooks, and its requests and answers in its own classes."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from hookline._checks import quote
from hookline.errors import HookUsageError
from hookline.loop._chat import ChatCompletions
from hookline.loop._format import Format, encode_events, read_events
from hookline.loop._messages import Messages
from hookline.loop._responses import Responses

__all__ = ["Exchange", "check_client", "drop_resources", "format_named", "hook_client", "kind_of"]

C = TypeVar("C")

FORMATS: tuple[Format, ...] = (ChatCompletions(), Responses(), Messages())
"""The protocols whose model calls are recognised."""

_BY_NAME = {each.name: each for each in FORMATS}

PACKAGES = ("openai", "anthropic")
HTTP_LIBRARIES = ("httpx2", "httpx")

PROVIDERS = {"azure": "azure.ai.openai", "bedrock": "aws.bedrock", "vertex": "gcp.vertex_ai"}
"""Providers as OpenTelemetry names them, by a part of the module of a client that is not its provider's own."""

UNSEEN_PATHS = ("/completions", "/v1/complete")
"""Where models are asked in older protocols, which no hook knows."""

TOOL_RUNNER = "ToolRunner"
"""Part of the header that Anthropic's client sends where it runs the tools."""

_MARK = "_hookline_operation_id"

MOST_PATHS = 100
MOST_SHAPES = 100
_known_names: dict[tuple[object, ...], tuple[str, ...]] = {}
"""Names of attributes that may be resources, by the names and classes of all attributes of a client."""


class ClientKind(NamedTuple):
    """What the class of a client tells.

    Attributes:
        package: The package that it comes from.
        provider: The name of its provider, as OpenTelemetry spells it.
        is_async: Whether its calls are awaited.
        native: The protocol that it usually speaks.
        kept: The names of its properties that are kept once they were read.
    """

    package: str
    provider: str
    is_async: bool
    native: Format
    kept: frozenset[str]


def check_client(client: object) -> ClientKind:
    """Return the kind of a client whose calls can go through hooks.

    Raises:
        HookUsageError: If an object is not such a client, or if it already has hooks.
    """
    given: Any = type(client)
    kind = None if isinstance(client, type) else _kind_of_class(given)
    if kind is None:
        raise HookUsageError(
            f"`wrap` takes a client of the packages openai or anthropic, such as AsyncOpenAI() or Anthropic(); got "
            f"{quote(client)}. A loop around anything else uses `hookline.runtime.AdapterRun`."
        )
    operation_id = vars(client).get(_MARK)
    if operation_id is not None:
        raise HookUsageError(
            f"This client belongs to run {operation_id!r} already, so its calls would go through the hooks of two "
            "runs. Give `wrap` the client that you made, and `parent=run` if one run calls the other."
        )
    return kind


def kind_of(client: object) -> ClientKind:
    """Return the kind of a client that `check_client` accepts."""
    kind: Any = type(client)
    found = _kind_of_class(kind)
    assert found is not None
    return found


@functools.cache
def _kind_of_class(kind: type) -> ClientKind | None:
    modules = [each.__module__.partition(".")[0] for each in kind.__mro__]
    package = next((name for name in PACKAGES if name in modules), None)
    post = getattr(kind, "post", None)
    if package is None or not callable(post):
        return None
    found = f"{kind.__module__}.{kind.__name__}".lower()
    return ClientKind(
        package=package,
        provider=next((name for part, name in PROVIDERS.items() if part in found), package),
        is_async=inspect.iscoroutinefunction(post),
        native=_BY_NAME["messages" if package == "anthropic" else "chat.completions"],
        kept=frozenset(
            name
            for each in kind.__mro__
            for name, value in vars(each).items()
            if isinstance(value, functools.cached_property)
        ),
    )


def format_named(name: str) -> Format | None:
    """Return the protocol with a name; `None` if there is none."""
    return _BY_NAME.get(name)


@functools.lru_cache(maxsize=MOST_PATHS)
def format_of_path(path: str) -> Format | None:
    """Return the protocol of the model calls at a URL path; `None` for other calls."""
    path = path.partition("?")[0]
    for each in FORMATS:
        if path.endswith(each.path):
            return each
    return None


def check_call(path: str, given: Mapping[str, Any]) -> None:
    """Check that a call of a client does not pass by the hooks.

    Raises:
        HookUsageError: If it asks a model, or runs tools, where hooks cannot see it.
    """
    if path.partition("?")[0] in UNSEEN_PATHS:
        raise HookUsageError(
            f"Hooks cannot see model calls at {path}, so that they would pass by your guards. Use chat completions, "
            "responses or messages, or make this call with the client that you gave to `wrap`."
        )
    headers, body = (given.get("options") or {}).get("headers"), given.get("body")
    for name, value in headers.items() if headers else ():
        is_runner = name.lower() == "x-stainless-helper" and TOOL_RUNNER in str(value)
        if is_runner and isinstance(body, Mapping) and body.get("tools"):
            raise HookUsageError(
                "`tool_runner` runs the tools by itself, so that they would pass by your guards. Call "
                "`messages.create` in a loop, and run the tools with `run.call_tools`."
            )


def format_of_answer(answer: object) -> Format | None:
    """Return the protocol of an answer; `None` for any other object."""
    for each in FORMATS:
        if each.wrote(answer):
            return each
    return None


def hook_client(client: C, operation_id: str, call: Callable[[Exchange], Any]) -> C:
    """Return a copy of a client that shares its connections, and whose model calls are made by a function.

    Args:
        client: The client; it is not changed.
        operation_id: The run that the copy belongs to.
        call: Makes a model call; it returns an awaitable if the client does.
    """
    bare: Any = client
    kind: Any = type(client)
    twin: C = kind.__new__(kind)  # `copy.copy` does the same and takes three times as long
    own, theirs = vars(twin), vars(client)
    own.update(theirs)

    def post(path: str, **given: Any) -> Any:
        format_ = format_of_path(path)
        check_call(path, given)
        if format_ is None or not isinstance(given.get("body"), dict | Mapping):
            return bare.post(path, **given)
        return call(Exchange(bare, bare.post, format_, path, given))

    def derive(**options: Any) -> Any:
        return hook_client(bare.copy(**options), operation_id, call)

    own.update({"post": post, "copy": derive, "with_options": derive, _MARK: operation_id})
    drop_resources(twin)
    for name in _resource_names(theirs):
        # A resource binds the methods of the client that it was made by. Some clients make theirs at once.
        if getattr(theirs[name], "_client", None) is client:
            own[name] = type(theirs[name])(twin)
    return twin


def _resource_names(own: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a client's attributes that may be its resources.

    They are kept, since to look at each of some thirty attributes takes as long as all else that `hook_client` does.
    """
    shape = (*own, *map(type, own.values()))
    names = _known_names.get(shape)
    if names is None:
        if len(_known_names) >= MOST_SHAPES:
            _known_names.clear()
        names = _known_names[shape] = tuple(name for name, value in own.items() if hasattr(value, "_client"))
    return names


def drop_resources(client: object) -> None:
    """Drop the resources that a client keeps, each of which refers to it; it makes them anew when they are used."""
    own = vars(client)
    for name in kind_of(client).kept & own.keys():
        del own[name]


class Exchange:
    """One model call of a client, before its request is sent.

    Args:
        client: The client.
        post: Sends a request.
        format_: The protocol.
        path: The path.
        given: The other arguments of `post`.

    Attributes:
        format: The protocol.
        body: The request.
        streams: Whether the answer is streamed.
    """

    def __init__(
        self, client: Any, post: Callable[..., Any], format_: Format, path: str, given: Mapping[str, Any]
    ) -> None:
        self._client, self._post, self._path, self._given = client, post, path, given
        self.format = format_
        self.body: Mapping[str, Any] = given["body"]
        self.streams = bool(given.get("stream"))

    def send(self, body: Mapping[str, Any]) -> Any:
        """Send a request; return the client's own result, or an awaitable of it."""
        return self._post(self._path, **{**self._given, "body": body})

    def http_response(self, result: Any) -> Any:
        """Return the HTTP response behind a stream or a raw response; `None` for an answer that was parsed."""
        if hasattr(result, "model_fields_set") or isinstance(result, Mapping):
            return None
        found = getattr(result, "http_response", None)
        if found is None and self.streams:
            found = getattr(result, "response", None)
        return found

    def decode_answer(self, data: bytes) -> Any:
        """Return the JSON of an answer in an HTTP response that was read; `None` if it is none."""
        if self.streams:
            return self.read_stream(data)
        try:
            return msgspec.json.decode(data)
        except (ValueError, RecursionError):
            return None

    def make_result(self, answer: Mapping[str, Any]) -> Any:
        """Return an answer as the client's method would: parsed, raw, or as a stream; or an awaitable of it."""
        if self.streams:
            content, kind = encode_events(self.format.write_events(answer, self.body)), "text/event-stream"
        else:
            content, kind = json.dumps(answer).encode(), "application/json"
        client, given = self._client, self._given
        options = sys.modules[f"{kind_of(client).package}._models"].FinalRequestOptions.construct(
            method="post", url=self._path, json_data=self.body, **(given.get("options") or {})
        )
        headers = (given.get("options") or {}).get("headers") or {}
        http = _http_library(client._client)
        request = http.Request(
            "POST", client.base_url, headers={name: each for name, each in headers.items() if isinstance(each, str)}
        )
        cast_to = given["cast_to"]
        override = getattr(client, "_maybe_override_cast_to", None)
        if override is not None:
            cast_to = override(cast_to, options)
        return client._process_response(
            cast_to=cast_to,
            options=options,
            response=http.Response(200, headers={"content-type": kind}, content=content, request=request),
            stream=self.streams,
            stream_cls=given.get("stream_cls"),
        )

    def parse(self, answer: Mapping[str, Any]) -> Any:
        """Return an answer as an object of the client's class."""
        client = self._client
        response = _http_library(client._client).Response(200)
        return client._process_response_data(data=answer, cast_to=self._given["cast_to"], response=response)

    def read_stream(self, data: bytes) -> dict[str, Any] | None:
        """Return the JSON of the answer in a stream, as far as it was received; `None` if nothing was."""
        return self.format.join_events(read_events(data))

    def decode(self, http: Any, raw: bytes) -> bytes:
        """Decode the content encoding of an HTTP response's bytes."""
        encoding = http.headers.get("content-encoding")
        if not encoding or encoding == "identity":
            return raw
        library = _http_library(self._client._client)
        try:
            content: bytes = library.Response(200, headers={"content-encoding": encoding}, content=raw).content
        except Exception:  # it broke off, so that what came cannot be unpacked
            return b""
        return content


def byte_stream_class(http: Any, mixin: type, *, is_async: bool) -> type:
    """Return a class that HTTP responses accept as their stream, with the methods of another class."""
    return _byte_stream_class(_http_library(http).__name__, mixin, is_async)


@functools.cache
def _byte_stream_class(library: str, mixin: type, is_async: bool) -> type:
    base = getattr(sys.modules[library], "AsyncByteStream" if is_async else "SyncByteStream")
    return type(mixin.__name__, (mixin, base), {})


def _http_library(value: object) -> Any:
    modules = [each.__module__.partition(".")[0] for each in type(value).__mro__]
    return sys.modules[next(name for name in HTTP_LIBRARIES if name in modules)]
