"""Texts of answers, token by token, against the text of all tokens."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from metropolis.torch_engine.text import AnswerText
from tests.torch_engine.served_models import byte_tokenizer

TOKENIZER = byte_tokenizer()
texts = st.text(alphabet="abé🌳 ", max_size=30)


class Words:
    """A tokenizer of words, whose text has spaces between them."""

    def decode(self, tokens: list[int], **_: object) -> str:
        return " ".join(f"word{token}" for token in tokens)


@given(texts, st.lists(st.text(alphabet="abé🌳 ", min_size=1, max_size=4), max_size=3))
@example("aab", ["ab"])
@example("aaab", ["aab", "b"])
def test_the_pieces_are_the_text_up_to_the_first_stop(text: str, stops: list[str]) -> None:
    answer = AnswerText(TOKENIZER, stops)
    pieces = []
    for token in TOKENIZER(text)["input_ids"]:
        pieces.append(answer.add(token))
        if answer.is_stopped:
            break
    else:
        pieces.append(answer.finish())
    # The first stop to be complete ends the answer.
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    first = min(ends)[0] if ends else None
    cut = min((at for end, at in ends if end == first), default=len(text))
    assert "".join(pieces) == text[:cut]
    assert answer.is_stopped == bool(ends)


@given(st.lists(st.integers(2, 257), max_size=120))
def test_broken_characters_are_shown_at_the_latest_at_the_end(tokens: list[int]) -> None:
    answer = AnswerText(TOKENIZER)
    pieces = [answer.add(token) for token in tokens]
    assert "".join([*pieces, answer.finish()]) == TOKENIZER.decode(tokens)


@given(st.lists(st.integers(0, 9), max_size=10))
def test_spaces_between_words_stay(tokens: list[int]) -> None:
    answer = AnswerText(Words())
    pieces = [answer.add(token) for token in tokens]
    assert "".join([*pieces, answer.finish()]) == Words().decode(tokens)
