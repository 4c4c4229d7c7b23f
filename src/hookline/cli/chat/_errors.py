"""What a chat is refused for, and what ends one.

```
HooklineError
├── ChatArgumentError (ValueError)      an argument that names nothing that can be used
├── ChatStartError                      a tool source, a phase hook or the model does not let it begin
└── AgentExitError                      code of the agent tried to end the program
```
"""

from __future__ import annotations

from hookline.errors import HooklineError

__all__ = ["AgentExitError", "ChatArgumentError", "ChatStartError"]


class ChatArgumentError(HooklineError, ValueError):
    """An argument of `hookline chat` names nothing that can be used.

    Attributes:
        argument: Which one, as it is written.
        problem: What is wrong with it, and how to fix it.
    """

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(argument, problem)
        self.argument, self.problem = argument, problem

    def __str__(self) -> str:
        return f"{self.argument} cannot be used: {self.problem.rstrip('.')}."


class ChatStartError(HooklineError):
    """A chat did not begin, because something that belongs to its agent failed.

    Attributes:
        agent_id: The agent.
        problem: What happened.
    """

    def __init__(self, agent_id: str, problem: str) -> None:
        super().__init__(agent_id, problem)
        self.agent_id, self.problem = agent_id, problem

    def __str__(self) -> str:
        return f"The chat with {self.agent_id!r} cannot begin: {self.problem.rstrip('.')}."


class AgentExitError(HooklineError):
    """A tool or another part of an agent tried to end the program that it runs in.

    Attributes:
        exception: What it raised, such as `"SystemExit: 2"`.
    """

    def __init__(self, exception: str) -> None:
        super().__init__(exception)
        self.exception = exception

    def __str__(self) -> str:
        return (
            f"Code of the agent raised {self.exception}, which ends the chat. Raise an Exception there: the model is "
            "told of it."
        )
