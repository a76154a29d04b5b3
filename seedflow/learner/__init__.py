"""The learner role: inference, prefetch and training loops, weights, checkpoints."""
