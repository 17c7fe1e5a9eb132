"""The training loop: batches, updates, checkpoints that resume, and a log of what was seen."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from starsd_edge.heads.torch_head import TorchHead
from starsd_export.training.features import FeatureStore, load_batch, shuffled
from starsd_export.training.learning import LossWeights, Objective, survival

CHECKPOINT_NAME = "checkpoint.safetensors"
LOG_NAME = "log.jsonl"
_BETAS = (0.9, 0.95)
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class TrainingPlan:
    """How a head is trained.

    Attributes:
        epochs: times that every text is seen.
        batch_tokens: rows of one update.
        learning_rate: the highest; it rises over `warmup` updates and falls along a cosine to a twentieth.
        held_out: share of the texts that is only ever looked at.
        every: updates between two looks at them, and between two checkpoints.
        bfloat16: multiply in bfloat16; weights stay in float32.
    """

    seed: int = 0
    epochs: int = 10
    batch_tokens: int = 4096
    learning_rate: float = 2e-3
    warmup: int = 60
    held_out: float = 0.02
    every: int = 100
    bfloat16: bool = False
    loss: LossWeights = field(default_factory=LossWeights)


@dataclass(frozen=True)
class Evaluation:
    """What was seen at one look.

    Attributes:
        loss: mean over the updates since the last look.
        survival: on the held-out texts, share of chains that reached each level and hit there.
        tokens_per_round: of chains as deep as the training, in those texts.
    """

    update: int
    updates: int
    loss: float
    survival: list[float]
    tokens_per_round: float


class Trainer:
    """A head on its way.

    Args:
        head: from `untrained`.
        directory: where checkpoint and log are kept; a checkpoint that lies there is gone on with.
    """

    def __init__(
        self, head: TorchHead, lesson: Objective, store: FeatureStore, plan: TrainingPlan, directory: Path
    ) -> None:
        self._head = head
        self._lesson = lesson
        self._store = store
        self._plan = plan
        self._directory = directory
        self._trained = {name: tensor for name, tensor in head.named_parameters() if tensor.requires_grad}
        self._optimiser = torch.optim.AdamW(self._trained.values(), plan.learning_rate, _BETAS, weight_decay=0.01)
        held_out = max(1, round(plan.held_out * len(store.texts)))
        self._learned = range(held_out, len(store.texts))
        self._held_out = range(held_out)
        first_seed = plan.seed * 1_000_003
        self._schedule = [
            batch for epoch in range(plan.epochs) for batch in self._batches(self._learned, first_seed + epoch)
        ]
        self._done = self._resume()

    @property
    def updates(self) -> int:
        """Of the whole plan."""
        return len(self._schedule)

    def run(self, report: Callable[[Evaluation], None], progress: Callable[[int], None]) -> Evaluation:
        """Train to the end of the plan.

        Args:
            report: takes what was seen, every `plan.every` updates and at the end.
            progress: called with the number of updates done.
        """
        losses: list[float] = []
        latest = self._look(losses)
        while self._done < len(self._schedule):
            losses.append(self._update(self._schedule[self._done]))
            self._done += 1
            progress(self._done)
            if self._done % self._plan.every == 0 or self._done == len(self._schedule):
                latest = self._look(losses)
                report(latest)
                self._keep(latest)
                losses = []
        return latest

    def _batches(self, texts: range, seed: int) -> list[list[int]]:
        lengths = [len(self._store.texts[text].ids) for text in texts]
        batches = shuffled(lengths, self._plan.batch_tokens, seed)
        return [[texts[index] for index in batch] for batch in batches]

    def _update(self, numbers: Sequence[int]) -> float:
        for group in self._optimiser.param_groups:
            group["lr"] = self._plan.learning_rate * _pace(self._done, len(self._schedule), self._plan.warmup)
        with self._arithmetic():
            measures = self._lesson.measure(self._head, load_batch(self._store, numbers))
        self._optimiser.zero_grad(set_to_none=True)
        measures.loss.backward()
        torch.nn.utils.clip_grad_norm_(list(self._trained.values()), 1.0)
        self._optimiser.step()
        return float(measures.loss.detach())

    def _look(self, losses: Sequence[float]) -> Evaluation:
        """At the held-out texts."""
        steps = self._plan.loss.steps
        reached, survived = np.zeros(steps, dtype=np.int64), np.zeros(steps, dtype=np.int64)
        with torch.inference_mode(), self._arithmetic():
            for numbers in self._batches(self._held_out, 0):
                batch = load_batch(self._store, numbers)
                one, other = survival(self._lesson.measure(self._head, batch).hits, batch)
                reached, survived = reached + one, survived + other
        shares = (survived / np.maximum(reached, 1)).tolist()
        return Evaluation(
            self._done,
            len(self._schedule),
            float(np.mean(losses)) if losses else math.nan,
            [round(share, 4) for share in shares],
            round(1 + float(np.cumprod(shares).sum()), 3),
        )

    def _arithmetic(self) -> Any:
        return torch.autocast("cpu", torch.bfloat16) if self._plan.bfloat16 else nullcontext()

    def _keep(self, report: Evaluation) -> None:
        """Checkpoint and log, the checkpoint whole or not at all."""
        tensors = {name: tensor.detach().contiguous() for name, tensor in self._trained.items()}
        for name, tensor in self._trained.items():
            for moment in _MOMENTS:
                tensors[f"{moment}.{name}"] = self._optimiser.state[tensor][moment]
        part = self._directory / f"{CHECKPOINT_NAME}.part"
        save_file(tensors, part, metadata={"update": str(self._done)})
        part.rename(self._directory / CHECKPOINT_NAME)
        with (self._directory / LOG_NAME).open("a", encoding="ascii") as file:
            file.write(json.dumps(asdict(report)) + "\n")

    def _resume(self) -> int:
        """Updates done by an earlier run."""
        path = self._directory / CHECKPOINT_NAME
        if not path.exists():
            return 0
        with safe_open(path, "pt") as kept:
            done = int(kept.metadata()["update"])
            for name, tensor in self._trained.items():
                with torch.no_grad():
                    tensor.copy_(kept.get_tensor(name))
                self._optimiser.state[tensor] = {
                    "step": torch.tensor(float(done)),
                    **{moment: kept.get_tensor(f"{moment}.{name}").clone() for moment in _MOMENTS},
                }
        return done


def _pace(update: int, updates: int, warmup: int) -> float:
    """Share of the highest learning rate."""
    if update < warmup:
        return (update + 1) / warmup
    along = (update - warmup) / max(1, updates - warmup)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, along)))


def read_log(directory: Path) -> list[Evaluation]:
    """What was seen so far, earlier runs included."""
    lines = (directory / LOG_NAME).read_text(encoding="ascii").splitlines()
    return [Evaluation(**json.loads(line)) for line in lines]
