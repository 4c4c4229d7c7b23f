"""Which tools a ready-made hook is about."""

from hookline._checks import tool_test
from hookline.calls import SubAgentCall, ToolCall
from hookline.errors import HookDefinitionError

__all__ = ["Globs", "name_of"]


class Globs:
    """Tools by patterns: globs over `identifier/api_name`; one without a `/` means `*/<glob>`.

    Args:
        where: How errors name the hook.
        globs: At least one; `*` also matches `/`.

    Raises:
        HookDefinitionError: If there is none, or one is no text.
    """

    def __init__(self, where: str, globs: tuple[str, ...]) -> None:
        for glob in globs or (None,):
            if not isinstance(glob, str) or not glob:
                raise HookDefinitionError(
                    where,
                    "name tools by globs: 'search' (that tool, wherever it comes from), 'github/*', 'agent/<id>', or "
                    f"'*' for every tool; got {', '.join(map(repr, globs)) or 'none'}",
                )
        self._tests = [(glob, tool_test(glob)) for glob in globs]

    def __str__(self) -> str:
        return ", ".join(glob for glob, *_ in self._tests)

    def match(self, identifier: str, api_name: str) -> str | None:
        """The first glob that means this tool; `None` if none does."""
        name = f"{identifier}/{api_name}"
        return next((glob for glob, test in self._tests if test(name)), None)


def name_of(call: ToolCall | SubAgentCall) -> tuple[str, str]:
    """The `identifier` and the `api_name` by which the model asked; a sub-agent is the tool `agent/<id>`."""
    return ("agent", call.callee_id) if isinstance(call, SubAgentCall) else (call.identifier, call.api_name)
