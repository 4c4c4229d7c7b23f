"""The description of the API (OpenAPI 3.1): routes by the framework, structs by msgspec, which checks them too."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import metadata
from itertools import product
from typing import Any
from urllib.parse import quote

import msgspec
from litestar import Litestar, Response, get
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, Schema, SecurityScheme
from litestar.plugins import OpenAPISchemaPlugin
from litestar.types import Empty
from litestar.typing import FieldDefinition

from hookline.server._callers import Req
from hookline.server.routes import ROUTES

__all__ = ["Structs", "described", "read_description"]

PLACE = "#/components/schemas/{name}"
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "pattern": "^[!-~]{1,200}$", "description": "Done once, however often it is sent."},
    "description": "Done once for each of these, however often it is sent; for a day the answer is the same.",
    "required": False,
}
"""What all POST requests may bring, before they are routed."""
ATTRIBUTE = re.compile(r"^    (\w+): ((?:.|\n     )*)", re.MULTILINE)


class Place(Schema):
    """Where the description of a struct is."""

    def __init__(self, place: dict[str, Any]) -> None:
        super().__init__()
        self._place = place

    def to_schema(self) -> dict[str, Any]:
        """The reference."""
        return self._place


class Structs(OpenAPISchemaPlugin):
    """Describes structs by the rules by which they are read: patterns, bounds, fields that may be left out.

    Attributes:
        schemas: What was described so far, by name.
    """

    def __init__(self) -> None:
        self.schemas: dict[str, Any] = {}

    def is_plugin_supported_field(self, field_definition: FieldDefinition) -> bool:
        """Whether it is a struct."""
        return not field_definition.is_union and field_definition.is_subclass_of(msgspec.Struct)

    def to_openapi_schema(self, field_definition: FieldDefinition, schema_creator: Any) -> Schema:
        """A reference to the description of a struct, which is kept."""
        (found,), schemas = msgspec.json.schema_components([field_definition.annotation], ref_template=PLACE)
        self.schemas |= schemas
        return Place(found)

    def describe(self, documented: Mapping[str, type[msgspec.Struct]]) -> dict[str, Any]:
        """All that was described, in the order of its names, each field with the words of its documentation.

        Args:
            documented: Structs by name.
        """
        for name, schema in self.schemas.items():
            schema["description"] = inspect.cleandoc(schema.get("description", "")).partition("\n\nAttributes:\n")[0]
            struct = documented.get(name.partition("_")[0])
            if struct is None:
                continue
            names = dict(zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True))
            for field, words in _attributes(struct).items():
                its = schema["properties"].get(names.get(field, field))
                if its is not None:
                    its["description"] = words
        return dict(sorted(self.schemas.items()))


@get("/schema/openapi.json", include_in_schema=False, opt={"scope": None})
async def read_description(request: Req) -> Response[bytes]:
    """The description of this API."""
    return Response(
        described(request.scope["state"]["hookline_root"]),
        media_type="application/json",
        headers={"Cache-Control": "public, max-age=300"},
    )


@lru_cache(maxsize=20)
def described(root: str = "") -> bytes:
    """The description, made when somebody asks for it first.

    Args:
        root: The path under which the API is mounted.
    """
    return msgspec.json.encode(_description() | {"servers": [{"url": quote(root) or "/"}]})


@cache
def _description() -> dict[str, Any]:
    structs = Structs()
    key = SecurityScheme(type="http", scheme="bearer", description="An API key: `hk_...`.")
    config = OpenAPIConfig(
        title="hookline",
        version=metadata.version("hookline"),
        description="Stored hooks, operations, approvals and deliveries of hookline.",
        use_handler_docstrings=True,
        operation_id_creator=lambda handler, method, path: handler.handler_name,
        components=Components(security_schemes={"key": key}),
    )
    # An application of its own, since that of the framework would serve pages with the description that nobody guards.
    app = Litestar(ROUTES, openapi_config=config, plugins=[structs], logging_config=None)
    description: dict[str, Any] = app.openapi_schema.to_schema()
    description["components"]["schemas"] = structs.describe(_structs_by_name())
    for handler in ROUTES:
        for path, method in product(handler.paths, handler.http_methods):
            told = description["paths"][path.replace(":str", "")][method.lower()]
            if method == "POST":
                told["parameters"] = [*told.get("parameters", ()), IDEMPOTENCY_KEY]
            body = handler.parsed_fn_signature.parameters.get("data")
            if body is not None:
                told["requestBody"]["required"] = body.default is Empty
    return description


def _attributes(struct: type) -> dict[str, str]:
    """What the documentation says of the fields of a struct, and of those that it has inherited."""
    found: dict[str, str] = {}
    for each in reversed(struct.__mro__):
        attributes = inspect.cleandoc(each.__doc__ or "").partition("\n\nAttributes:\n")[2]
        found |= {field: " ".join(words.split()) for field, words in ATTRIBUTE.findall(attributes)}
    return found


def _structs_by_name() -> dict[str, type[msgspec.Struct]]:
    found: dict[str, type[msgspec.Struct]] = {}
    waiting: list[type[msgspec.Struct]] = [msgspec.Struct]
    while waiting:
        for struct in waiting.pop().__subclasses__():
            waiting.append(struct)
            if struct.__module__.startswith("hookline."):
                found[struct.__name__] = struct
    return found
