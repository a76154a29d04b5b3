"""The learner on a GPU: streams, events, pinned memory and CUDA graphs.

What the loops do is the same on every device; `CudaBackend` gives them parts that order their work there.

- `gpu`: what is asked of CUDA, as an interface that tests can stand in for.
- `rings`, `weights`: unroll slots, batches and weights from one stream to another, with events.
- `rows`: rows of the slab on their way to the GPU.
- `forward`, `graphs`: an inference batch in one CUDA graph for each batch size.
"""
