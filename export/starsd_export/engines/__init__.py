"""From a bundle's graph to an engine of TensorRT or TensorRT-RTX. Needs no torch: a Jetson builds its own engines."""
