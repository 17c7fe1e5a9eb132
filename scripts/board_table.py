"""Print the tables of docs/jetson.md: which models fit which board. Computed by formulas, nothing is measured.

    python scripts/board_table.py             prints them
    python scripts/board_table.py --write     puts them into the page

A test compares the page with what this prints.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from starsd_edge.planning.memory import GIB, KIB, TargetMemory
from starsd_export.engines.profiles import build_bytes, plan_bytes

PAGE = Path(__file__).parents[1] / "docs" / "jetson.md"
BEGIN, END = "<!-- boards -->", "<!-- end -->"
CONTEXT = 4096
"""Tokens of question and answer that a model has to have room for."""
ROWS = 256 + 64
"""Of a prefill chunk and a tree: places in the KV beyond the context."""
FIRMWARE = 0.08
"""Share of the memory that Linux does not see; an 8 GB board shows 7.4 GiB."""
SYSTEM_GIB = 0.7
"""What Linux takes without a desktop and without anybody's programs."""
BLOCK = 32
"""Weights in a row that share a float16 scale in int8 and int4."""
BYTES = {"fp16": 2.0, "int8": 1 + 2 / BLOCK, "int4": 0.5 + 2 / BLOCK}
"""Of a weight. With int4 the parts v, o and down of the layers, the embedding and the head are int8; with int8 the
embedding and the head are float16.
"""
FLOAT16, FLOAT32 = 2, 4
BOARDS = {"Orin Nano 8": 8, "Orin NX 8": 8, "Orin NX 16": 16, "AGX Orin 32": 32, "AGX Orin 64": 64, "Thor 128": 128}


@dataclass(frozen=True)
class Model:
    """A model's shape, as its config.json states it.

    Attributes:
        is_tied: one matrix is embedding and head.
        norms_heads: Q and K of each head go through a norm, as in Qwen3.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    is_tied: bool
    norms_heads: bool = False

    @property
    def layer_parameters(self) -> int:
        """L (2 H (H_q + H_kv) D + 3 H I)."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def wide_parameters(self) -> int:
        """L (H (H_q + H_kv) D + H I): of the parts that int4 keeps in int8."""
        attention = self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + self.hidden * self.intermediate)

    @property
    def end_parameters(self) -> int:
        """V H, twice where the head is a matrix of its own."""
        return (1 if self.is_tied else 2) * self.vocabulary * self.hidden

    @property
    def norm_parameters(self) -> int:
        """(2 L + 1) H, and 2 L D where heads have norms."""
        return (2 * self.layers + 1) * self.hidden + (2 * self.layers * self.head_dim if self.norms_heads else 0)

    def weight_bytes(self, precision: str) -> int:
        """Of the graph that an engine is built from."""
        wide, ends = (BYTES["int8"], BYTES["int8"]) if precision == "int4" else (BYTES[precision], FLOAT16)
        layers = BYTES[precision] * (self.layer_parameters - self.wide_parameters) + wide * self.wide_parameters
        return round(layers + ends * self.end_parameters + FLOAT16 * self.norm_parameters)

    @property
    def kv_bytes(self) -> int:
        """Of a token: 2 L H_kv D numbers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * FLOAT16

    def running(self, precision: str) -> float:
        """Bytes that a target with room for `CONTEXT` tokens takes: engine, KV, the scores of one layer's attention,
        and the process beside them.
        """
        scores = ROWS * (CONTEXT + ROWS) * self.heads * FLOAT32
        engine = plan_bytes(self.weight_bytes(precision))
        return TargetMemory(engine, self.kv_bytes, CONTEXT + ROWS).total + scores

    def building(self, precision: str) -> int:
        """Bytes that building its engine takes at most; `export --engine` refuses where fewer are free."""
        return build_bytes(self.weight_bytes(precision))


MODELS = {
    "SmolLM2-135M": Model(30, 576, 9, 3, 64, 1536, 49152, is_tied=True),
    "SmolLM2-360M": Model(32, 960, 15, 5, 64, 2560, 49152, is_tied=True),
    "Qwen3-0.6B": Model(28, 1024, 16, 8, 128, 3072, 151936, is_tied=True, norms_heads=True),
    "Llama-3.2-1B": Model(16, 2048, 32, 8, 64, 8192, 128256, is_tied=True),
    "SmolLM2-1.7B": Model(24, 2048, 32, 32, 64, 8192, 49152, is_tied=True),
    "SmolLM3-3B": Model(36, 2048, 16, 4, 128, 11008, 128256, is_tied=True),
    "Llama-3.2-3B": Model(28, 3072, 24, 8, 128, 8192, 128256, is_tied=True),
    "Qwen3-4B": Model(36, 2560, 32, 8, 128, 9728, 151936, is_tied=True, norms_heads=True),
    "Mistral-7B": Model(32, 4096, 32, 8, 128, 14336, 32768, is_tied=False),
    "Llama-3.1-8B": Model(32, 4096, 32, 8, 128, 14336, 128256, is_tied=False),
    "Qwen3-8B": Model(36, 4096, 32, 8, 128, 12288, 151936, is_tied=False, norms_heads=True),
    "Qwen3-14B": Model(40, 5120, 40, 8, 128, 17408, 151936, is_tied=False, norms_heads=True),
    "Qwen3-32B": Model(64, 5120, 64, 8, 128, 25600, 151936, is_tied=False, norms_heads=True),
}


def free_bytes(board_gib: float) -> float:
    """What a board without a desktop has for a target."""
    return (board_gib * (1 - FIRMWARE) - SYSTEM_GIB) * GIB


def best(model: Model, board_gib: float) -> str:
    """The finest weights with which the model runs on a board, those first whose engine it can also build."""
    free = free_bytes(board_gib)
    runs = [precision for precision in BYTES if model.running(precision) <= free]
    builds = [precision for precision in runs if model.building(precision) <= free]
    if builds:
        return builds[0]
    return f"({runs[0]})" if runs else "-"


def tables() -> str:
    """Both, in Markdown."""
    lines = ["| board | memory for a target |", "|---|---|"]
    lines += [f"| {name} GB | {free_bytes(gib) / GIB:.1f} GiB |" for name, gib in BOARDS.items()]
    lines += ["", f"| model | {' | '.join(BOARDS)} |", f"|---|{'---|' * len(BOARDS)}"]
    for name, model in MODELS.items():
        lines.append(f"| {name} | {' | '.join(best(model, gib) for gib in BOARDS.values())} |")
    weights = " | ".join(f"{precision}: weights, running, building" for precision in BYTES)
    lines += ["", f"| model | KV per token | {weights} |", f"|---|---|{'---|' * len(BYTES)}"]
    for name, model in MODELS.items():
        cells = [
            f"{model.weight_bytes(each) / GIB:.1f}, {model.running(each) / GIB:.1f}, {model.building(each) / GIB:.0f}"
            for each in BYTES
        ]
        lines.append(f"| {name} | {model.kv_bytes / KIB:.1f} KiB | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables, or write them."""
    if sys.argv[1:] != ["--write"]:
        print(tables())
        return
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{tables()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
