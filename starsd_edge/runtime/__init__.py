"""Every engine that runs a language model, and the one place that opens them.

    engine            the contract that the decode loop and the causal-lm drafter rest on
    kv_engine         its rules that do not depend on what computes; every engine derives from it
    loading           which engine runs a bundle on which device
    onnx_engine       ONNX Runtime with the KV on the host
    onnx_cuda_engine  ONNX Runtime with the KV on a GPU
    tensorrt          engines of TensorRT and TensorRT-RTX
    cuda, cuda_caches CUDA calls, and a sequence's KV on a GPU
    torch_model       the graph that is exported, and run by torch as the reference

Heavy imports stay inside the engine that needs them.
"""
