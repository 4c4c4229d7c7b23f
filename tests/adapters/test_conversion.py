"""Messages that hooks leave alone become the very messages that a framework gave, whatever else hooks change."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hookline.adapters._conversion import restore_messages
from hookline.calls import Message


@dataclass(eq=False)
class Original:
    """A message of a framework; of several with the same texts, each is another, as with images."""

    texts: list[str]
    ours: list[Message] = field(init=False)

    def __post_init__(self) -> None:
        self.ours = [Message(role="user", content=text) for text in self.texts]


conversations = st.lists(st.builds(Original, st.lists(st.sampled_from(["", "a"]), min_size=1, max_size=3)), max_size=8)


def restored(messages: list[Message], conversation: list[Original]) -> list[object]:
    return restore_messages(messages, [(each, each.ours) for each in conversation], lambda message: message.content)


@given(conversations, st.data())
def test_messages_that_a_hook_keeps_are_the_originals_in_their_order(
    conversation: list[Original], data: st.DataObject
) -> None:
    kept = data.draw(st.lists(st.sampled_from(conversation), unique=True) if conversation else st.just([]))
    written = Message(role="system", content="written")
    messages = [written, *(message for each in kept for message in each.ours), written]

    found = restored(messages, conversation)

    assert found == ["written", *kept, "written"]


@given(conversations)
def test_messages_that_a_hook_builds_anew_without_a_change_are_the_originals(conversation: list[Original]) -> None:
    messages = [replace(message) for each in conversation for message in each.ours]

    found = restored(messages, conversation)

    assert [each for group in found for each in getattr(group, "texts", [group])] == [each.content for each in messages]
    assert all(isinstance(each, Original) for each in found)
    assert len(set(map(id, found))) == len(found)


def test_a_message_that_a_hook_repeats_is_the_original_twice() -> None:
    first = Original(["a"])

    assert restored([*first.ours, *first.ours], [first]) == [first, first]


def test_an_original_without_messages_is_passed_over() -> None:
    empty, first = Original([]), Original(["a"])

    assert restored(first.ours, [empty, first]) == [first]
