"""Texts to train on, as token ids: what the model itself writes, or a user's own files.

A draft head has to predict one model, so the best text is that model's own. No data set is needed: after the head of
its chat template the model writes a user's message, and then it answers it. Where a user gives messages like those that
the model will get, it answers these. Answers are drawn at several temperatures, because targets decode both greedily
and by sampling. Many texts are written side by side, in a batch that shrinks as its texts end: passes of many rows
round otherwise than the engine's, and it does not matter what a text to train on would have been.

The file of texts holds one JSON object a line. Batches are seeded by their number and written whole, so that a run that
was interrupted goes on where it stopped and ends with the same texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from starsd_edge.bench.prompts import before_loop
from starsd_edge.errors import UsageError
from starsd_edge.text.chat import ChatFrame

TEXTS_NAME = "texts.jsonl"
_ANSWER_TEMPERATURES = (0.0, 0.6, 0.0, 1.0)
_LEAST_MESSAGE = 4
_LEAST_ANSWER = 8
_MOST_BARREN = 16
"""Batches in a row without a text that can be used; then there is little hope of one."""


class TrainingText(msgspec.Struct, frozen=True):
    """One text.

    Attributes:
        ids: all of its tokens.
        start: how many of them teach nothing: they are the same in every text, or not the model's own.
    """

    ids: list[int]
    start: int


@dataclass(frozen=True)
class WritingPlan:
    """How a model writes its own texts.

    Attributes:
        seed: of everything that is drawn.
        batch: texts written side by side.
        message_tokens: most tokens of a user's message.
        answer_tokens: most tokens of an answer.
    """

    seed: int = 0
    batch: int = 128
    message_tokens: int = 48
    answer_tokens: int = 224


@dataclass(frozen=True)
class Writer:
    """A model that talks to itself.

    Attributes:
        model: in evaluation mode, in any floating-point type.
        frame: of its chat template.
        eos_ids: tokens that end a turn.
        messages: what the model is asked, over and over; without any it asks itself.
    """

    model: PreTrainedModel
    frame: ChatFrame
    eos_ids: Sequence[int]
    plan: WritingPlan
    messages: Sequence[Sequence[int]] = ()

    def write_batch(self, number: int) -> list[TrainingText]:
        """The texts of one batch: the same for the same plan and number."""
        torch.manual_seed(self.plan.seed * 1_000_003 + number)
        messages = self._given(number) if self.messages else self._own()
        if not messages:
            return []
        prompts = [[*self.frame.head, *message, *self.frame.tail] for message in messages]
        temperature = _ANSWER_TEMPERATURES[number % len(_ANSWER_TEMPERATURES)]
        answers = self._continue(prompts, self.plan.answer_tokens, temperature, keep_end=True)
        return [
            TrainingText([*prompt, *answer], self._start(prompt))
            for prompt, answer in zip(prompts, answers, strict=True)
            if len(answer) >= _LEAST_ANSWER
        ]

    def _start(self, prompt: Sequence[int]) -> int:
        return max(0, len(prompt if self.messages else self.frame.head) - 1)

    def _given(self, number: int) -> list[Sequence[int]]:
        first = number * self.plan.batch
        return [self.messages[(first + row) % len(self.messages)] for row in range(self.plan.batch)]

    def _own(self) -> list[list[int]]:
        messages = self._continue([self.frame.head] * self.plan.batch, self.plan.message_tokens, 1.0)
        return [message for message in messages if len(message) >= _LEAST_MESSAGE]

    def _continue(
        self, prompts: Sequence[Sequence[int]], most: int, temperature: float, *, keep_end: bool = False
    ) -> list[list[int]]:
        """What the model adds to each prompt, up to the end of the turn and to where it begins to loop.

        Args:
            keep_end: whether the token that ends the turn belongs to it.
        """
        written = decode_batch(self.model, prompts, most, temperature, self.eos_ids)
        return [self._one_turn(row, keep_end) for row in written]

    def _one_turn(self, ids: list[int], keep_end: bool) -> list[int]:
        end = next((i for i, token in enumerate(ids) if token in self.eos_ids), len(ids))
        turn = ids[:end]
        kept = turn[: before_loop(turn)]
        return [*kept, ids[end]] if keep_end and end < len(ids) and len(kept) == end else kept


def write_texts(
    writer: Callable[[int], list[TrainingText]], path: Path, wanted: int, progress: Callable[[int], None]
) -> list[TrainingText]:
    """Texts of at least `wanted` tokens together, in the file `path`; goes on with what is there.

    Args:
        writer: gives the texts of batch number 0, 1, ...
        progress: called with the number of tokens there are.

    Raises:
        UsageError: many batches in a row gave nothing.
    """
    batches = _read_batches(path)
    total = sum(len(text.ids) for batch in batches for text in batch)
    with path.open("a", encoding="ascii") as file:
        while total < wanted:
            progress(total)
            if len(batches) >= _MOST_BARREN and not any(batches[-_MOST_BARREN:]):
                raise UsageError(
                    f"the model answers with fewer than {_LEAST_ANSWER} tokens, {_MOST_BARREN} batches in a row: give "
                    "other --messages, or text files with --data, and another --work directory"
                )
            batch = writer(len(batches))
            file.write(json.dumps(msgspec.to_builtins(batch), separators=(",", ":")) + "\n")
            file.flush()
            batches.append(batch)
            total += sum(len(text.ids) for text in batch)
    progress(total)
    return [text for batch in batches for text in batch]


def read_files(paths: Iterable[Path], encode: Callable[[str], list[int]], longest: int) -> list[TrainingText]:
    """A user's own texts: files of plain text, cut into pieces of at most `longest` tokens.

    Raises:
        UsageError: a file cannot be read, or there is no text in any.
    """
    texts = [TrainingText(piece, 0) for path in paths for piece in _pieces(encode(_read(path)), longest)]
    if not texts:
        raise UsageError("there is no text in the files given with --data")
    return texts


def _pieces(ids: list[int], longest: int) -> Iterator[list[int]]:
    for first in range(0, len(ids), longest):
        piece = ids[first : first + longest]
        if len(piece) >= _LEAST_ANSWER:
            yield piece


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start}): convert it") from error


def _read_batches(path: Path) -> list[list[TrainingText]]:
    """The whole batches of a file; a line that was cut off by the end of a run is dropped from it."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        path.write_bytes(whole)
    decoder: msgspec.json.Decoder[list[TrainingText]] = msgspec.json.Decoder(list[TrainingText])
    try:
        return [decoder.decode(line) for line in whole.splitlines()]
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} does not hold texts ({error}): remove it, and they are written anew") from error


