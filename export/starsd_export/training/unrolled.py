"""A head over whole texts, several guesses deep, as drafting will run it.

The first guess of a draft rests on true features only, the second on one predicted feature, and so on. At step u
(from 0) the query of row i therefore sees keys and values of true features up to row i - u and predicted ones after:
those of row i - u + 1 from step 1, ..., its own from step u. All rows of a text are guessed from at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from starsd_edge.heads.torch_head import TorchHead

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
