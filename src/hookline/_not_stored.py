"""`NotStored`: stands for a field of a stored call or result that no store keeps."""

from __future__ import annotations

from typing import NoReturn

from hookline.errors import FieldNotStoredError

__all__ = ["NotStored"]


class NotStored:
    """Stands for a field that is not stored, so that a hook which uses it fails instead of seeing a default.

    Args:
        name: The field, such as `"ModelCall.settings"`.
        reads: A list to which the name is added whenever somebody uses the field.
    """

    __slots__ = ("_name", "_reads")

    def __init__(self, name: str, reads: list[str]) -> None:
        self._name = name
        self._reads = reads

    def __repr__(self) -> str:
        return "<not stored>"

    def __eq__(self, other: object) -> bool:
        # Copies of a call are compared with it, which reads nothing.
        return self is other if other.__class__ is NotStored else self._refuse()

    def _refuse(self, *args: object) -> NoReturn:
        self._reads.append(self._name)
        raise FieldNotStoredError(self._name)

    __getattr__ = __getitem__ = __iter__ = __len__ = __bool__ = __contains__ = _refuse
    __hash__ = __str__ = __format__ = __int__ = __float__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
