"""How one environment step travels: shared rows, doorbells, leases, and gRPC for remote actors.

Actor side: `seedflow.rpc.client.connect` gives a `Connection`. Learner side: the inference loop drives a
`seedflow.rpc.transport.LearnerTransport`, either `seedflow.rpc.control.ControlServer` or, in one process,
`seedflow.rpc.inline.InlineTransport`. Nothing here imports torch, numba or dask.
"""
