"""What this machine is and how it is set: board, power, clocks, memory, heat, GPUs. Facts only; `doctor` judges."""
