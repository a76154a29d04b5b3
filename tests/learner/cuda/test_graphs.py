"""Batch sizes in buckets, and when their graphs are captured and replayed."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from seedflow.learner.cuda.graphs import WARM_UPS, BucketGraphs, bucket_of, buckets
from tests.learner.cuda.fake_gpu import FakeGpu


@given(st.data())
def test_a_bucket_is_the_smallest_that_holds_the_batch(data: st.DataObject) -> None:
    most = data.draw(st.integers(1, 5000))
    batch = data.draw(st.integers(1, most))
    sizes = buckets(most)
    assert bucket_of(batch, most) == min(size for size in sizes if size >= batch)
    assert sizes == sorted(sizes)
    assert sizes[-1] == most
    assert all(size & (size - 1) == 0 for size in sizes[:-1])


@pytest.mark.parametrize("batch", [0, 101])
def test_a_batch_that_fits_no_bucket_is_refused(batch: int) -> None:
    with pytest.raises(ValueError, match=f"a batch of {batch} environments: expected 1 to 100"):
        bucket_of(batch, 100)


class Work:
    """Notes for which buckets it was issued, and how."""

    def __init__(self, gpu: FakeGpu, enabled: bool = True) -> None:
        self.gpu, self.issued, self.reports = gpu, [], []
        self.graphs = BucketGraphs(gpu, self.issue, [torch.Generator()], enabled, self.reports.append)

    gpu: FakeGpu
    issued: list[int]
    reports: list[str]

    def issue(self, bucket: int) -> None:
        self.issued.append(bucket)


def test_each_bucket_is_warmed_up_then_captured_once_then_replayed() -> None:
    work = Work(FakeGpu())
    for bucket in (8, 4, 8, 8, 8, 4, 4):
        work.graphs(bucket)
    assert work.issued == [8, 4, 8, 8, 8, 4, 4]  # a capture issues nothing
    kinds = [entry[0] for entry in work.gpu.log]
    assert WARM_UPS == 2
    assert kinds == ["capture", "replay", "replay", "capture", "replay"]
    assert not work.reports


def test_no_graph_is_captured_where_none_is_wanted() -> None:
    work = Work(FakeGpu(), enabled=False)
    for _ in range(5):
        work.graphs(8)
    assert work.issued == [8] * 5
    assert not work.gpu.log


def test_a_failed_capture_is_told_once_and_earlier_graphs_stay() -> None:
    work = Work(FakeGpu())
    for _ in range(4):
        work.graphs(8)
    work.gpu.capture_fails = "out of memory\nTried to allocate 2 GiB"
    for bucket in (4, 4, 4, 4, 2, 2, 2, 8):
        work.graphs(bucket)
    assert work.issued == [8] * 4 + [4] * 4 + [2] * 3 + [8]
    assert [entry[0] for entry in work.gpu.log] == ["capture", "replay", "replay", "capture", "replay"]
    (report,) = work.reports
    assert "for batches like those of 4" in report
    assert report.endswith("out of memory; inference.cuda_graphs=false asks for none")


def test_the_first_cause_is_told() -> None:
    """The end of a failed capture raises again."""
    work = Work(FakeGpu())

    def fail(*arguments: object) -> None:
        try:
            raise RuntimeError("copy of pageable memory")
        finally:
            raise RuntimeError("capture was invalidated")

    work.gpu.capture = fail  # type: ignore[method-assign, assignment]
    for _ in range(WARM_UPS + 1):
        work.graphs(1)
    assert "copy of pageable memory" in work.reports[0]
