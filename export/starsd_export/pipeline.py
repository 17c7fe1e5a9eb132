"""The export as a whole: checkpoint in, checked bundle out, or nothing at all."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import onnx_ir
from transformers import PreTrainedModel

from starsd_edge import __version__
from starsd_edge.bundles.bundle import TOKENIZER_NAME, Bundle, load_bundle, write_manifest
from starsd_edge.bundles.cache import MANIFEST_NAME
from starsd_edge.bundles.fingerprints import tokenizer_fingerprint
from starsd_edge.bundles.integrity import hash_files, require_free_space, require_replaceable, staged_directory
from starsd_edge.bundles.manifest import (
    GRAPH_REVISION,
    Fingerprints,
    Graph,
    Manifest,
    ModelShape,
    PerplexityChange,
)
from starsd_edge.errors import UsageError, require_one_of
from starsd_edge.parity.files import check_manifest
from starsd_edge.parity.findings import Status
from starsd_edge.parity.passes import FAR_TOKENS, far_positions, longest_paths, random_ids
from starsd_edge.runtime.loading import open_graph
from starsd_edge.runtime.torch_model import head_width
from starsd_export.checkpoint import Checkpoint, checkpoint_tokenizer, open_checkpoint, require_memory
from starsd_export.draft_heads.fitting import TargetFeatures, features_for, last_hidden
from starsd_export.graph import OPSET, trace
from starsd_export.parity import BOUNDS, Stock, check_exactness, check_parity, observe, record
from starsd_export.quantised_graph import quantise_weights
from starsd_export.quantising.stored import StoredMatrices
from starsd_export.quantising.storing import engine_perplexity, store_weights
from starsd_export.reference import activation_ranges, range_notes, run_stock, sample_prompts
from starsd_export.tensorrt_graph import PARITY_BOUND, TENSORRT_WEIGHTS, TensorrtOptions, tensorrt_graph

GRAPH_NAME = "model.onnx"
WEIGHTS_NAME = "model.onnx.data"
TEMPLATE_NAME = "chat_template.jinja"
WEIGHTS = ("fp32", "int8")
KV_DTYPES = ("float16", "float32")
STEPS = ("reading the checkpoint", "loading the weights", "tracing the graph", "writing", "parity gate", "hashing")
_KIND = "kind of bundle"
_MAX_TREE = 64
"""Most rows of a verify pass, the root included."""
_MAX_CHUNK = 256
"""Most rows of a chunk of a prompt."""


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export.

    Attributes:
        weights: "fp32", or "int8" (weight-only); for TensorRT one of `TENSORRT_WEIGHTS`.
        kv_dtype: "float16", or "float32" as a CPU reference.
        name: name of the bundle; None takes the checkpoint's.
        source: where the checkpoint is from, for the manifest; None takes its file or directory name.
        features_for: directory of an EAGLE-3 head that the graph is to give features for; None gives those of EAGLE-1.
        tensorrt: what is particular to a graph for TensorRT; None makes one for ONNX Runtime.
        chat_template: name of one of the checkpoint's chat templates; None takes its default one.
        also_end: texts of tokens that end an answer beside those that the checkpoint lists.

    Raises:
        UsageError: an option has no such value.
    """

    weights: str = "fp32"
    kv_dtype: str = "float16"
    name: str | None = None
    source: str | None = None
    features_for: Path | None = None
    tensorrt: TensorrtOptions | None = None
    chat_template: str | None = None
    also_end: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_one_of(_KIND, "--weights", self.weights, TENSORRT_WEIGHTS if self.tensorrt else WEIGHTS)
        require_one_of(_KIND, "--kv", self.kv_dtype, ("float16",) if self.tensorrt else KV_DTYPES)
        if self.tensorrt:
            self.tensorrt.require_int4(self.weights)