def choose_vocabulary(
    texts: Sequence[TrainingText], size: int, vocab_size: int, always: Collection[int]
) -> npt.NDArray[np.int64]:
    """int64 [size]: the ids that occur most often, ascending; of those that occur equally often the lower.

    Args:
        texts: what was said, the part that is the same in all of them left out.
        vocab_size: of the target.
        always: ids that are among them in any case: those that end a text.
    """
    counts = np.zeros(vocab_size, dtype=np.int64)
    for text in texts:
        np.add.at(counts, text.ids[text.start :], 1)
    counts[list(always)] = np.iinfo(np.int64).max
    return np.sort(np.argsort(-counts, kind="stable")[: min(size, vocab_size)])


def coverage(texts: Sequence[TrainingText], vocabulary: npt.NDArray[np.int64]) -> float:
    """Share of the tokens of the texts that the vocabulary holds."""
    said = np.concatenate([text.ids[text.start :] for text in texts])
    return float(np.isin(said, vocabulary).mean())


_TOP_K = 50
_SHRINK_BELOW = 0.75
"""Share of texts still going on below which the others are taken out of the batch, which copies the cache."""


class _RowCache(Cache):  # type: ignore[misc]
    """K and V of B texts in buffers of one size, written column by column.

    Args:
        layers: of the model.
        capacity: columns: tokens of the longest text.
    """

    def __init__(self, layers: int, capacity: int) -> None:
        super().__init__(layers=[DynamicLayer() for _ in range(layers)])
        self.length = 0
        """Columns written; the caller moves it on after each pass."""
        self._capacity = capacity
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[B, H_kv, T, D] in, everything so far out."""
        for buffers, states in ((self._keys, key_states), (self._values, value_states)):
            if layer_idx == len(buffers):
                batch, heads, _rows, width = states.shape
                buffers.append(states.new_zeros(batch, heads, self._capacity, width))
            buffers[layer_idx][:, :, self.length : self.length + states.shape[2]] = states
        end = self.length + key_states.shape[2]
        return self._keys[layer_idx][:, :, :end], self._values[layer_idx][:, :, :end]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns written."""
        return self.length

    def keep(self, rows: torch.Tensor) -> None:
        """Only these texts go on."""
        self._keys = [buffer[rows] for buffer in self._keys]
        self._values = [buffer[rows] for buffer in self._values]


