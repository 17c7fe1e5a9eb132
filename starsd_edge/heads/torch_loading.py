"""A draft bundle's head for torch."""

from __future__ import annotations

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from starsd_edge.errors import BundleError, UsageError
from starsd_edge.heads.captured import capture_cuda
from starsd_edge.heads.draft_bundle import TENSORS_NAME, DraftBundle, draft_ids, embedding_rows
from starsd_edge.heads.torch_engine import TorchHeadEngine
from starsd_edge.heads.torch_head import TorchHead

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
    tensors = {name: tensor.to(device, dtype) for name, tensor in read_tensors(bundle).items()}
    capture = capture_cuda if device == "cuda" else None
    return TorchHeadEngine(TorchHead(bundle.manifest.spec, tensors), capture=capture)


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