def export_bundle(
    source: Path,
    destination: Path,
    options: ExportOptions | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> Bundle:
    """Export a checkpoint.

    Args:
        source: a GGUF file or a safetensors directory.
        destination: directory of the bundle; an existing bundle is replaced whole, once the new one is checked.
        progress: called with each of `STEPS` as it begins, and between the second and the third with what is done to
            weights for TensorRT.

    Raises:
        UsageError: the checkpoint cannot be used, or the destination holds something else than a bundle.
        StarsdError: no room, or the parity gate found a difference. Nothing is written then.
    """
    options = options or ExportOptions()
    destination = destination.resolve()
    require_replaceable(destination, MANIFEST_NAME, "bundle")
    progress(STEPS[0])
    checkpoint = open_checkpoint(source, options.chat_template, options.also_end)
    wanted, config = options.features_for, checkpoint.config
    features = last_hidden(config) if wanted is None else features_for(wanted, config)
    require_room(destination, checkpoint.weight_bytes, options.weights)
    with staged_directory(destination) as staging:
        progress(STEPS[1])
        model = checkpoint.load()
        manifest = describe(checkpoint, model, options, features)
        _require_sound(manifest, source)
        run = partial(run_stock, model, kv_dtype=options.kv_dtype, fused=features.fused)
        original = Stock(run)
        if options.tensorrt is not None:  # whose graph changes the model's weights
            ids = random_ids(manifest.model.vocab_size)
            original.read(longest_paths(ids))
            original.read([tuple(ids[:FAR_TOKENS])], far_positions(manifest.model.max_context))
        stored, perplexity = _store(checkpoint, model, options, progress)
        progress(STEPS[2])
        graph = _graph(model, manifest, options, features, stored)
        progress(STEPS[3])
        onnx_ir.save(graph, staging / GRAPH_NAME, external_data=WEIGHTS_NAME)
        del graph
        _write_text(staging, checkpoint)
        progress(STEPS[4])
        engine = open_graph(staging / GRAPH_NAME, manifest)
        observations = observe(engine)
        if options.tensorrt is None:
            parity = check_parity(observations, original, BOUNDS[options.weights, options.kv_dtype])
            check_exactness(engine)
        else:  # what ONNX Runtime's bits do on this machine says nothing of a GPU's
            parity = check_parity(observations, Stock(run), PARITY_BOUND)
        record(staging, manifest, engine, observations, original)
        prompts = sample_prompts(checkpoint.tokenizer, checkpoint.text.bos_id, config.vocab_size)
        ranges = activation_ranges(model, prompts, features.fused)
        if options.tensorrt is None and options.weights == "int8":
            perplexity = engine_perplexity(checkpoint, model, engine)
        progress(STEPS[5])
        notes = [*checkpoint.limits.notes, *checkpoint.notes, *filter(None, [features.note]), *range_notes(ranges)]
        findings = {"parity": parity, "fp16_range": ranges, "perplexity": perplexity, "notes": notes}
        write_manifest(staging, msgspec.structs.replace(manifest, **findings, files=hash_files(staging)))
    return load_bundle(destination, check_files=False)


def _require_sound(manifest: Manifest, source: Path) -> None:
    """Hold the manifest to the rules that `check` has, and to its own schema."""
    found = check_manifest(source, msgspec.json.decode(msgspec.json.encode(manifest), type=Manifest))
    if found.status is Status.DIFFERS:
        raise UsageError(f"{source} makes no bundle that could be used: {found.finding.partition(': ')[2]}")


def describe(
    checkpoint: Checkpoint, model: PreTrainedModel, options: ExportOptions, features: TargetFeatures
) -> Manifest:
    """The manifest, its parity report and its list of files still empty."""
    config, tensorrt = model.config, options.tensorrt
    limit = checkpoint.limits.max_context
    max_context = tensorrt.max_context(limit) if tensorrt else limit
    feature_fp = features.fingerprint(checkpoint.source_fp)
    return Manifest(
        schema_version=1,
        name=options.name or checkpoint.name,
        created_by=versions(),
        source=options.source or checkpoint.name,
        licence=checkpoint.licence,
        model=ModelShape(
            architecture=config.model_type,
            n_layers=config.num_hidden_layers,
            n_heads=config.num_attention_heads,
            n_kv_heads=config.num_key_value_heads,
            head_dim=head_width(config),
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            tokenizer_size=checkpoint_tokenizer(checkpoint).size,
            max_context=max_context,
        ),
        fingerprints=Fingerprints(tokenizer_fingerprint(checkpoint.tokenizer), checkpoint.source_fp, feature_fp),
        graph=Graph(
            file=GRAPH_NAME,
            opset=tensorrt.opset(options.weights) if tensorrt else OPSET,
            kv_strategy=tensorrt.kv_strategy if tensorrt else "append",  # type: ignore[arg-type]
            kv_dtype=options.kv_dtype,  # type: ignore[arg-type]
            weights=options.weights,  # type: ignore[arg-type]
            feature_kind=features.kind,
            feature_width=features.width,
            max_tree=_MAX_TREE,
            max_chunk=_MAX_CHUNK,
            exact_trees=options.weights == "fp32",
            revision=GRAPH_REVISION,
            tap_layers=list(features.taps),
            fusion_fp=features.fusion_fp,
            features_for=features.head,
            tensorrt=tensorrt.describe(options.weights, max_context, _MAX_TREE) if tensorrt else None,
        ),
        text=msgspec.structs.replace(
            checkpoint.text, chat_template=TEMPLATE_NAME if checkpoint.chat_template else None
        ),
        parity={},
        files={},
    )


def _store(
    checkpoint: Checkpoint, model: PreTrainedModel, options: ExportOptions, progress: Callable[[str], None]
) -> tuple[StoredMatrices | None, dict[str, PerplexityChange]]:
    """Give the model the weights of a graph for TensorRT; how they are stored, and what that changed."""
    blocks = options.tensorrt.blocks(options.weights) if options.tensorrt else None
    if options.tensorrt is None or blocks is None:
        return None, {}
    rules = options.tensorrt.writing if options.tensorrt.calibration == "own-text" else None
    return store_weights(checkpoint, model, blocks, rules, progress)


def _graph(
    model: PreTrainedModel,
    manifest: Manifest,
    options: ExportOptions,
    features: TargetFeatures,
    stored: StoredMatrices | None,
) -> onnx_ir.Model:
    if options.tensorrt is None:
        graph = trace(model, options.kv_dtype, features.fused)
        if options.weights == "int8":
            quantise_weights(graph)
        return graph
    capacity = manifest.graph.tensorrt.capacity if manifest.graph.tensorrt else 0
    return tensorrt_graph(model, options.weights, options.tensorrt, capacity, features.fused, stored)


def _write_text(staging: Path, checkpoint: Checkpoint) -> None:
    (staging / TOKENIZER_NAME).write_text(json.dumps(checkpoint.tokenizer, ensure_ascii=False), encoding="utf-8")
    if checkpoint.chat_template:
        (staging / TEMPLATE_NAME).write_text(checkpoint.chat_template, encoding="utf-8")


def versions() -> str:
    """Versions of starsd-edge and its libraries, for the manifest."""
    libraries = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in libraries)
    return f"starsd-edge {__version__} ({versions})"


