"""Which extra brings which library, so that a missing one is a line with the command that mends it."""

from __future__ import annotations

from starsd_edge.errors import install_extra

EXTRA_OF = {
    "onnxruntime": "cpu",
    "prometheus_client": "server",
    "matplotlib": "bench",
    "simpy": "plan",
    "llguidance": "json",
    "torch": "export",
    "transformers": "export",
    "onnx": "export",
    "onnxscript": "export",
    "onnx_ir": "export",
    "safetensors": "export",
    "gguf": "export",
    "huggingface_hub": "export",
}


def missing_extra(module: str | None) -> str | None:
    """One line that says how to install what `module` (dotted name, from a ModuleNotFoundError) belongs to, or None if
    it is no extra of ours.
    """
    library = (module or "").partition(".")[0]
    extra = EXTRA_OF.get(library)
    if extra is None:
        return None
    return f"this needs {library}, which is not installed: {install_extra(extra)}"
