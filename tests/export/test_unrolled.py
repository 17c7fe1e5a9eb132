"""Training sees exactly what drafting will: the unrolled head against one guess after the other over a cache."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from starsd_edge.heads.spec import HeadSpec  # noqa: E402
from starsd_edge.heads.torch_head import TorchHead  # noqa: E402
from starsd_export.training.unrolled import unroll  # noqa: E402

ROWS = 7
STEPS = 4


def random_head(kind: str) -> TorchHead:
    spec = HeadSpec(
        kind=kind,  # type: ignore[arg-type]
        hidden_size=24,
        intermediate_size=40,
        n_heads=4,
        n_kv_heads=2,
        head_dim=8,
        vocab_size=50,
        draft_vocab_size=20,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        max_positions=64,
        fc_bias=kind == "eagle",
    )
    draw = torch.Generator().manual_seed(3)
    return TorchHead(
        spec, {name: torch.randn(shape, generator=draw) * 0.3 for name, shape in spec.tensor_shapes().items()}
    )


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
    embedded = torch.randn((1, ROWS, 24), generator=draw)
    features = torch.randn((1, ROWS, 24), generator=draw)

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
