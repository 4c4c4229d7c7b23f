"""Report what else a hook of a host has said: remarks, messages for the user, and keys that nothing reads."""

from __future__ import annotations

import logging
from collections import Counter

from hookline.dialects._answers import HostAnswer

__all__ = ["report_answer"]

logger = logging.getLogger("hookline")

MOST_COUNTED = 1000
_unknown: Counter[tuple[str, str]] = Counter()
"""How often each hook answered each unknown key; the first 1,000 pairs of this process."""


def report_answer(hook_id: str, answer: HostAnswer) -> None:
    """Log what an answer says besides its decision, and count its unknown keys.

    Of an unknown key the 1st, 10th, 100th, … is logged, and never its value.

    Args:
        hook_id: The hook.
        answer: Its answer.
    """
    for remark in answer.remarks:
        logger.warning("Hook %r: %s", hook_id, remark)
    if answer.message:
        logger.info("Hook %r says: %s", hook_id, answer.message)
    for key in answer.unknown:
        name = (hook_id, key)
        if name not in _unknown and len(_unknown) >= MOST_COUNTED:
            continue
        _unknown[name] += 1
        count = _unknown[name]
        if count == 10 ** (len(str(count)) - 1):
            logger.warning("Hook %r answered the unknown key %r, which is ignored (%d so far)", hook_id, key, count)
