"""The TensorRT engine: plans of TensorRT 10.3 to 11 and of TensorRT-RTX on the `Engine` contract.

    opening    finds the engine of a bundle that fits this machine, and checks it before anything opens it
    plan       deserialises it, and holds it to its manifest and to the bundle's graph
    passes     what a pass takes in and gives out
    captured   execution contexts, and passes of one shape as one launch
    engine     all of it behind the contract

TensorRT and `cuda-python` come in as arguments, so that nothing here needs them to be imported.
"""