def decode_batch(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], most: int, temperature: float, eos_ids: Collection[int]
) -> list[list[int]]:
    """What the model adds to each prompt: at most `most` tokens, the one that ends it included.

    Args:
        temperature: 0 takes the likeliest token; above, one of the `_TOP_K` likeliest is drawn by torch's generator.
    """
    width = max(map(len, prompts))
    ids, seen = _pad_left(prompts, width)
    cache = _RowCache(model.config.num_hidden_layers, width + most)
    positions = (seen.cumsum(dim=1) - 1).clamp(min=0)
    answers: list[list[int]] = [[] for _ in prompts]
    going = list(range(len(prompts)))  # which answer each row of the batch continues
    with torch.inference_mode():
        for _ in range(most):
            causal = _mask(seen, ids.shape[1])
            hidden = model.base_model(
                input_ids=ids, attention_mask=causal, position_ids=positions, cache=cache, use_cache=True
            ).last_hidden_state[:, -1]
            cache.length += ids.shape[1]
            chosen = _choose(model.get_output_embeddings()(hidden), temperature)
            for row, token in zip(going, chosen.tolist(), strict=True):
                if not answers[row] or answers[row][-1] not in eos_ids:
                    answers[row].append(token)
            ids, positions = chosen[:, None], positions[:, -1:] + 1
            seen = torch.cat((seen, seen.new_ones(len(seen), 1)), dim=1)
            alive = [index for index, row in enumerate(going) if answers[row][-1] not in eos_ids]
            if not alive:
                break
            if len(alive) < _SHRINK_BELOW * len(going):
                rows = torch.tensor(alive)
                cache.keep(rows)
                ids, positions, seen = ids[rows], positions[rows], seen[rows]
                going = [going[index] for index in alive]
    return answers


def _choose(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """One token for each row, int64 [B]."""
    if not temperature:
        return logits.argmax(dim=-1)
    best, ids = logits.topk(min(_TOP_K, logits.shape[-1]), dim=-1)
    drawn = torch.multinomial((best.float() / temperature).softmax(dim=-1), 1)
    return ids.gather(1, drawn)[:, 0]


def _pad_left(prompts: Sequence[Sequence[int]], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids, and where they are no padding: int64 [B, width], the prompts at the right edge."""
    ids = torch.zeros((len(prompts), width), dtype=torch.int64)
    seen = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(list(prompt))
        seen[row, width - len(prompt) :] = 1
    return ids, seen


def _mask(seen: torch.Tensor, rows: int) -> torch.Tensor:
    """bool [B, 1, rows, columns]: the last `rows` columns see what comes before them and is no padding.

    A row of padding sees itself, so that no row sees nothing.
    """
    columns = seen.shape[1]
    order = torch.arange(columns)
    causal = order[None, :] <= order[columns - rows :, None]
    itself = order[None, :] == order[columns - rows :, None]
    return (causal & seen.bool()[:, None, :] | itself)[:, None]
