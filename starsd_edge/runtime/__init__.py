"""Engines: the contract that every runtime fulfils, and the ONNX Runtime and torch engines. Heavy imports stay inside
the engine that needs them.
"""
