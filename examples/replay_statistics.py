"""Compute statistics of a checkpointed replay on a Dask cluster: it is Zarr, so nothing needs to be restored.

    python examples/replay_statistics.py runs/pong
    python examples/replay_statistics.py runs/pong --scheduler tcp://192.168.0.10:8786

Every worker reads its share of the files, so the directory must be one that all of them see.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import dask
import dask.array
import zarr
import zarr.storage
from distributed import Client, LocalCluster

from seedflow.checkpoints import Generations, open_store
from seedflow.replay.disk.part import ReplayPart
from seedflow.replay.disk.zarr import node_path

CHUNKS_A_TASK = 250


def open_field(root: Path, part: ReplayPart, name: str) -> dask.array.Array:
    """A field over all indices that the segments hold, [indices, ...]; some are not sampled any more."""
    pieces = []
    for segment in part.segments:
        path = root / segment.path
        kind = zarr.storage.ZipStore if path.is_file() else zarr.storage.LocalStore
        stored = zarr.open_array(kind(path, read_only=True), path=node_path("fields", name), mode="r")
        piece = dask.array.from_zarr(stored, chunks=(CHUNKS_A_TASK, *stored.shape[1:]))
        pieces.append(piece[:, : part.spec.chunk])  # without the index that belongs to the next chunk
    rows = dask.array.concatenate(pieces)
    return rows.reshape(-1, *rows.shape[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description="Statistics of a checkpointed replay, on a Dask cluster.")
    parser.add_argument("path", help="a run directory, or the checkpoints in it")
    parser.add_argument("--scheduler", help="address of a Dask scheduler; default: a cluster on this machine")
    arguments = parser.parse_args()

    store = open_store(arguments.path)
    part = ReplayPart.of(store, Generations(store).restore(lambda manifest: manifest).manifest)
    if not part.segments:
        raise SystemExit(f"{store}: the replay is empty")
    field = {array.name: open_field(Path(str(store)), part, array.name) for array in part.spec.fields}

    wanted = {
        "indices": field["reward"].size,
        "episodes begun": field["first"].sum(),
        "reward, mean": field["reward"].mean(),
        "reward, standard deviation": field["reward"].std(),
        "transitions that end an episode": (field["terminated"] | field["truncated"]).mean(),
    }
    for name, array in field.items():
        if name.split("/")[0] == "observation":
            wanted[f"{name}, mean"] = array.mean(dtype="float64")
            wanted[f"{name}, standard deviation"] = array.std(dtype="float64")

    cluster = LocalCluster(dashboard_address=None) if arguments.scheduler is None else arguments.scheduler
    with Client(cluster) as client:
        print(
            f"{len(part.segments)} segments of {store} on {len(client.scheduler_info()['workers'])} workers"
        )
        for name, value in zip(wanted, dask.compute(*wanted.values()), strict=True):
            print(f"{name}: {value:.6g}")
    if arguments.scheduler is None:
        cluster.close()


if __name__ == "__main__":
    main()
