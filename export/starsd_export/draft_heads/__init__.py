"""EAGLE heads on disk: public checkpoints in, draft bundles out."""
