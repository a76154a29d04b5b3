"""Whole episodes of a checkpointed replay as a Minari dataset."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from seedflow.checkpoints import Generations, Manifest, Store
from seedflow.errors import CheckpointDamaged, CheckpointError, ConfigError, DamagedChunk
from seedflow.replay.chunks import Chunk
from seedflow.replay.codec import decode_into
from seedflow.replay.disk.load import load_replay
from seedflow.replay.layout import ReplaySpec
from seedflow.replay.snapshot import Snapshot
from seedflow.specs import ArraySpec, EnvSpec

FLAGS = ("first", "terminated", "truncated")
NEEDED = (*FLAGS, "reward", "action")
MAX_EPISODE_BYTES = 4 * 2**30
"""An episode is put together in memory."""


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes
    ----------
    incomplete
        Beginnings and ends of episodes whose other parts are not in the replay; they are left out.
    """

    path: str
    dataset_id: str
    generation: int
    episodes: int
    transitions: int
    incomplete: int


@dataclass(frozen=True)
class Episode:
    """Indices `begin` to `end`, both included, of a run of chunks."""

    chunks: tuple[Chunk, ...]
    begin: int
    end: int

    @property
    def transitions(self) -> int:
        return self.end - self.begin


def export_minari(store: Store, out: Path, generation: int | None = None) -> Exported:
    """Write the whole episodes of a replay as a Minari dataset, without loss.

    Parameters
    ----------
    out
        Directory of the dataset, which must not exist; ``minari.MinariDataset(out)`` opens it.
    generation
        By default the newest that is whole.

    Raises
    ------
    ConfigError
        When Minari is not installed, or `out` exists.
    CheckpointError
        When there is no replay that can be read, or its fields do not make up episodes.
    """
    _check_minari()
    if out.exists():
        raise ConfigError(f"--minari {out} exists already; choose a new directory")

    def read(manifest: Manifest) -> tuple[Manifest, Snapshot]:
        return manifest, load_replay(store, manifest).snapshot

    manifest, snapshot = Generations(store).restore(read, generation).value
    missing = [name for name in NEEDED if name not in {array.name for array in snapshot.spec.fields}]
    if missing:
        raise CheckpointError(
            f"the replay in {store} has no fields {missing}, without which there are no episodes"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        dataset_id, episodes, incomplete = _dataset_id(out), list(find_episodes(snapshot)), 0
        incomplete = sum(episode is None for episode in episodes)
        whole = [episode for episode in episodes if episode is not None and episode.transitions > 0]
        _write(temporary / "dataset", dataset_id, snapshot, whole, _env_spec(manifest))
        (temporary / "dataset").rename(out)
    except DamagedChunk as error:
        raise CheckpointDamaged(f"a chunk of the replay in {store} cannot be decoded: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    transitions = sum(episode.transitions for episode in whole)
    return Exported(str(out), dataset_id, manifest.generation, len(whole), transitions, incomplete)


def find_episodes(snapshot: Snapshot) -> Iterator[Episode | None]:
    """The episodes in a replay; None for one whose beginning or end is not there.

    An episode is whole from an index with ``first`` to the last before the next one. The end of what is
    stored of a lane counts as an episode's end where ``truncated`` is set: ``terminated`` alone may be the
    loss of a life, after which the episode goes on.
    """
    for chunks in _runs(snapshot.chunks):
        flags = {name: _field(snapshot.spec, chunks, name) for name in FLAGS}
        begins = np.flatnonzero(flags["first"]).tolist()
        length = len(flags["first"])
        if not begins or begins[0] > 0:
            yield None
        for begin, after in pairwise([*begins, length]):
            ended = flags["truncated"][after - 1] or (flags["terminated"][after - 1] and after < length)
            yield _cut(snapshot.spec, chunks, begin, after - 1) if ended else None


def _cut(spec: ReplaySpec, chunks: tuple[Chunk, ...], begin: int, end: int) -> Episode:
    """An episode with the chunks that it needs alone."""
    low = begin // spec.chunk
    high = min(end // spec.chunk + 1, len(chunks))
    return Episode(chunks[low:high], begin - low * spec.chunk, end - low * spec.chunk)


def _runs(chunks: Iterable[Chunk]) -> Iterator[tuple[Chunk, ...]]:
    """Unbroken chains of chunks."""
    run: list[Chunk] = []
    for chunk in sorted(chunks, key=lambda chunk: (chunk.lane, chunk.position)):
        if run and (chunk.lane, chunk.position) != (run[-1].lane, run[-1].position + 1):
            yield tuple(run)
            run = []
        run.append(chunk)
    if run:
        yield tuple(run)


def _field(spec: ReplaySpec, chunks: tuple[Chunk, ...], name: str) -> NDArray[Any]:
    """A field over all indices of a chain of chunks, [len(chunks) * chunk + bootstrap, ...]."""
    number = [array.name for array in spec.fields].index(name)
    array = spec.fields[number]
    out = np.empty((len(chunks) * spec.chunk + spec.bootstrap, *array.shape), array.dtype)
    for place, chunk in enumerate(chunks):
        begin = place * spec.chunk
        decode_into(chunk.data[number], out[begin : begin + spec.rows], spec.compressed(array))
    return out


def _write(
    path: Path, dataset_id: str, snapshot: Snapshot, episodes: list[Episode], env: EnvSpec | None
) -> None:
    from minari import __version__
    from minari.dataset.minari_storage import MinariStorage

    actions = env.num_actions if env is not None else _largest_action(snapshot, episodes) + 1
    start = env.action_start if env is not None else 0
    leaves = [array for array in snapshot.spec.fields if array.name.split("/")[0] == "observation"]
    storage = MinariStorage.new(
        path,
        observation_space=_nested_space(leaves),
        action_space=gym.spaces.Discrete(actions, start=start),
        jpeg_encoding=False,
    )
    storage.update_metadata({"dataset_id": dataset_id, "minari_version": __version__})
    storage.update_episodes(_buffer(snapshot.spec, episode, leaves, start) for episode in episodes)


def _buffer(spec: ReplaySpec, episode: Episode, leaves: list[ArraySpec], start: int) -> Any:
    from minari.data_collector.episode_buffer import EpisodeBuffer

    nbytes = len(episode.chunks) * spec.raw_bytes()
    if nbytes > MAX_EPISODE_BYTES:
        raise CheckpointError(
            f"an episode of {episode.transitions} transitions takes {nbytes} bytes, more than the "
            f"{MAX_EPISODE_BYTES} that are put together in memory"
        )

    def rows(name: str, begin: int, end: int) -> NDArray[Any]:
        return _field(spec, episode.chunks, name)[begin:end]

    begin, end = episode.begin, episode.end + 1
    others = [a.name for a in spec.fields if a not in leaves and a.name not in NEEDED]
    return EpisodeBuffer(
        observations=_nested({leaf.name: rows(leaf.name, begin, end) for leaf in leaves}),
        actions=rows("action", begin, end - 1) + start,
        rewards=rows("reward", begin + 1, end),
        terminations=rows("terminated", begin + 1, end),
        truncations=rows("truncated", begin + 1, end),
        infos={name: rows(name, begin, end) for name in others},
    )


def _largest_action(snapshot: Snapshot, episodes: list[Episode]) -> int:
    return max((int(_field(snapshot.spec, e.chunks, "action").max()) for e in episodes), default=0)


def _nested(values: Mapping[str, Any]) -> Any:
    """Leaves, named ``observation`` or ``observation/...``, as the nested observation."""
    if list(values) == ["observation"]:
        return values["observation"]
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *groups, last = name.split("/")[1:]
        place = nested
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    return nested


def _nested_space(leaves: list[ArraySpec]) -> gym.Space[Any]:
    def as_dict(value: Any) -> gym.Space[Any]:
        if isinstance(value, dict):
            return gym.spaces.Dict({key: as_dict(inner) for key, inner in value.items()})
        space: gym.Space[Any] = value
        return space

    return as_dict(_nested({leaf.name: _box(leaf) for leaf in leaves}))


def _box(leaf: ArraySpec) -> gym.Space[Any]:
    if leaf.dtype == np.bool_:
        return gym.spaces.MultiBinary(leaf.shape) if leaf.shape else gym.spaces.Discrete(2)
    if leaf.dtype.kind == "f":
        return gym.spaces.Box(-np.inf, np.inf, leaf.shape, leaf.dtype.type)
    limits = np.iinfo(leaf.dtype)
    return gym.spaces.Box(limits.min, limits.max, leaf.shape, leaf.dtype.type)


def _env_spec(manifest: Manifest) -> EnvSpec | None:
    """What the run knew of its environment, where the generation holds it."""
    try:
        return EnvSpec.from_json(manifest.state["spec"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _dataset_id(out: Path) -> str:
    """A name that Minari accepts."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", out.name).strip("-") or "replay"
    return name if re.search(r"-v\d+$", name) else f"{name}-v0"


def _check_minari() -> None:
    try:
        import h5py  # noqa: F401
        import minari  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"--minari needs Minari ({error}); install it by pip install 'seedflow[minari]'"
        ) from error
