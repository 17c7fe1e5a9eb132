"""Everything beside the target model: the decode loop and the link to the hub (TensorRT engines and an HTTP API come later)."""
