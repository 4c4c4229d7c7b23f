"""What every error of hookline has in common."""

__all__ = ["HooklineError", "message_of"]


class HooklineError(Exception):
    """Anything that hookline raises on purpose."""


def message_of(error: BaseException) -> str:
    """What an exception says; its class name if it says nothing or fails to."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__
