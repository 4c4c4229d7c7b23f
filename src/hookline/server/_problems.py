"""Convert exceptions into problem details (RFC 9457), without revealing anything internal."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Literal, get_args, get_origin

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.typing import FieldDefinition

from hookline.errors import (
    DecisionError,
    HookUsageError,
    OperationFinishedError,
    OperationNotFoundError,
    StateFormatError,
    StoreUnavailableError,
)
from hookline.registry import (
    DefinitionConflictError,
    DefinitionError,
    DefinitionNotFoundError,
    FenceError,
    QuotaError,
)

__all__ = [
    "MEDIA_TYPE",
    "ApiError",
    "FieldProblem",
    "Problem",
    "add_refusal_code",
    "as_api_error",
    "build_error_response",
    "unexpected_error",
]

logger = logging.getLogger("hookline")

MEDIA_TYPE = "application/problem+json"
FIELD = re.compile(r"Object (?:missing required|contains unknown) field `(.*)`", re.DOTALL)
MISSING = "'data'", "data"
"""Litestar's message and key for a missing body."""
RETRY_SECONDS = 1
"""Seconds after which to retry a request that got 503."""


class FieldProblem(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A problem with one field or parameter of a request.

    Attributes:
        detail: What is wrong.
        pointer: The field of the body, as a JSON pointer (`#/webhook/url`).
        parameter: The parameter of the path, query string or headers.
    """

    detail: str
    pointer: str | None = None
    parameter: str | None = None


class Problem(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Why a request failed (RFC 9457).

    Attributes:
        type: Always `"about:blank"`; see `status` and `code`.
        title: The meaning of the status.
        status: The HTTP status.
        code: The kind of error, for programs.
        detail: What happened, and how to fix it.
        errors: Problems with single fields or parameters.
        hook: The id of the hook that refused the request, if one did.
        request_id: The id of the request, also in logs.
    """

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    errors: list[FieldProblem] = []
    hook: str = ""
    request_id: str = ""


class ApiError(Exception):
    """A request failed or was refused; becomes a response with problem details.

    Attributes:
        status: The HTTP status.
        code: The kind of error, for programs.
        detail: What happened, and how to fix it.
        errors: Problems with single fields or parameters.
        headers: Additional headers of the response.
        hook: The id of the hook that refused the request.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: tuple[FieldProblem, ...] = (),
        headers: Mapping[str, str] | None = None,
        hook: str = "",
    ) -> None:
        super().__init__(status, code, detail)
        self.status, self.code, self.detail, self.errors = status, code, detail, errors
        self.headers, self.hook = dict(headers or {}), hook

    def body(self, request_id: str) -> bytes:
        """Encode the error as JSON."""
        return msgspec.json.encode(
            Problem(
                title=HTTPStatus(self.status).phrase,
                status=self.status,
                code=self.code,
                detail=self.detail,
                errors=list(self.errors),
                hook=self.hook,
                request_id=request_id,
            )
        )


def build_error_response(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Build the response for an exception of the application."""
    request_id = str(request.scope["state"].get("hookline_request_id", ""))
    api_error = as_api_error(error) or unexpected_error(error, request_id)
    if isinstance(error, ValidationException):
        parameters = request.route_handler.parsed_fn_signature.parameters
        api_error.errors = tuple(_add_allowed_values(each, parameters) for each in api_error.errors)
    add_refusal_code(request.scope, api_error)
    return Response(
        api_error.body(request_id), status_code=api_error.status, headers=api_error.headers, media_type=MEDIA_TYPE
    )


def add_refusal_code(scope: Mapping[str, Any], error: ApiError) -> None:
    """Tell the gate the code of a refusal, for metrics and the audit log."""
    scope["state"].setdefault("hookline_codes", []).append(error.code)


def unexpected_error(error: Exception, request_id: str) -> ApiError:
    """Log an unexpected exception, and build the error for the caller, which reveals nothing of it."""
    logger.error("Request %s failed", request_id, exc_info=error)
    return ApiError(
        500, "internal", "Internal error. The log of the server has the details, under the id of this request."
    )


def as_api_error(error: Exception) -> ApiError | None:
    """Convert an expected exception into an error for the caller; `None` for an unexpected one."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        return _convert_framework_error(error)
    if isinstance(error, DefinitionError):
        pointer = _json_pointer(error.path)
        return ApiError(
            422, error.code, _sentence(error.problem), errors=(FieldProblem(detail=error.problem, pointer=pointer),)
        )
    return _convert_hookline_error(error)


def _convert_hookline_error(error: Exception) -> ApiError | None:
    if isinstance(error, DefinitionNotFoundError | OperationNotFoundError):
        return ApiError(404, "not_found", "There is no object with this id.")
    if isinstance(error, DefinitionConflictError):
        if error.revision is not None:
            return ApiError(412, "revision", _sentence(error.problem), headers={"ETag": f'"{error.revision}"'})
        return ApiError(409, "conflict", _sentence(error.problem))
    if isinstance(error, QuotaError):
        return ApiError(409, "quota", str(error))
    if isinstance(error, FenceError):
        detail = f"{_sentence(str(error))} Read the definition before you change it again."
        return ApiError(504, "fence", detail)
    if isinstance(error, OperationFinishedError):
        return ApiError(409, "not_waiting", "The operation does not wait for a decision.")
    if isinstance(error, DecisionError):
        waiting = ", ".join(error.pending) or "none"
        return ApiError(409, "not_pending", f"{_sentence(error.problem)} Calls that wait: {waiting}.")
    if isinstance(error, StateFormatError):
        return ApiError(409, "format", "It was stored by a newer version of hookline. Update this server.")
    if isinstance(error, StoreUnavailableError):
        detail = "The database cannot be reached. Agents continue with the last known definitions. Try again."
        return ApiError(503, "store_unavailable", detail, headers={"Retry-After": str(RETRY_SECONDS)})
    if isinstance(error, HookUsageError):
        return ApiError(422, "invalid", str(error))
    if isinstance(error, RecursionError):
        return ApiError(400, "malformed", "The body is nested too deeply.")
    return None


def _convert_framework_error(error: HTTPException) -> ApiError:
    status, headers = error.status_code, dict(error.headers or {})
    if isinstance(error, ValidationException):
        found = tuple(_build_field_problem(each) for each in error.extra or () if isinstance(each, dict))
        return ApiError(422, "invalid", "The request is invalid.", errors=found)
    details = {
        400: ("malformed", "The request cannot be read: its body is not JSON, or is incomplete."),
        404: ("not_found", "This path does not exist."),
        405: ("method", "This path does not support this method."),
        413: ("too_large", "The body is larger than the limit of this server."),
    }
    if status in details:
        return ApiError(status, *details[status], headers=headers)
    return ApiError(500, "internal", "Internal error.")


def _build_field_problem(found: Mapping[str, str]) -> FieldProblem:
    detail, key = found.get("message", ""), found.get("key", "")
    if (detail, key) == MISSING:
        return FieldProblem(detail="The body is missing.", pointer="#")
    if found.get("source") == "body" or key == "data":
        named = FIELD.fullmatch(detail)
        path = ["$", "" if key == "data" else key, "" if named is None else named[1]]
        return FieldProblem(detail=detail, pointer=_json_pointer(".".join(path)))
    return FieldProblem(detail=detail, parameter=key)


def _add_allowed_values(found: FieldProblem, parameters: Mapping[str, FieldDefinition]) -> FieldProblem:
    """Add the allowed values to a problem with a parameter whose type is a `Literal`."""
    known = parameters.get(found.parameter or "")
    values = [] if known is None else _literal_values(known.annotation)
    if not values:
        return found
    return FieldProblem(detail=f"{found.detail}; it must be one of {', '.join(values)}", parameter=found.parameter)


def _literal_values(annotation: object) -> list[str]:
    """Return the values of a `Literal`, also if it is a part of a type."""
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return [value for part in get_args(annotation) for value in _literal_values(part)]


def _json_pointer(path: str) -> str:
    """Convert a path of msgspec into a JSON pointer: `$.webhook.url` becomes `#/webhook/url`."""
    parts = path.removeprefix("$").replace("[", ".").replace("]", "").split(".")
    return "#" + "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts if part)


def _sentence(problem: str) -> str:
    return f"{problem[:1].upper()}{problem[1:]}{'' if problem.endswith('.') else '.'}"
