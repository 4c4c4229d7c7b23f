"""Errors as the API tells them: problem details (RFC 9457), for whatever goes wrong, and nothing of what is inside."""

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
from hookline.registry import DefinitionConflictError, DefinitionError, DefinitionNotFoundError, QuotaError

__all__ = ["MEDIA_TYPE", "ApiError", "FieldProblem", "Problem", "answer_of", "as_api_error", "note_code", "unexpected"]

logger = logging.getLogger("hookline")

MEDIA_TYPE = "application/problem+json"
FIELD = re.compile(r"Object (?:missing required|contains unknown) field `(.*)`", re.DOTALL)
MISSING = "'data'", "data"
"""How the framework tells of a body that is not there."""
RETRY_SECONDS = 1
"""When to come again after a 503."""


class FieldProblem(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What is wrong in one place of a request.

    Attributes:
        detail: What is wrong there.
        pointer: Where in the body, as a JSON pointer (`#/webhook/url`).
        parameter: Or the parameter of the address.
    """

    detail: str
    pointer: str | None = None
    parameter: str | None = None


class Problem(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Why a request was not done.

    Attributes:
        type: Always `"about:blank"`: `status` and `code` say what it is.
        title: What the status means.
        status: Of the answer.
        code: What it is, to switch on.
        detail: What happened, and how to fix it.
        errors: Where it is, as far as it is in the request.
        hook: The hook that has refused it, if one has.
        request_id: Names the request, in logs too.
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
    """A request that is not done.

    Attributes:
        status: Of the answer.
        code: What it is, to switch on.
        detail: What happened, and how to fix it.
        errors: Where it is in the request.
        headers: That go with the answer.
        hook: The hook that has refused it.
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
        """The problem as JSON."""
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


def answer_of(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Answer a request that went wrong inside of the application."""
    request_id = str(request.scope["state"].get("hookline_request_id", ""))
    told = as_api_error(error) or unexpected(error, request_id)
    if isinstance(error, ValidationException):
        parameters = request.route_handler.parsed_fn_signature.parameters
        told.errors = tuple(_with_values(each, parameters) for each in told.errors)
    note_code(request.scope, told)
    return Response(told.body(request_id), status_code=told.status, headers=told.headers, media_type=MEDIA_TYPE)


def note_code(scope: Mapping[str, Any], error: ApiError) -> None:
    """Let the gate know why a request is refused, for figures and the audit."""
    scope["state"].setdefault("hookline_codes", []).append(error.code)


def unexpected(error: Exception, request_id: str) -> ApiError:
    """What a caller is told of an error that nobody has thought of; the log has all of it."""
    logger.error("Request %s failed", request_id, exc_info=error)
    return ApiError(
        500, "internal", "Something went wrong in the server; its log has more under the id of this request."
    )


def as_api_error(error: Exception) -> ApiError | None:
    """What a caller is told of an error; `None` if it is none of those that are to be expected."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        return _of_framework(error)
    if isinstance(error, DefinitionError):
        pointer = _pointer(error.path)
        return ApiError(
            422, error.code, _sentence(error.problem), errors=(FieldProblem(detail=error.problem, pointer=pointer),)
        )
    return _of_hookline(error)


def _of_hookline(error: Exception) -> ApiError | None:
    if isinstance(error, DefinitionNotFoundError | OperationNotFoundError):
        return ApiError(404, "not_found", "There is nothing of that id.")
    if isinstance(error, DefinitionConflictError):
        if error.revision is not None:
            return ApiError(412, "revision", _sentence(error.problem), headers={"ETag": f'"{error.revision}"'})
        return ApiError(409, "conflict", _sentence(error.problem))
    if isinstance(error, QuotaError):
        return ApiError(409, "quota", str(error))
    if isinstance(error, OperationFinishedError):
        return ApiError(409, "not_waiting", "The operation does not wait for a person.")
    if isinstance(error, DecisionError):
        waiting = ", ".join(error.pending) or "none"
        return ApiError(409, "not_pending", f"{_sentence(error.problem)} Calls that wait: {waiting}.")
    if isinstance(error, StateFormatError):
        return ApiError(409, "format", "A newer version of hookline has stored it. Update this server.")
    if isinstance(error, StoreUnavailableError):
        detail = "The database cannot be reached now. Agents go on with what they know; try again."
        return ApiError(503, "store_unavailable", detail, headers={"Retry-After": str(RETRY_SECONDS)})
    if isinstance(error, HookUsageError):
        return ApiError(422, "invalid", str(error))
    if isinstance(error, RecursionError):
        return ApiError(400, "malformed", "The body is nested too deeply.")
    return None


def _of_framework(error: HTTPException) -> ApiError:
    status, headers = error.status_code, dict(error.headers or {})
    if isinstance(error, ValidationException):
        found = tuple(_field(each) for each in error.extra or () if isinstance(each, dict))
        return ApiError(422, "invalid", "The request is not as the description of this API has it.", errors=found)
    details = {
        400: ("malformed", "The request cannot be read: its body is no JSON, or it is cut short."),
        404: ("not_found", "There is nothing at this address."),
        405: ("method", "This address does not know the method."),
        413: ("too_large", "The body is larger than this server takes."),
    }
    if status in details:
        return ApiError(status, *details[status], headers=headers)
    return ApiError(500, "internal", "Something went wrong in the server.")


def _field(found: Mapping[str, str]) -> FieldProblem:
    detail, key = found.get("message", ""), found.get("key", "")
    if (detail, key) == MISSING:
        return FieldProblem(detail="The body is missing.", pointer="#")
    if found.get("source") == "body" or key == "data":
        named = FIELD.fullmatch(detail)
        path = ["$", "" if key == "data" else key, "" if named is None else named[1]]
        return FieldProblem(detail=detail, pointer=_pointer(".".join(path)))
    return FieldProblem(detail=detail, parameter=key)


def _with_values(found: FieldProblem, parameters: Mapping[str, FieldDefinition]) -> FieldProblem:
    """What is wrong with a parameter, with the values that it may have if they are few."""
    known = parameters.get(found.parameter or "")
    values = [] if known is None else _values(known.annotation)
    if not values:
        return found
    return FieldProblem(detail=f"{found.detail}; it is one of {', '.join(values)}", parameter=found.parameter)


def _values(annotation: object) -> list[str]:
    """The values of a `Literal`, also where it is a part of a type."""
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return [value for part in get_args(annotation) for value in _values(part)]


def _pointer(path: str) -> str:
    """A JSON pointer, of a path as msgspec writes it: `#/webhook/url`, of `$.webhook.url`."""
    parts = path.removeprefix("$").replace("[", ".").replace("]", "").split(".")
    return "#" + "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts if part)


def _sentence(problem: str) -> str:
    return f"{problem[:1].upper()}{problem[1:]}{'' if problem.endswith('.') else '.'}"
