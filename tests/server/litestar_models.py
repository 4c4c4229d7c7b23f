"""Litestar's models of the routes, made once per process: for each server anew, they take a third of a test of the API."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from litestar._kwargs import KwargsModel
from litestar._signature import SignatureModel

__all__ = ["share_models"]


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
