"""A head run by torch: the reference of every other engine, and what runs it on a GPU."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.nn import functional

from starsd_edge.errors import BundleError, UsageError
from starsd_edge.heads.draft_bundle import TENSORS_NAME, DraftBundle, draft_ids, embedding_rows
from starsd_edge.heads.engine import MOST_CANDIDATES, HeadRows, HeadSpec, HeadStep
from starsd_edge.heads.torch_captured import Capture, HeadInputs, HeadOutputs, HeadPasses, capture_cuda
from starsd_edge.heads.torch_head import TorchHead


class TorchHeadEngine:
    """See `HeadEngine`.

    Args:
        head: of one floating-point type, on one device.
        candidates: given below each row.
        capture: captures passes of few rows, to replay them; None runs all of them kernel by kernel.
    """

    def __init__(self, head: TorchHead, candidates: int = MOST_CANDIDATES, capture: Capture | None = None) -> None:
        self._head = head
        self._count = min(candidates, head.spec.draft_vocab_size)
        self._dtype = head.lm_head_weight.dtype
        self._device = head.lm_head_weight.device
        self._run = self.run if capture is None else HeadPasses(self.run, capture)

    @property
    def spec(self) -> HeadSpec:
        """See `HeadEngine`."""
        return self._head.spec

    @property
    def kv_bytes(self) -> int:
        """See `HeadEngine`."""
        return int(self._dtype.itemsize)

    def zeros(self, *shape: int) -> torch.Tensor:
        """See `HeadEngine`."""
        return torch.zeros(shape, dtype=self._dtype, device=self._device)

    def forward(self, rows: HeadRows) -> HeadStep:
        """See `HeadEngine`."""
        with torch.inference_mode():
            inputs = HeadInputs(**{name: self._moved(part) for name, part in vars(rows).items()})
            step = self._run(inputs._replace(features=inputs.features.to(self._dtype)))
            host = (part.cpu().numpy() for part in (step.predicted.float(), step.tokens, step.scores))
            predicted, tokens, scores = host
        return HeadStep(predicted, step.keys, step.values, tokens, scores)

    def run(self, inputs: HeadInputs) -> HeadOutputs:
        """`forward` on tensors, kernel by kernel."""
        embedded = functional.embedding(inputs.ids, self._head.embed_weight)
        predicted, keys, values, logits = run_head(self._head, embedded, *inputs[1:])
        logits = logits.float()
        tokens = _likeliest(logits, self._count)
        return HeadOutputs(predicted, keys, values, tokens, log_probabilities(logits, tokens))

    def _moved(self, part: npt.NDArray[np.generic] | torch.Tensor) -> torch.Tensor:
        """What comes from the host, on the device; K and V are there."""
        return part if isinstance(part, torch.Tensor) else torch.from_numpy(part).to(self._device)


def run_head(
    head: TorchHead,
    embedded: torch.Tensor,
    features: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    places: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    lengths: torch.Tensor,
    late_keys: torch.Tensor,
    late_values: torch.Tensor,
    seen: torch.Tensor,
    wanted: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`HeadEngine.forward` on tensors, from embeddings [T, H]: predicted features, keys, values, logits."""
    entered, residual = head.enter(embedded, features)
    new_keys, new_values = (_by_place(rows, slots) for rows in head.keys_values(entered, positions))
    near_keys, near_values = torch.cat((late_keys, new_keys), dim=2), torch.cat((late_values, new_values), dim=2)
    queries = _by_place(head.queries(entered, positions), slots)
    mixed = _attend(queries, keys, values, lengths, near_keys, near_values, seen)
    predicted = head.leave(residual, mixed.index_select(0, places))
    return predicted, new_keys, new_values, head.logits(predicted.index_select(0, wanted))


