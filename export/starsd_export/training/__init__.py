"""Training EAGLE heads: texts, features, the unrolled loss, evaluation."""
