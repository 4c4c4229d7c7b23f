"""Errors of commands: what they refuse before they run anything, and what ends one.

```
HooklineError
├── EndpointError (ValueError)          not a URL that spans can be sent to
├── OutputFileError (ReportError)       what was asked for cannot be written there
├── TraceTargetError (ValueError)       there is nothing there to trace
├── TracingDisabledError                the environment forbids tracing
├── ChatArgumentError (ValueError)      an argument that names nothing that can be used
├── ChatStartError                      a tool source, a phase hook or the model does not let a chat begin
├── AgentExitError                      code of the agent tried to end the program
├── StoreMissingError                   there is no such file
├── NotAStoreError                      there is something else than a store
├── NotWaitingError (OperationError)    the operation does not wait for a person
├── NothingDoneError                    deliveries that cannot be tried again
├── UnknownKeyError (LookupError)       there is no such key
├── UnknownSecretError (LookupError)    there is no such signing secret
└── InputFileError (ValueError)         a file that holds no definitions
```
"""

from __future__ import annotations

import re

from hookline.errors import HooklineError, OperationError, define_error
from hookline.evals.errors import ReportError

__all__ = [
    "AgentExitError",
    "ChatArgumentError",
    "ChatStartError",
    "EndpointError",
    "InputFileError",
    "NotAStoreError",
    "NotWaitingError",
    "NothingDoneError",
    "OutputFileError",
    "StoreMissingError",
    "TraceTargetError",
    "TracingDisabledError",
    "UnknownKeyError",
    "UnknownSecretError",
    "without_password",
]


@define_error()
class EndpointError(HooklineError, ValueError):
    """An OTLP endpoint is not a URL that spans can be sent to.

    Attributes:
        endpoint: What was given.
    """

    endpoint: str

    def __str__(self) -> str:
        return f"{without_password(self.endpoint)!r} is no OTLP/HTTP endpoint. One is a URL, such as http://127.0.0.1:6006."


@define_error("Nothing can be written to {path}: {reason}. Name a file in a folder that exists.")
class OutputFileError(ReportError):
    """Another file than a report that was asked for cannot be written."""


@define_error("{target} cannot be traced: {reason}.")
class TraceTargetError(HooklineError, ValueError):
    """What was to be traced gives no trace.

    Attributes:
        target: What was given.
        reason: Why not.
    """

    target: str
    reason: str


@define_error("Nothing can be traced while OTEL_SDK_DISABLED is set in the environment. Unset it.")
class TracingDisabledError(HooklineError):
    """Spans are asked for, and the environment turns OpenTelemetry's SDK off."""


def without_password(text: str) -> str:
    """Text about a URL, as others may see it."""
    return re.sub(r"//[^/@\s]*@", "//", text)


@define_error()
class ChatArgumentError(HooklineError, ValueError):
    """An argument of `hookline chat` names nothing that can be used.

    Attributes:
        argument: Which one, as it is written.
        problem: What is wrong with it, and how to fix it.
    """

    argument: str
    problem: str

    def __str__(self) -> str:
        return f"{self.argument} cannot be used: {self.problem.rstrip('.')}."


@define_error()
class ChatStartError(HooklineError):
    """A chat did not begin, because something that belongs to its agent failed.

    Attributes:
        agent_id: The agent.
        problem: What happened.
    """

    agent_id: str
    problem: str

    def __str__(self) -> str:
        return f"The chat with {self.agent_id!r} cannot begin: {self.problem.rstrip('.')}."


@define_error(
    "Code of the agent raised {exception}, which ends the chat. Raise an Exception there: the model is told of it."
)
class AgentExitError(HooklineError):
    """A tool or another part of an agent tried to end the program that it runs in.

    Attributes:
        exception: What it raised, such as `"SystemExit: 2"`.
    """

    exception: str


@define_error(
    "There is no store {store}; name the one that your agents use by --store or HOOKLINE_STORE. `hookline serve` "
    "makes a new one."
)
class StoreMissingError(HooklineError):
    """There is no store to look into.

    Attributes:
        store: Where it was looked for, without a password.
    """

    store: str


@define_error(
    "{store} is no store: there is something else than an SQLite database. Name the one that your agents use by "
    "--store or HOOKLINE_STORE."
)
class NotAStoreError(HooklineError):
    """What a store was named is something else.

    Attributes:
        store: Where it was looked for.
    """

    store: str


@define_error("Operation {operation_id!r} does not wait for a person; its status is {status!r}.")
class NotWaitingError(OperationError):
    """A person wants to decide, and the operation does not wait for that.

    Attributes:
        status: What it does instead, or why it ended.
    """

    status: str


@define_error()
class NothingDoneError(HooklineError):
    """Some deliveries are not tried again.

    Attributes:
        reasons: Why not, each with its id.
    """

    reasons: list[str]

    def __str__(self) -> str:
        return f"Not tried again: {'; '.join(self.reasons)}."


@define_error("There is no API key {id!r}; `hookline keys list` shows the ids.")
class UnknownKeyError(HooklineError, LookupError):
    """There is no such API key, or it is another tenant's.

    Attributes:
        id: What was asked for.
    """

    id: str


@define_error("There is no signing secret {id!r}; `hookline endpoints list` shows the ids.")
class UnknownSecretError(HooklineError, LookupError):
    """There is no such signing secret, or it is another tenant's.

    Attributes:
        id: What was asked for.
    """

    id: str


@define_error("{file}: {problem}")
class InputFileError(HooklineError, ValueError):
    """A file, or what came on stdin, is not what a command reads.

    Attributes:
        file: Which.
        problem: What is wrong with it.
    """

    file: str
    problem: str