# Peaks seen: 0.57 GB with a model of no size; with the default model (538 MB of float32) 2.36 GB for fp32 weights and
# 2.15 GB for int8, which is 3.3 and 2.9 bytes for each byte of the weights, 2.59 GB (3.7) for float16 for TensorRT and
# 2.82 GB (4.1) for int4 with its search.
# Larger models were not measured.
_PEAK_PER_WEIGHT_BYTE = 4.3
_LIBRARIES = 600 << 20
_GRAPH_AND_TOKENIZER = 32 << 20
# Of the weights as float32, at most: int8 keeps a float32 embedding, int4 may keep a float16 one.
_STORED_SHARE = {"fp32": 1.0, "fp16": 0.5, "int8": 0.6, "int4": 0.4}


def require_room(destination: Path, weight_bytes: int, weights: str) -> None:
    """Check the disk below `destination` and the memory.

    Args:
        weight_bytes: size of the weights as float32.
        weights: as `ExportOptions.weights`.

    Raises:
        StarsdError: says how much is missing.
    """
    stored = int(weight_bytes * _STORED_SHARE[weights])
    require_free_space(destination, stored + _GRAPH_AND_TOKENIZER, "the bundle")
    needed = _PEAK_PER_WEIGHT_BYTE * weight_bytes + _LIBRARIES
    require_memory("the export needs", needed, "export on a larger machine and copy the bundle")
