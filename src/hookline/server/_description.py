"""Build the OpenAPI 3.1 description of the API: routes described by Litestar, structs by msgspec."""

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

__all__ = ["StructSchemas", "encode_description", "read_description"]

REFERENCE = "#/components/schemas/{name}"
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {
        "type": "string",
        "pattern": "^[!-~]{1,200}$",
        "description": "Repeated requests with this key take effect once.",
    },
    "description": "Repeated requests with the same value take effect once. For a day they get the original response.",
    "required": False,
}
"""The header that every POST request may have; it is handled before the request is routed."""
ATTRIBUTE = re.compile(r"^    (\w+): ((?:.|\n     )*)", re.MULTILINE)


class SchemaReference(Schema):
    """A JSON Schema reference to the description of a struct."""

    def __init__(self, place: dict[str, Any]) -> None:
        super().__init__()
        self._place = place

    def to_schema(self) -> dict[str, Any]:
        """Return the reference."""
        return self._place


class StructSchemas(OpenAPISchemaPlugin):
    """Litestar plugin that describes structs by msgspec's own rules: patterns, bounds, optional fields.

    Attributes:
        schemas: The schemas so far, by name.
    """

    def __init__(self) -> None:
        self.schemas: dict[str, Any] = {}
        self._references: dict[Any, dict[str, Any]] = {}

    def is_plugin_supported_field(self, field_definition: FieldDefinition) -> bool:
        """Return whether a field is a msgspec struct."""
        return not field_definition.is_union and field_definition.is_subclass_of(msgspec.Struct)

    def to_openapi_schema(self, field_definition: FieldDefinition, schema_creator: Any) -> Schema:
        """Describe a struct, and return a reference to its schema."""
        struct = field_definition.annotation
        if struct not in self._references:  # many answers are the same struct
            (self._references[struct],), schemas = msgspec.json.schema_components([struct], ref_template=REFERENCE)
            self.schemas |= schemas
        return SchemaReference(self._references[struct])

    def describe(self, documented: Mapping[str, type[msgspec.Struct]]) -> dict[str, Any]:
        """Return all schemas by name, with descriptions of fields taken from the docstrings of structs.

        Args:
            documented: Structs by name.
        """
        for name, schema in self.schemas.items():
            schema["description"] = inspect.cleandoc(schema.get("description", "")).partition("\n\nAttributes:\n")[0]
            struct = documented.get(name.partition("_")[0])
            if struct is None:
                continue
            names = dict(zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True))
            for field, words in _read_attribute_docs(struct).items():
                its = schema["properties"].get(names.get(field, field))
                if its is not None:
                    its["description"] = words.replace("`None`", "`null`")
        return dict(sorted(self.schemas.items()))


@get("/schema/openapi.json", include_in_schema=False, opt={"scope": None})
async def read_description(request: Req) -> Response[bytes]:
    """Return the OpenAPI description of this API."""
    return Response(
        encode_description(request.scope["state"]["hookline_root"]),
        media_type="application/json",
        headers={"Cache-Control": "public, max-age=300"},
    )


@lru_cache(maxsize=20)
def encode_description(root: str = "") -> bytes:
    """Return the description as JSON; it is built at the first call.

    Args:
        root: The path under which the API is mounted.
    """
    return msgspec.json.encode(_build_description() | {"servers": [{"url": quote(root) or "/"}]})


@cache
def _build_description() -> dict[str, Any]:
    structs = StructSchemas()
    key = SecurityScheme(type="http", scheme="bearer", description="An API key: `hk_...`.")
    config = OpenAPIConfig(
        title="hookline",
        version=metadata.version("hookline"),
        description="Stored hooks, operations, approvals and deliveries of hookline.",
        use_handler_docstrings=True,
        operation_id_creator=lambda handler, method, path: handler.handler_name,
        components=Components(security_schemes={"key": key}),
    )
    # A separate application, since Litestar would serve its own documentation pages without asking for a key.
    app = Litestar(ROUTES, openapi_config=config, plugins=[structs], logging_config=None)
    description: dict[str, Any] = app.openapi_schema.to_schema()
    description["components"]["schemas"] = structs.describe(_structs_by_name())
    for handler in ROUTES:
        for path, method in product(handler.paths, handler.http_methods):
            operation = description["paths"][path.replace(":str", "")][method.lower()]
            if method == "POST":
                operation["parameters"] = [*operation.get("parameters", ()), IDEMPOTENCY_KEY]
            body = handler.parsed_fn_signature.parameters.get("data")
            if body is not None:
                operation["requestBody"]["required"] = body.default is Empty
    return description


def _read_attribute_docs(struct: type) -> dict[str, str]:
    """Read the descriptions of a struct's fields, inherited ones included, from the `Attributes` of docstrings."""
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
