"""Pieces of a model's stream, in the two forms in which LangChain gives them to callback handlers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import msgspec
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk

__all__ = ["EventPieces", "Piece", "PieceForm", "TokenPieces"]


class Piece(msgspec.Struct, frozen=True, eq=False):
    """A piece of a model's stream.

    Attributes:
        value: The first argument of the callback: a token or an event.
        given: The other arguments of the callback.
    """

    value: Any
    given: dict[str, Any]

    @property
    def message(self) -> Any:
        """The message of the piece; `None` if it has none."""
        return getattr(self.given.get("chunk"), "message", None)


class PieceForm(Protocol):
    """One form of the pieces.

    Attributes:
        callback: The method of handlers that gets them.
    """

    callback: str

    def read_text(self, piece: Piece) -> tuple[object, str] | None:
        """Return the place and the text of a piece that is nothing but text; `None` for any other piece."""
        ...

    def with_text(self, piece: Piece, text: str) -> Piece:
        """Return a piece with other text."""
        ...

    def is_frame(self, piece: Piece) -> bool:
        """Return whether a piece has no content of the model."""
        ...

    def write_rest(self, answer: BaseMessage, released: str, place: object) -> Iterable[Piece]:
        """Return the pieces of an answer that hooks have changed, without those that readers already have.

        Args:
            answer: The answer.
            released: The text at its begin that readers have.
            place: The place of that text.
        """
        ...


class TokenPieces:
    """The tokens of `on_llm_new_token`, each with a chunk of a message."""

    callback = "on_llm_new_token"

    def read_text(self, piece: Piece) -> tuple[object, str] | None:
        message = piece.message
        if not isinstance(message, AIMessageChunk) or message.tool_call_chunks or message.additional_kwargs:
            return None
        content = message.content
        if isinstance(content, str):
            return ("", content) if content else None
        block = content[0] if len(content) == 1 else None
        if isinstance(block, dict) and block.get("type") == "text" and not block.keys() - {"type", "text", "index"}:
            return block.get("index", ""), block.get("text", "")
        return None

    def with_text(self, piece: Piece, text: str) -> Piece:
        # The tokens that the piece counts are left out: they are in the whole answer.
        chunk, message = piece.given["chunk"], piece.message
        content = text if isinstance(message.content, str) else [{**message.content[0], "text": text}]
        changed = message.model_copy(update={"content": content, "usage_metadata": None, "chunk_position": None})
        given = {**piece.given, "chunk": ChatGenerationChunk(message=changed, generation_info=chunk.generation_info)}
        return Piece(content, given)

    def is_frame(self, piece: Piece) -> bool:
        message = piece.message
        if not isinstance(message, AIMessageChunk):
            return False
        return not message.content and not message.tool_call_chunks and not message.additional_kwargs

    def write_rest(self, answer: BaseMessage, released: str, place: object) -> Iterator[Piece]:
        calls = answer.tool_calls if isinstance(answer, AIMessage) else []
        chunks = [tool_call_chunk(name=each["name"], args=json.dumps(each["args"]), id=each["id"], index=index)
                  for index, each in enumerate(calls)]  # fmt: skip
        text = str(answer.text)[len(released) :]
        if text or chunks:
            message = AIMessageChunk(content=text, tool_call_chunks=chunks, id=answer.id)
            yield Piece(text, {"chunk": ChatGenerationChunk(message=message)})


class EventPieces:
    """The events of `on_stream_event`: the begin of a message, the begin, the deltas and the end of its blocks."""

    callback = "on_stream_event"

    def read_text(self, piece: Piece) -> tuple[object, str] | None:
        event = piece.value
        if event["event"] != "content-block-delta" or event["delta"].get("type") != "text-delta":
            return None
        return event["index"], event["delta"]["text"]

    def with_text(self, piece: Piece, text: str) -> Piece:
        event = piece.value
        return Piece({**event, "delta": {**event["delta"], "text": text}}, piece.given)

    def is_frame(self, piece: Piece) -> bool:
        event = piece.value
        if event["event"] == "content-block-start":
            return bool(event["content"].get("type") == "text" and not event["content"].get("text"))
        return bool(event["event"] == "message-start")

    def write_rest(self, answer: BaseMessage, released: str, place: object) -> Iterator[Piece]:
        # LangChain makes the events of whole messages with it.
        from langchain_core.language_models._compat_bridge import message_to_events

        left, begun = released, bool(released)
        for event in message_to_events(answer):
            given: Any = event
            if left and given["event"] == "content-block-delta":
                text = given["delta"].get("text", "")[len(left) :]
                left = ""
                given = {**given, "delta": {**given["delta"], "text": text}}
                if not text:
                    continue
            elif left:
                continue  # readers have the begin of the message and of its text
            if begun and "index" in given and isinstance(place, int):
                given = {**given, "index": given["index"] + place}
            yield Piece(given, {})
