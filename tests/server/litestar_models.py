"""Litestar's routes and models, made once per process: for each server anew, they take half of a test of the API."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from litestar import Litestar, Router
from litestar._asgi import ASGIRouter
from litestar._kwargs import KwargsModel
from litestar._signature import SignatureModel

__all__ = ["share_models", "share_routes"]

ROUTING = (
    *("_mount_paths_regex", "_mount_routes", "_plain_routes", "_registered_routes"),
    *("root_route_map_node", "route_handler_index", "route_mapping"),
)
"""What a router has learned of its routes."""


def share_routes() -> None:
    """Have all servers of this process share their routes. They depend on the handlers and on what is around these.

    What a server has of its own are its parts, its workers, and the way from a request to a route.
    """
    create = Litestar.__init__
    first: dict[Hashable, Litestar] = {}

    def share(self: Litestar, route_handlers: Sequence[Any], **given: Any) -> None:
        around = {name: each for name, each in given.items() if name not in ("lifespan", "state")}
        key = tuple(route_handlers), repr(sorted(around.items()))
        if key not in first:
            create(self, route_handlers, **given)
            first[key] = self
            return
        shared = first[key]
        for name in (*Litestar.__slots__, *Router.__slots__):
            if hasattr(shared, name):
                setattr(self, name, getattr(shared, name))
        self.state, self._lifespan_managers = given["state"], list(given.get("lifespan", ()))
        self.event_emitter = type(shared.event_emitter)(listeners=[])
        self.asgi_router = ASGIRouter(app=self)
        for name in ROUTING:
            setattr(self.asgi_router, name, getattr(shared.asgi_router, name))
        self.asgi_handler = self._create_asgi_handler()

    Litestar.__init__ = share  # type: ignore[method-assign]


def share_models() -> None:
    """Have all servers of this process share the models of a route. They depend on its function and its path alone."""
    create_signature, create_arguments = SignatureModel.create, KwargsModel.create_for_signature_model
    signatures: dict[Hashable, type[SignatureModel]] = {}
    arguments: dict[Hashable, KwargsModel] = {}

    def share_signature(**given: Any) -> type[SignatureModel]:
        key = given["fn"], given["data_dto"], frozenset(given["dependency_name_set"])
        if key not in signatures:
            signatures[key] = create_signature(**given)
        return signatures[key]

    def share_arguments(**given: Any) -> KwargsModel:
        if given["dependencies"] or given["layered_parameters"]:
            return create_arguments(**given)
        key = given["signature_model"], frozenset(given["path_parameters"])
        if key not in arguments:
            arguments[key] = create_arguments(**given)
        return arguments[key]

    SignatureModel.create = share_signature  # type: ignore[method-assign]
    KwargsModel.create_for_signature_model = share_arguments  # type: ignore[method-assign, assignment]
