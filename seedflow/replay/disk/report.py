"""What is in a checkpointed replay, in words."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from seedflow.replay.disk.health import PERCENTILES, GenerationHealth, ReplayReport, SegmentHealth

BAR = 40


def report_lines(report: ReplayReport, now: float | None = None) -> Iterator[str]:
    """What ``seedflow replay info`` prints."""
    now = time.time() if now is None else now
    for reason in report.skipped:
        yield f"skipped     {reason}"
    yield f"place       {report.where}"
    yield f"generation  {report.generation}, saved {age(now - report.created)} ago"
    numbers = f" ({report.first_sequence} to {report.last_sequence})" if report.sequences else ""
    yield f"sequences   {report.sequences}{numbers}"
    yield f"chunks      {report.chunks}, the oldest saved {age(now - report.oldest)} ago"
    yield f"steps       {report.steps}"
    ratio = "" if report.ratio is None else f", {report.ratio:.1f} times smaller"
    yield f"bytes       {size(report.raw_bytes)} raw, {size(report.stored_bytes)} stored{ratio}"
    yield f"disk        {size(report.disk_bytes)} in {report.files} files, {len(report.segments)} segments"
    for name, value in sorted(report.counters.items()):
        yield f"counter     {name} {value}"
    yield from _spec(report)
    yield from _priorities(report)
    yield from segment_lines(report.segments, now)
    for problem in report.problems:
        yield f"damaged     {problem}"


def verified_lines(generations: Sequence[GenerationHealth], now: float | None = None) -> Iterator[str]:
    """What ``seedflow replay verify`` prints."""
    now = time.time() if now is None else now
    for health in generations:
        saved = "" if health.created is None else f", saved {age(now - health.created)} ago"
        yield f"generation  {health.generation}{saved}: {'whole' if health.whole else 'DAMAGED'}"
        for problem in health.problems:
            yield f"damaged     {problem}"
        yield from segment_lines(health.segments, now)


def segment_lines(segments: Sequence[SegmentHealth], now: float) -> Iterator[str]:
    """One line a segment, and what is wrong with it."""
    for segment in segments:
        nbytes = "-" if segment.nbytes is None else size(segment.nbytes)
        word = "DAMAGED" if segment.problems else "ok"
        yield (
            f"segment     {word}  {segment.path}  {segment.used} of {segment.chunks} chunks used, {nbytes}, "
            f"{age(now - segment.created)} old"
        )
        for problem in segment.problems[:5]:
            yield f"            {problem}"
        if len(segment.problems) > 5:
            yield f"            and {len(segment.problems) - 5} more"


def _spec(report: ReplayReport) -> Iterator[str]:
    spec = report.spec
    yield (
        f"geometry    chunk {spec.chunk}, burn_in {spec.burn_in}, unroll {spec.unroll}, "
        f"period {spec.period}: {spec.chunks_per_sequence} chunks a sequence"
    )
    for word, arrays in (("field", spec.fields), ("state", spec.state)):
        for array in arrays:
            how = "zstd" if spec.compressed(array) else "raw"
            yield f"{word}       {array.name}: {array.dtype.name} {spec.shape(array)}, {how}"


def _priorities(report: ReplayReport) -> Iterator[str]:
    if not report.percentiles:
        return
    percentiles = ", ".join(f"{p}%: {report.percentiles[str(p)]:.4g}" for p in PERCENTILES)
    yield f"priorities  {percentiles}"
    low, high = report.percentiles["0"], report.percentiles["100"]
    if low == high:  # as numpy spreads the bins
        low, high = low - 0.5, high + 0.5
    width, most = (high - low) / len(report.histogram), max(report.histogram)
    for number, count in enumerate(report.histogram):
        bar = "#" * round(BAR * count / most)
        yield f"  {low + number * width:>10.4g}  {count:>8}  {bar}".rstrip()


def size(nbytes: int) -> str:
    """Bytes in a unit that fits.

    Examples
    --------
    >>> size(512), size(28_224_000_000)
    ('512 B', '28.2 GB')
    """
    value, units = float(nbytes), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.3g} {units[0]}" if units[0] != "B" else f"{nbytes} B"


def age(seconds: float) -> str:
    """A duration in a unit that fits.

    Examples
    --------
    >>> age(12.3), age(300), age(7200), age(200_000)
    ('12 s', '5 min', '2.0 h', '2.3 days')
    """
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} days"
