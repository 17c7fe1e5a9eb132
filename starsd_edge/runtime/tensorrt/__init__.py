"""The TensorRT engine: plans that `export --engine` built, with fp16 KV caches on the device."""
