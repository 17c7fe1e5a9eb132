"""What a star gives before it is built: the closed-form law, the simulator, draft sizes and times of verify passes.
Pure.
"""
