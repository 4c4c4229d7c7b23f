"""Tapes: recordings of model calls that answer the same calls again, without the model."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self, get_args

from hookline.calls import Deny, ModelCall, ModelResponse, Usage
from hookline.errors import HookUsageError
from hookline.evals._recorded_answers import RecordedAnswers, ReplayScope
from hookline.evals.cassettes import DEFAULT_REDACTION, RecordMode, check_needs
from hookline.evals.errors import CassetteError
from hookline.evals.tapes._calls import ModelQuestion, TapedCall, answer_of, explain_miss, question_of
from hookline.evals.tapes._file import TapeFile, encode_tape, read_replaceable_tape, read_tape, write_tape
from hookline.hooks import Hooks
from hookline.redaction import Redacting, as_redaction

__all__ = ["ModelTape"]

INNERMOST = 1000
"""The priority of the hook: it sees what the model would be asked after all hooks before it."""

CallNext = Callable[[ModelCall], Awaitable[ModelResponse]]


class ModelTape:
    """Records what models answer in one run, and answers in their place in another.

    A question is found again by all that the model is asked: its name, the messages, the tools with their schemas, and
    the settings, after every hook before the call. Ids make no difference. The n-th equal question gets the n-th
    answer, whoever asks: calls of sub-agents, judges and simulated users are on the tape too. Secrets are replaced
    before anything is kept. Use one tape per case.

    With `with ModelTape(path=...) as tape:` it is saved on leaving, also after a failure.

    Args:
        name: The tape's name. By default that of the file.
        path: The file; `None` for a tape that lives in memory. It is read at once.
        mode: The record mode. `"none"`: replay, never ask the model. `"once"`: like `"none"` if the file exists, else
            like `"new_episodes"`. `"new_episodes"`: replay known questions, ask and record the others. `"all"`: never
            replay; new answers replace, question by question, the old ones, and questions that are not asked again
            stay. `"rewrite"`: like `"new_episodes"`, but start empty.
        redact: The redaction of recordings: a `Redaction`, `None` for none, or a function that takes further secrets
            out of a text.
        allow_repeats: Whether a question that is asked more often than it was recorded gets the last answer again.

    Attributes:
        name: The tape's name.
        path: The file.
        mode: The record mode.
        hooks: The hooks to give to a run; sub-agents inherit them.
        misses: The message for every question that no recording answered and that the model could not be asked.
        replayed: How many questions the tape answered.
        asked: How many questions models answered.
        saved: Tokens and cost of the answers that the tape gave, which nobody had to pay again.
        unpriced: Names of models whose answers the tape gave and whose price was not known when they were recorded.

    Raises:
        CassetteError: If the file cannot be used as a tape.
        HookUsageError: If an argument is invalid.
        MissingExtraError: If `path` is given and PyYAML or filelock is not installed.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        mode: RecordMode = "once",
        redact: Redacting | Callable[[str], str] | None = DEFAULT_REDACTION,
        allow_repeats: bool = False,
    ) -> None:
        if not isinstance(name, str | None) or name == "":
            raise HookUsageError(f"`name` of a ModelTape is text; got {name!r}.")
        if mode not in get_args(RecordMode):
            raise HookUsageError(f"`mode` of a ModelTape is one of {', '.join(get_args(RecordMode))}; got {mode!r}.")
        self.path = None if path is None else Path(path)
        self.mode: RecordMode = mode
        self.misses: list[str] = []
        self.replayed = self.asked = 0
        self.saved = Usage()
        self.unpriced: list[str] = []
        self._redaction = as_redaction(redact)
        self._file = self._read()
        self._exists = self._file.digest is not None
        self.name = name or self._file.name or (self.path.stem if self.path else "tape")
        self._answers = RecordedAnswers[TapedCall](allow_repeats=allow_repeats)
        self._order: dict[int, int] = {}
        """The place of each recording in the order of the tape, by its identity."""
        if mode != "rewrite":
            for call in self._file.calls:
                self._answers.add(call.question.key, call)
                self._order[id(call)] = len(self._order)
        self._kept: list[TapedCall] = []
        """Every recording that was made, so that no identity is used twice."""
        self._scope = ReplayScope("", 1)
        self._main: str | None = None
        """The agent that asked first; recordings name the others."""
        self._used = False
        self.hooks = Hooks(self.name, inherit=True)
        self.hooks.around(ModelCall, priority=INNERMOST, id=f"{self.name}.tape")(self._replay_or_ask)

    def __len__(self) -> int:
        return len(self._answers)

    def __repr__(self) -> str:
        return f"ModelTape({self.name!r}, calls={len(self)})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.save()
        except CassetteError as unsaved:
            if error is None:
                raise
            error.add_note(str(unsaved))  # the first error stays the one that is raised

    @property
    def records(self) -> bool:
        """Whether a model is asked where there is no recording, and its answer is recorded."""
        return self.mode != "none" and not (self.mode == "once" and self._exists)

    @property
    def calls(self) -> list[TapedCall]:
        """The recorded calls, in the order of the file."""
        return sorted(self._answers, key=lambda call: (call.agent, self._order[id(call)]))

    @property
    def changed(self) -> bool:
        """Whether there is something to save: calls other than those of the file."""
        return self.calls != self._file.calls if self._used or len(self) else False

    def unused(self) -> list[str]:
        """List the recordings that answered no question and were not made in this run, one line each."""
        played = self._answers.played
        return [str(call) for call in self.calls if id(call) not in played]

    def save(self, *, empty: bool = False) -> Path | None:
        """Write the file if there is something to save. It is replaced as a whole or not at all.

        Args:
            empty: Whether a file is also written if there is none yet and nothing was recorded.

        Returns:
            The file; `None` if nothing was written.

        Raises:
            CassetteConflictError: If another process has written it since it was read.
            CassetteWriteError: If the file cannot be written.
        """
        missing = empty and self._file.digest is None
        if self.path is None or not (self.changed or missing):
            return None
        calls = self.calls
        digest = write_tape(self.path, encode_tape(self.name, calls), before=self._file.digest, name=self.name)
        self._file = TapeFile(name=self.name, calls=calls, digest=digest)
        return self.path

    async def _replay_or_ask(self, call: ModelCall, call_next: CallNext) -> ModelResponse | Deny:
        self._used = True
        scope, agent = self._scope, call.agent_id
        if self._main is None:
            self._main = agent
        question = question_of(call, self._redaction)
        key = question.key
        index = scope.count(key)
        if self.mode != "all":
            found = self._answers.take(key, (1, index), scope)
            if found is not None:
                answer = found[0].answer
                self.replayed += 1
                self.saved = self.saved + answer.usage
                if not answer.cost_known and call.model not in self.unpriced:
                    self.unpriced.append(call.model)
                return answer
        if not self.records:
            return Deny(self._missed(question))
        response = await call_next(call)
        self.asked += 1
        taped = TapedCall(
            question=question,
            answer=answer_of(response, self._redaction),
            agent="" if agent == self._main else agent,
            call_index=index,
        )
        before = {id(each): each for each in self._answers} if self.mode == "all" else {}
        if self._answers.record(key, taped, scope, replace=self.mode == "all"):
            self._kept.append(taped)
            gone = before.keys() - {id(each) for each in self._answers} if before else ()
            # A new answer takes the place of the one that it replaces, so that equal questions stay in their order.
            self._order[id(taped)] = next((self._order[each] for each in gone), len(self._order))
        return response

    def _missed(self, question: ModelQuestion) -> str:
        why = explain_miss(self.calls, question, self._answers.count(question.key))
        unmade = self.path is not None and not self._exists
        hint = f" There is no file {self.path}: record it first." if unmade else ""
        said = f"No recording in {self.name!r} answers {why}{hint}"
        self.misses.append(said)
        return said

    def _read(self) -> TapeFile:
        if self.path is None:
            return TapeFile()
        check_needs()
        return read_replaceable_tape(self.path) if self.mode == "rewrite" else read_tape(self.path)
