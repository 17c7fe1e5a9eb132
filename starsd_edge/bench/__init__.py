"""Measuring: figures as data and how they are written and shown, prompts of a fixed length, interleaved runs.

Pure but for the clock that is passed in. What is measured comes in as `Mode` objects, which the commands in
`starsd_edge.cli` put together from the target, the hub and the libraries they are compared with.
"""
