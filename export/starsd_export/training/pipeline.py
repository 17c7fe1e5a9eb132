"""Training as a whole: a checkpoint in, a trained head out. Every stage leaves its result in the working directory, so
that a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import torch
from transformers import PreTrainedModel

from starsd_edge.bench.prompts import read_messages
from starsd_edge.bundles.integrity import require_replaceable, staged_directory
from starsd_edge.errors import UsageError
from starsd_edge.heads.engine import HeadSpec
from starsd_edge.heads.torch_head import TorchHead
from starsd_edge.runtime.torch_model import head_width
from starsd_edge.text.chat import ChatFrame
from starsd_edge.text.tokenizer import Tokenizer
from starsd_export.checkpoint import Checkpoint, checkpoint_tokenizer
from starsd_export.draft_heads.fitting import find_head, own_feature_fp
from starsd_export.draft_heads.trained import FROM_TARGET, HEAD_JSON, HeadRecord, TrainedHead, write_trained
from starsd_export.reference import STOCK_ATTENTION
from starsd_export.training.features import FeatureStore, gather_features
from starsd_export.training.learning import Objective, head_to_train, untrained
from starsd_export.training.loop import Evaluation, Trainer, TrainingPlan, read_log
from starsd_export.training.texts import (
    TEXTS_NAME,
    TrainingText,
    Writer,
    WritingPlan,
    choose_vocabulary,
    coverage,
    read_files,
    write_texts,
)

PLAN_NAME = "plan.json"
_LONGEST_PIECE = 512
_SAMPLED_ROWS = 20_000
_MAX_POSITIONS = 2048


@dataclass(frozen=True)
class HeadPlan:
    """What is trained, on what and how.

    Attributes:
        tokens: of text that the model writes for itself, where no data is given.
        data: a user's files of plain text.
        messages: a user's file of messages, one per line, that the model answers where it writes the text.
        start: the head that is trained on, as for `export_draft_bundle`; None for a new one.
        draft_vocabulary: ids that the head can draft.
        bfloat16: write and look at the texts in bfloat16: several times as fast on processors that have it.
    """

    tokens: int = 500_000
    data: tuple[Path, ...] = ()
    messages: Path | None = None
    start: str | None = None
    draft_vocabulary: int = 8192
    bfloat16: bool = False
    writing: WritingPlan = field(default_factory=WritingPlan)
    training: TrainingPlan = field(default_factory=TrainingPlan)


class Watcher(Protocol):
    """Who is told how it goes."""

    def stage(self, name: str, total: int) -> None:
        """A stage begins, of so many tokens or updates."""

    def done(self, count: int) -> None:
        """So many of them are done."""

    def report(self, report: Evaluation) -> None:
        """The head was looked at."""


def train_head(checkpoint: Checkpoint, work: Path, output: Path, plan: HeadPlan, watcher: Watcher) -> TrainedHead:
    """Train a head for a checkpoint and write it to `output`.

    Args:
        work: where texts, features and checkpoints are kept; what an interrupted run left there is gone on with.

    Raises:
        UsageError: the working directory belongs to another plan, a file of the user's cannot be read, or the output
            is something else than a head.
    """
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output} is a file: name a directory for the head")
    require_replaceable(output, HEAD_JSON, "head")  # known before hours of training, not after
    tokenizer = checkpoint_tokenizer(checkpoint)
    given = _given_texts(tokenizer, plan)
    messages = [] if plan.messages is None else read_messages(plan.messages)
    start = None if plan.start is None else _start(plan.start, checkpoint)
    _claim(work, checkpoint, plan)  # what is refused leaves nothing
    model = checkpoint.load()
    model.set_attn_implementation(STOCK_ATTENTION)
    embedding = model.get_input_embeddings().weight.detach().clone()
    output_matrix = model.get_output_embeddings().weight.detach().clone()
    if plan.bfloat16:
        model = model.to(torch.bfloat16)
    if not given:
        watcher.stage("writing texts", plan.tokens)
        writer = _writer(model, tokenizer, messages, plan)
        given = write_texts(writer.write_batch, work / TEXTS_NAME, plan.tokens, watcher.done)
    watcher.stage("looking at the texts", sum(len(text.ids) for text in given))
    store = gather_features(model, given, work, watcher.done)
    said = store.texts[max(1, round(plan.training.held_out * len(store.texts))) :]
    vocabulary = choose_vocabulary(said, plan.draft_vocabulary, model.config.vocab_size, tokenizer.eos_ids)
    if start is None:
        spec = head_spec(model, len(vocabulary))
        tensors = untrained(spec, plan.training.seed)
    else:
        spec = msgspec.structs.replace(start.record.spec, draft_vocab_size=len(vocabulary))
        tensors = {name: tensor for name, tensor in start.tensors.items() if name not in FROM_TARGET}
    del model
    head = head_to_train(spec, tensors, embedding, output_matrix[torch.from_numpy(vocabulary)])
    lesson = Objective(embedding, vocabulary, _typical_size(store), plan.training.loss)
    trainer = Trainer(head, lesson, store, plan.training, work)
    watcher.stage("training", trainer.updates)
    latest = trainer.run(watcher.report, watcher.done)
    trained = _finished(checkpoint, head, torch.from_numpy(vocabulary), _record(plan, store, vocabulary, latest))
    with staged_directory(output.resolve()) as staging:
        write_trained(staging, trained)
        write_plot(read_log(work), staging / PLOT_NAME)
    return trained


def head_spec(model: PreTrainedModel, draft_vocabulary: int) -> HeadSpec:
    """A head as wide as the target, with one layer like its own."""
    config = model.config
    return HeadSpec(
        kind="eagle",
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads,
        head_dim=head_width(config),
        vocab_size=config.vocab_size,
        draft_vocab_size=draft_vocabulary,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=float(config.rope_parameters["rope_theta"]),
        max_positions=_MAX_POSITIONS,
    )


def _start(name: str, checkpoint: Checkpoint) -> TrainedHead:
    head = find_head(name, checkpoint).head
    if head.record.spec.kind != "eagle":
        raise UsageError(f"{name} is an EAGLE-3 head, and only EAGLE-1 heads are trained here: leave --start out")
    return head


def _claim(work: Path, checkpoint: Checkpoint, plan: HeadPlan) -> None:
    """One plan per working directory: stages of different plans do not fit together."""
    work.mkdir(parents=True, exist_ok=True)
    ours = json.loads(json.dumps({"source_fp": checkpoint.source_fp, **asdict(plan)}, default=str))
    path = work / PLAN_NAME
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) != ours:
        raise UsageError(f"{work} holds the work of another plan: name another --work directory, or remove that one")
    path.write_text(json.dumps(ours, indent=2) + "\n", encoding="utf-8")


def _given_texts(tokenizer: Tokenizer, plan: HeadPlan) -> Sequence[TrainingText]:
    """A user's own; none where the model is to write them."""
    if plan.data and plan.messages is not None:
        raise UsageError(
            "--messages are for texts that the model writes, and with --data it writes none: leave one out"
        )
    if plan.data:
        return read_files(plan.data, tokenizer.encode, _LONGEST_PIECE)
    if not tokenizer.has_chat_template:
        raise UsageError("this model has no chat template to write texts by itself: give text files with --data")
    return ()


