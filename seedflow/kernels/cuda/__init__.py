"""CUDA twins of the kernels, written with Numba for `numba-cuda` and launched on torch's streams.

`seedflow.kernels.registry` imports `seedflow.kernels.cuda.twins` when the first CUDA tensor comes along;
nothing here is imported before. Each operation has a module with its ``@cuda.jit`` kernels and, beside
them, the twin that launches them. What the modules share:

==============  ================================================================================
`installation`  whether numba-cuda is there, and how to get it
`target`        the one place that imports ``numba.cuda``
`arguments`     tensors as the plain numbers that a kernel takes
`launcher`      a kernel, its signature and launch rule; three ways to launch it
`simulator`     the launcher of Numba's CUDA simulator, which needs no GPU
`interop`       arrays of CuPy and others as tensors, and back, without a copy
==============  ================================================================================
"""
