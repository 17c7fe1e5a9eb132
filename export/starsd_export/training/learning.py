"""One update of a head: it is unrolled over whole texts as drafting will run it, and the loss of that is measured.

The first draft token of a draft rests on true features only, the second on one predicted feature, and so on. At step u
(from 0) the query of row i therefore sees keys and values of true features up to row i - u and predicted ones after:
those of row i - u + 1 from step 1, ..., its own from step u. All rows of a text draft at once.

The loss is the cross-entropy on the target's own distribution over the draft vocabulary, at every step of the
unrolling, and beside it, weighted low, the distance between predicted and true features, without which deep draft
tokens become wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from starsd_edge.heads.engine import HeadSpec
from starsd_edge.heads.torch_head import TorchHead
from starsd_export.training.features import TrainingBatch

_OUT_OF_SIGHT = torch.finfo(torch.float32).min


@dataclass(frozen=True)
class KeysValues:
    """[B, T, KV heads, D] each."""

    keys: torch.Tensor
    values: torch.Tensor

    def shifted(self, rows: int) -> KeysValues:
        """Row i holds what row i - `rows` held; the first rows repeat others and are never looked at."""
        if not rows:
            return self
        return KeysValues(self.keys.roll(rows, dims=1), self.values.roll(rows, dims=1))


def unroll(head: TorchHead, embedded: torch.Tensor, features: torch.Tensor, steps: int) -> Iterator[torch.Tensor]:
    """The predicted features of each step, [B, T, H]; of step u only rows from u on mean anything.

    Args:
        embedded: [B, T, H], embeddings of tokens 1..T.
        features: [B, T, H], the target's at positions 0..T-1.
    """
    positions = torch.arange(embedded.shape[1])
    true: KeysValues | None = None
    predicted: list[KeysValues] = []
    for step in range(steps):
        entered, residual = head.enter(embedded, features)
        keys_values = KeysValues(*head.keys_values(entered, positions))
        if true is None:
            true = keys_values
        else:
            predicted.append(keys_values)
        recent = [earlier.shifted(step - number) for number, earlier in enumerate(predicted, 1)]
        outcome = head.leave(residual, _attend(head.queries(entered, positions), true, recent))
        yield outcome
        features = outcome.roll(1, dims=1)


def _attend(queries: torch.Tensor, true: KeysValues, recent: list[KeysValues]) -> torch.Tensor:
    """[B, T, heads * D]: every row over the true rows up to its own less the number of recent ones, and over the
    recent ones.
    """
    batch, rows, heads, width = queries.shape
    kv_heads = true.keys.shape[2]
    grouped = queries.view(batch, rows, kv_heads, heads // kv_heads, width) * width**-0.5
    scores = torch.einsum("btkgd,bskd->bkgts", grouped, true.keys).float()
    order = torch.arange(rows)
    hidden = order[None, :] > order[:, None] - len(recent)
    columns = [scores.masked_fill(hidden, _OUT_OF_SIGHT)]
    columns += [torch.einsum("btkgd,btkd->bkgt", grouped, each.keys).float()[..., None] for each in recent]
    weights = torch.cat(columns, dim=-1).softmax(dim=-1).to(true.values.dtype)
    mixed = torch.einsum("bkgts,bskd->btkgd", weights[..., :rows], true.values)
    for number, each in enumerate(recent):
        mixed = mixed + torch.einsum("bkgt,btkd->btkgd", weights[..., rows + number], each.values)
    return mixed.reshape(batch, rows, heads * width)


@dataclass(frozen=True)
class LossWeights:
    """Weights of the parts of the loss.

    Attributes:
        steps: number of unrolled steps, one for each draft token.
        feature: of the feature distance, beside 1 for the cross-entropy.
        deeper: factor on the loss from each step to the next.
    """

    steps: int = 4
    feature: float = 0.1
    deeper: float = 0.9


@dataclass(frozen=True)
class Measures:
    """Loss and accuracy of one batch.

    Attributes:
        loss: to be minimised.
        hits: bool [steps, B, T]: the likeliest draft token of each step is the target's choice.
        cross_entropy: float [steps], means.
    """

    loss: torch.Tensor
    hits: torch.Tensor
    cross_entropy: list[float]


class Objective:
    """The training objective: loss and accuracy of a batch.

    Args:
        embedding: float32 [V, H], the target's.
        vocabulary: int64 [Vd], ids of the draft vocabulary.
        scale: typical size of a feature's numbers, by which the feature distance is divided.
    """

    def __init__(
        self, embedding: torch.Tensor, vocabulary: npt.NDArray[np.int64], scale: float, weights: LossWeights
    ) -> None:
        self._embedding = embedding
        self._vocabulary = torch.from_numpy(vocabulary)
        self._scale = scale
        self._weights = weights

    def measure(self, head: TorchHead, batch: TrainingBatch) -> Measures:
        """Run the head over a batch."""
        embedded = functional.embedding(batch.next_ids, self._embedding)
        rows = batch.counts
        truth = batch.wanted[rows]
        with torch.no_grad():
            target = head.logits(truth).float().softmax(dim=-1)
        loss = torch.zeros(())
        hits, entropies = [], []
        order = torch.arange(rows.shape[1]).expand_as(rows)[rows]
        for step, outcome in enumerate(unroll(head, embedded, batch.features, self._weights.steps)):
            predicted = outcome[rows]
            logits = head.logits(predicted).float()
            counts = (order >= step).float()
            entropy = functional.cross_entropy(logits, target, reduction="none")
            distance = functional.smooth_l1_loss(
                predicted.float() / self._scale, truth / self._scale, reduction="none"
            ).mean(dim=-1)
            total = ((entropy + self._weights.feature * distance) * counts).sum() / counts.sum().clamp(min=1)
            loss = loss + self._weights.deeper**step * total
            hit = torch.zeros_like(rows)
            hit[rows] = self._vocabulary[logits.detach().argmax(dim=-1)] == batch.choices[rows]
            hits.append(hit)
            entropies.append(float((entropy.detach() * counts).sum() / counts.sum().clamp(min=1)))
        return Measures(loss, torch.stack(hits), entropies)


def survival(hits: torch.Tensor, batch: TrainingBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Chains of draft tokens over greedy text: how many reached each level, and how many of them hit there.

    A chain that begins in row i is judged in row i + u at step u, and for as long as the text itself is what the target
    would choose.

    Returns:
        int64 [steps] each.
    """
    steps, _, rows = hits.shape
    greedy = (batch.said == batch.choices) & batch.counts
    alive = batch.counts[:, : rows - steps + 1].clone()
    reached, survived = np.zeros(steps, dtype=np.int64), np.zeros(steps, dtype=np.int64)
    for step in range(steps):
        here = slice(step, rows - steps + 1 + step)
        alive &= greedy[:, here]
        reached[step] = int(alive.sum())
        alive &= hits[step][:, here]
        survived[step] = int(alive.sum())
    return reached, survived