def _writer(model: PreTrainedModel, tokenizer: Tokenizer, messages: Sequence[str], plan: HeadPlan) -> Writer:
    frame = ChatFrame.of(lambda message: tokenizer.encode_chat([{"role": "user", "content": message}]))
    asked = [tokenizer.encode(message) for message in messages]
    return Writer(model, frame, sorted(tokenizer.eos_ids), replace(plan.writing, seed=plan.training.seed), asked)


def _typical_size(store: FeatureStore) -> float:
    """Root mean square of the features' numbers."""
    return float(np.sqrt(np.mean(np.square(store.features[:_SAMPLED_ROWS].astype(np.float32)))))


def _record(plan: HeadPlan, store: FeatureStore, vocabulary: Any, latest: Evaluation) -> dict[str, Any]:
    return {
        "tokens": int(store.offsets[-1]),
        "texts": len(store.texts),
        "own_texts": not plan.data,
        "messages": None if plan.messages is None else plan.messages.name,
        "start": None if plan.start is None else Path(plan.start).resolve().name,
        "coverage": round(coverage(store.texts, vocabulary), 4),
        "seed": plan.training.seed,
        "updates": latest.updates,
        "steps": plan.training.loss.steps,
        "held_out_survival": latest.survival,
        "held_out_tokens_per_round": latest.tokens_per_round,
        "torch": str(torch.__version__),
    }


def _finished(checkpoint: Checkpoint, head: TorchHead, draft_ids: torch.Tensor, trained: dict[str, Any]) -> TrainedHead:
    tensors = {name: head.tensor(name).detach() for name in head.spec.tensor_shapes() if name not in FROM_TARGET}
    return TrainedHead(HeadRecord(1, head.spec, own_feature_fp(checkpoint), trained), tensors, draft_ids)


PLOT_NAME = "training.svg"
_WIDTH, _HEIGHT, _MARGIN = 640, 260, 50


def write_plot(reports: Sequence[Evaluation], path: Path) -> None:
    """An SVG with both curves over the updates."""
    updates = [report.update for report in reports]
    curves = (
        ("loss", "#b5523b", [report.loss for report in reports], False),
        ("tokens per round", "#2f6f8f", [report.tokens_per_round for report in reports], True),
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<path d="M{_MARGIN} {_MARGIN / 2}V{_HEIGHT - _MARGIN}H{_WIDTH - _MARGIN}V{_MARGIN / 2}" fill="none" '
        'stroke="#999"/>',
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 14}" text-anchor="middle">updates (to {updates[-1]})</text>',
    ]
    for name, colour, values, right in curves:
        low, high = min(values), max(values)
        points = " ".join(
            f"{_across(update, updates):.1f},{_up(value, low, high):.1f}"
            for update, value in zip(updates, values, strict=True)
        )
        x, anchor = (_WIDTH - _MARGIN + 4, "start") if right else (_MARGIN - 4, "end")
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<text x="{x}" y="{_up(value, low, high):.1f}" fill="{colour}" text-anchor="{anchor}">{value:.2f}</text>'
            for value in {low, high}
        ]
        edge, side = (_WIDTH - 4, "end") if right else (4, "start")
        parts.append(f'<text x="{edge}" y="14" fill="{colour}" text-anchor="{side}">{name}</text>')
    path.write_text("\n".join([*parts, "</svg>", ""]), encoding="ascii")


def _across(update: int, updates: Sequence[int]) -> float:
    span = max(1, updates[-1] - updates[0])
    return _MARGIN + (update - updates[0]) / span * (_WIDTH - 2 * _MARGIN)


def _up(value: float, low: float, high: float) -> float:
    share = (value - low) / (high - low) if high > low else 0.5
    return _HEIGHT - _MARGIN - share * (_HEIGHT - 1.5 * _MARGIN)
