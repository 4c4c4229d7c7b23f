"""What the points of one bundle of policies share, and what a judgement means to a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from agent_hooks import InterceptionPoint

from hookline.adapters._agent_hooks_emitting import Emissions, Judgement
from hookline.adapters._agent_hooks_errors import PolicyTransformError
from hookline.adapters._agent_hooks_session import Session, Sessions
from hookline.calls import Deny

__all__ = ["Desk"]


class Desk(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Where the contexts of one bundle are judged.

    Attributes:
        emissions: Asks the policies.
        points: The points at which they judge.
        id: The bundle.
        asks: Whether a person is asked about what can be lifted.
        terminates: Whether the run ends where judging a tool call failed.
        sessions: What is known of the operations.
    """

    emissions: Emissions
    points: frozenset[InterceptionPoint]
    id: str
    asks: bool
    terminates: bool
    sessions: Sessions

    @property
    def key(self) -> str:
        """Under which calls carry what was decided about them."""
        return f"hookline.policies.{self.id}"

    def denied(self, judgement: Judgement) -> Deny | None:
        """A denial of one call, if it is one; the run goes on."""
        if not judgement.denied:
            return None
        return Deny(judgement.reason, stop=self.terminates and judgement.host_error)

    def ended(self, session: Session, judgement: Judgement) -> Deny | None:
        """A denial that ends the run, if it is one."""
        if not judgement.denied:
            return None
        session.blocked = True
        return Deny(judgement.reason)

    def unusable(
        self, session: Session, error: PolicyTransformError, context: Mapping[str, Any], *, ends: bool = False
    ) -> Deny:
        """Deny, because what a policy wrote cannot be used.

        Args:
            session: Whose context it was.
            error: What is wrong.
            context: What was judged.
            ends: Whether this ends the run.
        """
        session.blocked = session.blocked or ends
        record = {**context, "sequence": session.next()}
        self.emissions.failed(InterceptionPoint(error.point), type(error).__name__, record)
        return Deny(str(error), stop=self.terminates)