def untrained(spec: HeadSpec, seed: int) -> dict[str, torch.Tensor]:
    """Tensors, by our names, of a head that predicts the next feature to be the last one.

    Embedding and output matrix are not among them.
    """
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in spec.tensor_shapes().items():
        if name.endswith("norm.weight"):
            tensors[name] = torch.ones(shape)
        elif name.endswith("bias") or name in ("o.weight", "down.weight"):
            tensors[name] = torch.zeros(shape)
        elif name not in ("embed.weight", "lm_head.weight"):
            tensors[name] = torch.randn(shape, generator=draw) * shape[-1] ** -0.5
    if "fc.weight" in tensors:
        tensors["fc.weight"][:, spec.hidden_size :] = torch.eye(spec.hidden_size)
    return tensors


def head_to_train(
    spec: HeadSpec, tensors: Mapping[str, torch.Tensor], embedding: torch.Tensor, output: torch.Tensor
) -> TorchHead:
    """A head whose tensors ask for gradients.

    Args:
        embedding: [V, H], the target's; not trained.
        output: [Vd, H], the target's output matrix; not trained.
    """
    head = TorchHead(spec, {**tensors, "embed.weight": embedding, "lm_head.weight": output})
    for name, parameter in head.named_parameters():
        parameter.requires_grad_(name not in ("embed_weight", "lm_head_weight"))
    return head
