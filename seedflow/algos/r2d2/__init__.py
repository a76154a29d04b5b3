"""R2D2, recurrent replay distributed DQN (Kapturowski et al. 2019, openreview.net/forum?id=r1lyTjAqYX)."""
