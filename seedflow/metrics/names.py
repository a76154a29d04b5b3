"""The names under which a run reports numbers, with unit and meaning.

One table serves the documentation (`markdown_table`), the labels of plots and a test that no metric
goes undocumented (`describe`). A name is ``group/quantity``; TensorBoard makes a section of each group.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

Kind = Literal["counter", "gauge", "distribution", "rate"]
Statistic = Literal["p50", "p99", "max"]

AGENT_STEPS = "steps/agent"
AGENT_STEPS_PER_SECOND = "rate/agent_steps_per_second"
EPISODE_RETURN = "episode/return"
EVAL_RETURN = "eval/return"
LEARNER_RESTARTS = "learner/restarts"


@dataclass(frozen=True)
class MetricName:
    """One row of the table.

    Attributes
    ----------
    name
        The name, or a pattern such as ``loss/*``.
    unit
        Unit of the value; ``1`` for a number without one.
    kind
        ``counter``: total since the run began. ``gauge``: value at the moment of the snapshot.
        ``distribution``: mean over what was observed since the snapshot before. ``rate``: slope of a
        counter between two snapshots.
    meaning
        One sentence for a reader of the documentation.
    statistics
        Further names of a distribution: ``p99`` stands for ``<name>_p99``.
    """

    name: str
    unit: str
    kind: Kind
    meaning: str
    statistics: tuple[Statistic, ...] = ()


def statistics_of(name: str) -> tuple[Statistic, ...]:
    """Which statistics a distribution of this name reports besides its mean.

    Durations (``..._ms``) report two percentiles, policy lag its spread and its largest value.
    """
    if name in _BY_NAME:
        return _BY_NAME[name].statistics
    return ("p50", "p99") if name.endswith("_ms") else ()


def describe(name: str) -> MetricName | None:
    """Return the row that documents `name`, or None for a name that the table does not know.

    A derived name, ``inference/latency_ms_p99``, is described by the row of its distribution.

    Examples
    --------
    >>> describe("inference/latency_ms_p99").unit
    'ms'
    >>> describe("loss/value").name
    'loss/*'
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    base, _, statistic = name.rpartition("_")
    if base in _BY_NAME and statistic in _BY_NAME[base].statistics:
        return _BY_NAME[base]
    return next((metric for metric in METRICS if fnmatchcase(name, metric.name)), None)


def markdown_table() -> str:
    """The table for the documentation, in Markdown."""
    rows = ["| name | unit | kind | meaning | for Prometheus |", "|---|---|---|---|---|"]
    for metric in METRICS:
        name = f"`{metric.name}`" + "".join(f", `_{statistic}`" for statistic in metric.statistics)
        served = "`" + prometheus_name(metric.name).replace("__", "_*") + "`"
        rows.append(f"| {name} | {metric.unit} | {metric.kind} | {metric.meaning} | {served} |")
    return "\n".join(rows) + "\n"


def prometheus_name(name: str) -> str:
    """A metric's name as Prometheus shows it, where counters end in ``_total``.

    Examples
    --------
    >>> prometheus_name("inference/batch_size_p99"), prometheus_name("train/updates")
    ('seedflow_inference_batch_size_p99', 'seedflow_train_updates_total')
    """
    known = describe(name)
    return "seedflow_" + re.sub(r"\W", "_", name) + ("_total" if known and known.kind == "counter" else "")


METRICS: tuple[MetricName, ...] = (
    MetricName(AGENT_STEPS, "steps", "counter", "Transitions made by the training environments."),
    MetricName(
        "steps/env_frames",
        "frames",
        "counter",
        "Frames the training environments simulated, action repeat included.",
    ),
    MetricName(
        "steps/trained", "steps", "counter", "Transitions trained on, those between two episodes left out."
    ),
    MetricName(
        EPISODE_RETURN,
        "reward",
        "distribution",
        "Sum of raw rewards of the training episodes that ended; absent while none has.",
    ),
    MetricName("episode/length", "steps", "distribution", "Transitions of the training episodes that ended."),
    MetricName(
        "episode/count", "episodes", "counter", "Training episodes that ended since the learner began."
    ),
    MetricName(EVAL_RETURN, "reward", "distribution", "Mean return over the episodes of one evaluation."),
    MetricName("eval/length", "steps", "distribution", "Mean length of the same episodes."),
    MetricName(AGENT_STEPS_PER_SECOND, "steps/s", "rate", "Slope of `steps/agent`."),
    MetricName("rate/env_frames_per_second", "frames/s", "rate", "Slope of `steps/env_frames`."),
    MetricName("rate/updates_per_second", "updates/s", "rate", "Slope of `train/updates`."),
    MetricName(
        "lag/policy_versions",
        "versions",
        "distribution",
        "Published weight versions between the policy that acted and the one that is trained, "
        "per index of a training batch.",
        ("p50", "p99", "max"),
    ),
    MetricName("inference/batch_size", "environments", "distribution", "Environments in one forward pass."),
    MetricName(
        "inference/latency_ms",
        "ms",
        "distribution",
        "From the moment a group's doorbell is heard to its reply.",
        ("p50", "p99"),
    ),
    MetricName(
        "inference/wait_slots_seconds",
        "s",
        "counter",
        "Time inference stood still because unroll slots or chunk buffers for those who asked were not free.",
    ),
    MetricName(
        "inference/idle_seconds",
        "s",
        "counter",
        "Time inference waited because no environment asked for actions.",
    ),
    MetricName(
        "share/inference_idle", "1", "rate", "Slope of `inference/idle_seconds`: a share of the time."
    ),
    MetricName(
        "share/inference_starved",
        "1",
        "rate",
        "Slope of `inference/wait_slots_seconds`: the share of the time without a free one.",
    ),
    MetricName("cpu/inference_seconds", "s", "gauge", "CPU time of the inference loop's thread."),
    MetricName(
        "cpu/prefetch_seconds", "s", "gauge", "CPU time of the prefetch loop's thread, where it has one."
    ),
    MetricName("cpu/training_seconds", "s", "gauge", "CPU time of the training loop's thread."),
    MetricName("slots/free", "slots", "gauge", "Unroll slots, or chunk buffers, that hold nothing."),
    MetricName(
        "queue/unrolls",
        "unrolls",
        "gauge",
        "Finished unrolls, or chunks, that wait for training.",
    ),
    MetricName("lease/active", "leases", "gauge", "Actors that are connected."),
    MetricName(
        "lease/quarantined",
        "leases",
        "gauge",
        "Dropped leases whose memory a writer or a batch may still hold.",
    ),
    MetricName(
        "lease/dropped",
        "leases",
        "counter",
        "Leases that ended, for whatever reason, since the learner began.",
    ),
    MetricName("lease/registrations", "leases", "counter", "Leases granted since the learner began."),
    MetricName(
        "lease/slowest_seconds",
        "s",
        "gauge",
        "How long the slowest actor has let the learner wait for any of its groups.",
    ),
    MetricName("lease/dropped_closed", "leases", "counter", "Those whose actor ended, or its connection."),
    MetricName(
        "lease/dropped_silent", "leases", "counter", "Those of which nothing was heard: stopped, or cut off."
    ),
    MetricName(
        "lease/dropped_protocol", "leases", "counter", "Those that sent no message, or one out of turn."
    ),
    MetricName("lease/dropped_unread", "leases", "counter", "Those that did not read their actions."),
    MetricName("lease/dropped_superseded", "leases", "counter", "Those that a newer generation took over."),
    MetricName("lease/refused", "registrations", "counter", "Registrations that got no lease."),
    MetricName("lease/refused_token", "registrations", "counter", "Those without the run's token."),
    MetricName("lease/refused_version", "registrations", "counter", "Those of another release's protocol."),
    MetricName(
        "lease/refused_mismatch",
        "registrations",
        "counter",
        "Those with other arrays or sizes (fingerprint).",
    ),
    MetricName(
        "lease/refused_duplicate", "registrations", "counter", "Those of an actor that is connected already."
    ),
    MetricName(
        "lease/refused_stale", "registrations", "counter", "Those of an older generation than is connected."
    ),
    MetricName("lease/refused_full", "registrations", "counter", "Those for which there was no room."),
    MetricName(
        "control/strays",
        "connections",
        "counter",
        "Connections that did not register, or said something else.",
    ),
    MetricName("control/strangers", "connections", "counter", "Connections of other users."),
    MetricName(
        "control/exhausted", "times", "counter", "How often connections waited for a free file descriptor."
    ),
    MetricName("gateway/restarts", "restarts", "counter", "How often the gateway was started again."),
    MetricName("gateway/streams", "streams", "gauge", "Open gRPC streams."),
    MetricName("gateway/pending", "streams", "gauge", "Those of them that have not registered yet."),
    MetricName("gateway/refused_token", "streams", "counter", "Streams without the run's token."),
    MetricName(
        "gateway/unregistered",
        "streams",
        "counter",
        "Streams that did not register in time, or too many at once.",
    ),
    MetricName(
        "gateway/malformed", "streams", "counter", "Streams that sent no message, or one out of turn."
    ),
    MetricName(
        "gateway/broken",
        "streams",
        "counter",
        "Streams that ended with their connection, or for a message that is too large.",
    ),
    MetricName("actor/restarts", "restarts", "counter", "Actors that were replaced since the learner began."),
    MetricName(LEARNER_RESTARTS, "restarts", "counter", "How often the learner was lost and placed again."),
    MetricName("actor/faults", "faults", "counter", "Exceptions of environments."),
    MetricName(
        "actor/hangs", "faults", "counter", "Environments that did not return, actors that fell silent."
    ),
    MetricName(
        "actor/crashes", "faults", "counter", "Actors whose process was ended, by an environment or not."
    ),
    MetricName(
        "env/masked",
        "numbers",
        "counter",
        "NaN and infinity in observations and rewards, replaced by 0 (`env.on_nonfinite=mask`).",
    ),
    MetricName("train/updates", "updates", "counter", "Steps of the optimizer."),
    MetricName(
        "loss/*",
        "1",
        "distribution",
        "What the algorithm reports of an update: terms of the loss, gradient norm, learning rate.",
    ),
    MetricName("replay/sequences", "sequences", "gauge", "Sequences that the replay holds."),
    MetricName(
        "replay/chunks", "chunks", "gauge", "Chunks that it holds, those of sequences in the making included."
    ),
    MetricName("replay/bytes", "bytes", "gauge", "Memory of these chunks, kept below `replay.memory_gib`."),
    MetricName(
        "replay/compression", "1", "gauge", "Bytes of all inserted chunks before encoding over those after."
    ),
    MetricName("replay/inserted", "sequences", "counter", "Sequences that were completed."),
    MetricName("replay/sampled", "sequences", "counter", "Sequences that were sampled."),
    MetricName(
        "replay/balance",
        "sequences",
        "gauge",
        "Samples that inserts allow and that were not taken yet (`replay.samples_per_insert`); negative: "
        "training is ahead.",
    ),
    MetricName(
        "replay/samples_per_insert",
        "1",
        "gauge",
        "Sequences sampled for each one inserted since the record before.",
    ),
    MetricName(
        "replay/wait_insert_seconds",
        "s",
        "counter",
        "Time a finished chunk waited because training is behind (`replay.samples_per_insert`).",
    ),
    MetricName(
        "replay/wait_sample_seconds",
        "s",
        "counter",
        "Time an empty batch waited because the environments are behind, or for `replay.min_size`.",
    ),
    MetricName("replay/evicted", "sequences", "counter", "Sequences that made room for newer ones."),
    MetricName(
        "replay/evicted_for_memory",
        "sequences",
        "counter",
        "Those of them that went before the capacity was reached, for lack of memory.",
    ),
    MetricName(
        "replay/stale", "sequences", "counter", "Updates of priorities that came after the sequence had gone."
    ),
    MetricName(
        "replay/snapshot_lock_ms", "ms", "gauge", "How long the last checkpoint held up inserts and samples."
    ),
    MetricName("time/seconds", "s", "gauge", "Running time of the run, interruptions left out."),
)

_BY_NAME = {metric.name: metric for metric in METRICS}
