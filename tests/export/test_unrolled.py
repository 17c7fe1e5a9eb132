"""Training sees exactly what drafting will: the unrolled head against one guess after the other over a cache."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from starsd_edge.heads.torch_engine import TorchHeadEngine  # noqa: E402
from starsd_edge.heads.torch_head import TorchHead  # noqa: E402
from starsd_edge.speculation.tree import DraftShape  # noqa: E402
from starsd_export.training.learning import unroll  # noqa: E402
from tests.support.random_heads import (  # noqa: E402
    DRAFT_VOCAB,
    WIDTH,
    WatchedEngine,
    drafter_on,
    feed,
    random_head,
    rows_of_text,
    tree_of,
)

ROWS = 7
STEPS = 4


def one_row(head: TorchHead, embedded, feature, position: int, keys, values):
    """The predicted feature of one row over cached rows, its own among them; with the caches that it leaves."""
    where = torch.tensor(position)
    entered, residual = head.enter(embedded, feature)
    key, value = head.keys_values(entered, where)
    keys, values = [*keys, key], [*values, value]
    group = head.spec.n_heads // head.spec.n_kv_heads
    stacked = torch.stack(keys).repeat_interleave(group, dim=1)
    scores = torch.einsum("hd,shd->hs", head.queries(entered, where), stacked) * head.spec.head_dim**-0.5
    mixed = torch.einsum("hs,shd->hd", scores.softmax(-1), torch.stack(values).repeat_interleave(group, dim=1))
    return head.leave(residual, mixed.flatten()), keys, values


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_every_step_of_the_unrolling_is_what_drafting_one_by_one_gives(kind: str) -> None:
    head = random_head(kind)
    draw = torch.Generator().manual_seed(4)
    embedded = torch.randn((1, ROWS, WIDTH), generator=draw)
    features = torch.randn((1, ROWS, WIDTH), generator=draw)

    steps = list(unroll(head, embedded, features, STEPS))

    keys: list = []
    values: list = []
    for first in range(ROWS):
        predicted, keys, values = one_row(head, embedded[0, first], features[0, first], first, keys, values)
        guessed_keys, guessed_values = keys, values
        torch.testing.assert_close(steps[0][0, first], predicted, rtol=1e-4, atol=1e-4)
        for step in range(1, min(STEPS, ROWS - first)):
            row = first + step
            predicted, guessed_keys, guessed_values = one_row(
                head, embedded[0, row], predicted, row, guessed_keys, guessed_values
            )
            torch.testing.assert_close(steps[step][0, row], predicted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_the_drafter_gives_the_scores_that_training_sees(kind: str) -> None:
    """The text goes on with what the drafter guesses, so that both see the same tokens at every depth."""
    head = random_head(kind)
    for prefix in range(1, ROWS):
        engine = WatchedEngine(TorchHeadEngine(head, DRAFT_VOCAB))
        drafter = drafter_on(engine)
        ids, features = rows_of_text(ROWS + STEPS)
        drafter.open(1, 0, 0)
        feed(drafter, 1, 0, ids[:prefix], features[:prefix])
        guesses = tree_of(drafter, 1, DraftShape(STEPS, STEPS)).tokens.tolist()
        drafted = np.stack([each.scores[0] for each in engine.passes]).astype(np.float32)

        text = torch.tensor([ids[:prefix] + guesses[: STEPS - 1]])
        true = torch.from_numpy(features[: text.shape[1]].astype("float32"))[None]
        trained = unroll(head, torch.nn.functional.embedding(text, head.embed_weight), true, STEPS)
        rows = [head.logits(step[0, prefix - 1 + number]).log_softmax(-1) for number, step in enumerate(trained)]

        torch.testing.assert_close(torch.stack(rows), torch.from_numpy(drafted), rtol=1e-4, atol=1e-4)
