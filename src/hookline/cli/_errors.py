"""What a command is refused for before it runs anything.

```
HooklineError
├── EndpointError (ValueError)          not a URL that spans can be sent to
├── OutputFileError (ReportError)       what was asked for cannot be written there
├── TraceTargetError (ValueError)       there is nothing there to trace
└── TracingDisabledError                the environment forbids tracing
```
"""

from __future__ import annotations

import re

from hookline.errors import HooklineError
from hookline.evals.errors import ReportError

__all__ = ["EndpointError", "OutputFileError", "TraceTargetError", "TracingDisabledError", "without_password"]


class EndpointError(HooklineError, ValueError):
    """An OTLP endpoint is not a URL that spans can be sent to.

    Attributes:
        endpoint: What was given.
    """

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.endpoint = endpoint

    def __str__(self) -> str:
        return f"{without_password(self.endpoint)!r} is no OTLP/HTTP endpoint. One is a URL, such as http://127.0.0.1:6006."


class OutputFileError(ReportError):
    """Another file than a report that was asked for cannot be written."""

    def __str__(self) -> str:
        return f"Nothing can be written to {self.path}: {self.reason}. Name a file in a folder that exists."


class TraceTargetError(HooklineError, ValueError):
    """What was to be traced gives no trace.

    Attributes:
        target: What was given.
        reason: Why not.
    """

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(target, reason)
        self.target, self.reason = target, reason

    def __str__(self) -> str:
        return f"{self.target} cannot be traced: {self.reason}."


class TracingDisabledError(HooklineError):
    """Spans are asked for, and the environment turns OpenTelemetry's SDK off."""

    def __str__(self) -> str:
        return "Nothing can be traced while OTEL_SDK_DISABLED is set in the environment. Unset it."


def without_password(text: str) -> str:
    """Text about a URL, as others may see it."""
    return re.sub(r"//[^/@\s]*@", "//", text)
