"""Every error of the command line's own: arguments that cannot be used, and work that cannot be done.

```
HooklineError
├── EndpointError (ValueError)          not a URL that spans can be sent to
├── OutputFileError (ReportError)       a file cannot be written
├── TraceTargetError (ValueError)       a target has no spans to show
├── TracingDisabledError                the environment turns tracing off
├── ChatArgumentError (ValueError)      an argument names nothing that can be used
├── ChatStartError                      a tool source, a phase hook or the model fails at the start of a chat
├── AgentExitError                      code of the agent tried to end the program
├── StoreMissingError                   the store does not exist
├── NotAStoreError                      the file is not a store
├── NotWaitingError (OperationError)    the operation does not wait for a person
├── NothingDoneError                    deliveries cannot be tried again
├── UnknownKeyError (LookupError)       there is no such key
├── UnknownSecretError (LookupError)    there is no such signing secret
├── UnknownBudgetError (LookupError)    there is no such window of a budget
├── InputFileError (ValueError)         a file has no definitions
└── ProjectFileError                    a file of a new project cannot be written
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
    "ProjectFileError",
    "StoreMissingError",
    "TraceTargetError",
    "TracingDisabledError",
    "UnknownBudgetError",
    "UnknownKeyError",
    "UnknownSecretError",
    "without_password",
]


@define_error()
class EndpointError(HooklineError, ValueError):
    """An OTLP endpoint is not a URL that spans can be sent to.

    Attributes:
        endpoint: The endpoint as it was given.
    """

    endpoint: str

    def __str__(self) -> str:
        return f"{without_password(self.endpoint)!r} is not an OTLP/HTTP endpoint: give a URL, such as http://127.0.0.1:6006."


@define_error("Nothing can be written to {path}: {reason}. Name a file in a folder that exists.")
class OutputFileError(ReportError):
    """A file other than a report cannot be written."""


@define_error("{target} cannot be traced: {reason}.")
class TraceTargetError(HooklineError, ValueError):
    """A target of `hookline trace` has no spans to show.

    Attributes:
        target: The target as it was given.
        reason: Why there are none.
    """

    target: str
    reason: str


@define_error("Nothing can be traced while OTEL_SDK_DISABLED is set in the environment. Unset it.")
class TracingDisabledError(HooklineError):
    """Spans are asked for, and the environment turns OpenTelemetry's SDK off."""


def without_password(text: str) -> str:
    """Return a text without the user and password of URLs in it."""
    return re.sub(r"//[^/@\s]*@", "//", text)


@define_error()
class ChatArgumentError(HooklineError, ValueError):
    """An argument of `hookline chat` names nothing that can be used.

    Attributes:
        argument: The argument as it was written.
        problem: What is wrong with it, and how to fix it.
    """

    argument: str
    problem: str

    def __str__(self) -> str:
        return f"{self.argument} cannot be used: {self.problem.rstrip('.')}."


@define_error()
class ChatStartError(HooklineError):
    """A chat could not begin, because a part of its agent failed.

    Attributes:
        agent_id: The agent.
        problem: What happened.
    """

    agent_id: str
    problem: str

    def __str__(self) -> str:
        return f"The chat with {self.agent_id!r} cannot start: {self.problem.rstrip('.')}."


@define_error(
    "The agent's code raised {exception}, which ends the chat. Raise an Exception instead: the model then reads it."
)
class AgentExitError(HooklineError):
    """A tool or another part of an agent tried to end the program that it runs in.

    Attributes:
        exception: What it raised, such as `"SystemExit: 2"`.
    """

    exception: str


@define_error(
    "There is no store {store}; name the one that your agents use by --store or HOOKLINE_STORE. `hookline serve` "
    "creates a new one."
)
class StoreMissingError(HooklineError):
    """The store that a command should read does not exist.

    Attributes:
        store: Its address, without the password.
    """

    store: str


@define_error(
    "{store} is not a store: it is something other than an SQLite database. Name the one that your agents use by "
    "--store or HOOKLINE_STORE."
)
class NotAStoreError(HooklineError):
    """The file that was given as a store is something else.

    Attributes:
        store: Its path.
    """

    store: str


@define_error("Operation {operation_id!r} does not wait for a person; its status is {status!r}.")
class NotWaitingError(OperationError):
    """A person decides about an operation that does not wait for a decision.

    Attributes:
        status: The status of the operation.
    """

    status: str


@define_error()
class NothingDoneError(HooklineError):
    """Some deliveries cannot be tried again.

    Attributes:
        reasons: The reason for each, with its id.
    """

    reasons: list[str]

    def __str__(self) -> str:
        return f"Not tried again: {'; '.join(self.reasons)}."


@define_error(
    "Operation {operation_id!r} is not in the store {store}. `hookline operations` lists those that are; name another "
    "store by --store or HOOKLINE_STORE."
)
class UnknownOperationError(HooklineError):
    """A command names an operation that the store does not have.

    Attributes:
        operation_id: The id as it was given.
        store: The address of the store, without a password.
    """

    operation_id: str
    store: str


@define_error("There is no API key {id!r}; `hookline keys list` shows the ids.")
class UnknownKeyError(HooklineError, LookupError):
    """There is no such API key, or it is another tenant's.

    Attributes:
        id: The id that was given.
    """

    id: str


@define_error("There is no window {id!r} of a budget; `hookline budgets list` shows the ids.")
class UnknownBudgetError(HooklineError, LookupError):
    """There is no such window of a budget, or it is another tenant's.

    Attributes:
        id: The id that was given.
    """

    id: str


@define_error("There is no signing secret {id!r}; `hookline endpoints list` shows the ids.")
class UnknownSecretError(HooklineError, LookupError):
    """There is no such signing secret, or it is another tenant's.

    Attributes:
        id: The id that was given.
    """

    id: str


@define_error("{file}: {problem}")
class InputFileError(HooklineError, ValueError):
    """A file, or stdin, does not have the content that a command reads.

    Attributes:
        file: The name of the file, or `stdin`.
        problem: What is wrong with it.
    """

    file: str
    problem: str


@define_error("{path} cannot be written: {reason}. Nothing was overwritten; name a new folder: hookline init FOLDER.")
class ProjectFileError(HooklineError):
    """A file of a new project exists already, or cannot be written.

    Attributes:
        path: The path of the file.
        reason: Why it cannot be written.
    """

    path: str
    reason: str
