"""Names of test cases that are the same in every process, as tests that are spread over several need them."""

from __future__ import annotations

import re


def without_address(given: object) -> str:
    """The repr of a parameter, without where in memory it is."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(given))
