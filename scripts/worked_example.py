"""Print the figures of docs/worked-example-8b.md: computed from a model's shape by the formulas below, not measured.

    python scripts/worked_example.py

The shape is that of Llama-3.1-8B as its config.json states it. A test compares the page with what this prints.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from starsd_edge.bundles.manifest import ModelShape
from starsd_edge.protocol.codec import encode
from starsd_edge.protocol.messages import Draft, DraftRequest

SHAPE = ModelShape(
    architecture="llama",
    n_layers=32,
    n_heads=32,
    n_kv_heads=8,
    head_dim=128,
    hidden_size=4096,
    vocab_size=128256,
    tokenizer_size=128256,
    max_context=131072,
)
INTERMEDIATE = 14336
"""Stands in config.json and not in the manifest: no runtime needs it."""
TIED = False

SERVICE_S = 0.012
"""Assumed: the hub's time for one draft."""
BANDWIDTHS = {"Jetson AGX Orin, 64 GB": 204.8e9, "Jetson AGX Thor, 128 GB": 273e9}
"""Bytes per second of memory, as their maker states them."""
ROUND_TRIPS_S = (0.001, 0.020, 0.060)
ACCEPTED = 3
"""Assumed: tokens accepted in a round; a + 1 rows go up."""
NODES = 60
GROUP, SCALE_BYTES = 32, 4  # int8: one float32 scale for so many weights


def embedding_parameters(shape: ModelShape) -> int:
    """V H."""
    return shape.vocab_size * shape.hidden_size


def linear_parameters(shape: ModelShape) -> int:
    """L (2 H (H_q + H_kv) D + 3 H I) + V H: projections, and the head, once exported a matrix of its own."""
    attention = 2 * shape.hidden_size * shape.head_dim * (shape.n_heads + shape.n_kv_heads)
    return shape.n_layers * (attention + 3 * shape.hidden_size * INTERMEDIATE) + embedding_parameters(shape)


def norm_parameters(shape: ModelShape) -> int:
    """(2 L + 1) H."""
    return (2 * shape.n_layers + 1) * shape.hidden_size


def parameters(shape: ModelShape) -> int:
    """All of the checkpoint's."""
    tied = embedding_parameters(shape) if TIED else 0
    return embedding_parameters(shape) + linear_parameters(shape) + norm_parameters(shape) - tied


def weight_bytes(shape: ModelShape, weights: str) -> int:
    """Of a bundle: float32 or float16 throughout, or int8 projections beside a float32 embedding."""
    if weights != "int8":
        return parameters(shape) * {"fp32": 4, "fp16": 2}[weights]
    linear = linear_parameters(shape)
    return linear + linear * SCALE_BYTES // GROUP + 4 * (embedding_parameters(shape) + norm_parameters(shape))


def kv_bytes_per_token(shape: ModelShape) -> int:
    """2 L H_kv D numbers of float16."""
    return 2 * shape.n_layers * shape.n_kv_heads * shape.head_dim * 2


def request_bytes() -> int:
    """A DRAFT_REQUEST deep in a long text, as the codec writes it, with a + 1 rows of ids."""
    ids = np.full(ACCEPTED + 1, SHAPE.vocab_size - 1).tolist()
    request = DraftRequest(
        tag=bytes(16), epoch=1000, base_len=8000, first_row=7996, ids=ids, max_nodes=NODES, max_depth=8, branching=4
    )
    return len(encode(request))


def draft_bytes() -> int:
    """A DRAFT of a full tree, as the codec writes it."""
    draft = Draft(
        tag=bytes(16),
        epoch=1000,
        base_len=8000,
        ids=[SHAPE.vocab_size - 1] * NODES,
        parents=[-1, *range(NODES - 1)],
        queue_us=10_000,
        service_us=12_000,
        hub_us=22_000,
    )
    return len(encode(draft))


def verify_seconds(bandwidth: float) -> float:
    """No pass can take less than reading every float16 weight but the embedding's once."""
    return 2 * linear_parameters(SHAPE) / bandwidth


def targets_that_fill_the_hub(return_s: float) -> int:
    """N_full = ceil(1 + Z / S)."""
    return math.ceil(1 + return_s / SERVICE_S)


def main() -> None:
    """Print the tables."""
    print("```json")
    print(msgspec.json.format(msgspec.json.encode(SHAPE), indent=2).decode())
    print("```\n")
    print("| what | size |\n|---|---|")
    print(f"| parameters | {parameters(SHAPE):,} |")
    for weights in ("fp32", "fp16", "int8"):
        print(f"| weights, {weights} | {weight_bytes(SHAPE, weights) / 1e9:.2f} GB |")
    token = kv_bytes_per_token(SHAPE)
    print(f"| KV of one token, float16 | {token // 1024} KiB |")
    for context in (4096, 32768, SHAPE.max_context):
        print(f"| KV of {context:,} tokens | {token * context / 2**30:.1f} GiB |")
    print(f"| features of one token, float16 | {2 * SHAPE.hidden_size // 1024} KiB |\n")
    up, down = request_bytes(), draft_bytes()
    features = 2 * SHAPE.hidden_size * (ACCEPTED + 1)
    print("| per round | bytes |\n|---|---|")
    print(f"| up: request with {ACCEPTED + 1} rows of ids | {up} |")
    print(f"| down: tree of {NODES} nodes | {down} |")
    print(f"| up, if the drafter wanted features | {up:,} + {features:,} |\n")
    heads = " | ".join(f"N_full at {1000 * trip:.0f} ms" for trip in ROUND_TRIPS_S)
    print(f"| device | verify, at least | {heads} |\n|---|---|---|---|---|")
    for device, bandwidth in BANDWIDTHS.items():
        verify = verify_seconds(bandwidth)
        filled = " | ".join(str(targets_that_fill_the_hub(verify + trip)) for trip in ROUND_TRIPS_S)
        print(f"| {device} | {1000 * verify:.0f} ms | {filled} |")


if __name__ == "__main__":
    main()