def log_probabilities(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """float32 [W, K] of these tokens [W, K], of which the first is the likeliest, among float32 logits [W, V]."""
    found = logits.gather(1, tokens)
    best = found[:, :1]
    scores: torch.Tensor = found - best - (logits - best).exp().sum(dim=-1, keepdim=True).log()
    return scores


def _likeliest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """int64 [W, count] of float32 logits [W, V], the lowest id first among equals.

    `torch.topk` does not say which of equals it takes, so there are none here: the bits of a float, read as an integer,
    are in its order (mirrored below zero), and the id makes the lower half of each key.
    """
    bits = (logits + 0.0).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    ids = torch.arange(logits.shape[1], device=logits.device)
    return torch.topk((ordered << 32) - ids, count).indices


def _by_place(rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """[B, heads, R, D] from rows [T, heads, D]."""
    lines, places = slots.shape
    return rows.index_select(0, slots.reshape(-1)).view(lines, places, *rows.shape[1:]).transpose(1, 2)


def _attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    lengths: torch.Tensor,
    near_keys: torch.Tensor,
    near_values: torch.Tensor,
    seen: torch.Tensor,
) -> torch.Tensor:
    """[B * R, heads * D] from queries [B, heads, R, D].

    True rows and draft tokens are multiplied apart and meet only in the softmax: to join them would copy all true rows
    once for each pass.
    """
    lines, heads, places, width = queries.shape
    kv_heads, far = keys.shape[1], keys.shape[2]
    grouped = queries.reshape(lines, kv_heads, -1, width) * width**-0.5
    least = torch.finfo(torch.float32).min
    own = torch.arange(far, device=lengths.device)[None, :] < lengths[:, None]
    far_scores = torch.where(own[:, None, None, :], torch.matmul(grouped, keys.transpose(2, 3)).float(), least)
    near_scores = torch.matmul(grouped, near_keys.transpose(2, 3)).float()
    near_scores = near_scores.view(lines, kv_heads, heads // kv_heads, places, near_keys.shape[2])
    near_scores = torch.where(seen[:, None, None, :, :], near_scores, least).view(
        lines, kv_heads, -1, near_keys.shape[2]
    )
    weights = torch.cat((far_scores, near_scores), dim=-1).softmax(dim=-1).to(values.dtype)
    mixed = torch.matmul(weights[..., :far], values) + torch.matmul(weights[..., far:], near_values)
    by_row = mixed.view(lines, heads, places, width).transpose(1, 2)
    return by_row.reshape(lines * places, heads * width)


_OUTPUT = "lm_head.weight"


def open_torch_head(bundle: DraftBundle, device: str, precision: str, threads: int | None) -> TorchHeadEngine:
    """Load the head.

    Args:
        device: "cpu" or "cuda".
        precision: a floating-point type by torch's name of it.
        threads: of this process on a CPU, None for torch's own choice.

    Raises:
        UsageError: torch finds no GPU.
        BundleError: a file does not fit the manifest; it is named.
    """
    if device == "cuda" and not torch.cuda.is_available():
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs alone"
        raise UsageError(
            f"--device cuda finds no GPU (torch {torch.__version__}, built for {built}): see `nvidia-smi`, or use "
            "--device cpu"
        )
    if device == "cpu" and threads is not None:
        torch.set_num_threads(threads)
    dtype = getattr(torch, precision)
    tensors = {name: tensor.to(dtype) for name, tensor in read_tensors(bundle).items()}
    # The built head moves, and not its tensors alone: it makes buffers of its own, like the frequencies of its RoPE.
    head = TorchHead(bundle.manifest.spec, tensors).to(device)
    return TorchHeadEngine(head, capture=capture_cuda if device == "cuda" else None)


def read_tensors(bundle: DraftBundle) -> dict[str, torch.Tensor]:
    """All tensors of the head by our names, as they are stored.

    Raises:
        BundleError: a file cannot be read, or a tensor is missing, too much or of another shape.
    """
    path = bundle.path / TENSORS_NAME
    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise BundleError(f"{path} cannot be read ({error}): make the bundle again") from error
    embedding = torch.from_numpy(np.array(embedding_rows(bundle)))
    tensors["embed.weight"] = embedding
    tensors.setdefault(_OUTPUT, embedding[torch.from_numpy(draft_ids(bundle))])
    shapes = bundle.manifest.spec.tensor_shapes()
    wrong = sorted(
        name for name in {*shapes, *tensors} if name not in tensors or tuple(tensors[name].shape) != shapes.get(name)
    )
    if wrong:
        raise BundleError(f"{path} does not fit the manifest: see {', '.join(wrong[:3])}; make the bundle again")
    return tensors
