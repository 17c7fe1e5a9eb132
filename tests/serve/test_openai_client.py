"""OpenAI's own client, unmodified: sync, async, and its streaming helpers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serve.conftest import CONTEXT
from tests.support.decoding import letters, plain_answer, request
from tests.support.prefix_engine import PrefixEngine
from tests.support.served import Served

openai = pytest.importorskip("openai")
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "bad"}], "max_tokens": 30, "temperature": 0}


def expected(text: str = "ubada", max_tokens: int = 30, **changes: Any) -> Any:
    """The answer by its definition; `text` is the prompt as the template writes it."""
    prompt = tuple(letters().encode(text))
    return plain_answer(
        PrefixEngine(1, max_context=CONTEXT), letters(), request(prompt=prompt, max_tokens=max_tokens, **changes)
    )


def test_a_chat_is_answered_whole_and_as_a_stream(letters_served: Served) -> None:
    client = letters_served.client()
    model = client.models.list().data[0].id
    whole = client.chat.completions.create(model=model, **ASKED)
    assert whole.choices[0].message.content == expected().text
    assert whole.choices[0].finish_reason == expected().finish_reason
    stream = client.chat.completions.create(model=model, stream=True, **ASKED)
    deltas = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(deltas) == expected().text
    word = expected().text[5:7]
    with client.chat.completions.stream(model=model, stop=[word], **ASKED) as helper:
        final = helper.get_final_completion().choices[0]
    assert (final.message.content, final.finish_reason) == (expected().text.partition(word)[0], "stop")
