"""Encoded arrays: what goes in comes out, and nothing else does."""

from __future__ import annotations

import contextlib
import threading

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numcodecs import zstd

from seedflow.errors import DamagedChunk, SpecError
from seedflow.replay import zstd as zstd_calls
from seedflow.replay.codec import content_size, decode_into, encode
from seedflow.replay.layout import DTYPES

ARRAYS = hnp.arrays(
    st.sampled_from(sorted(DTYPES)),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7),
    elements=None,
)


def sealed(data: bytes) -> bytes:
    """Data with a checksum that is right."""
    return data + google_crc32c.value(data).to_bytes(4, "little")


@given(ARRAYS, st.booleans())
def test_every_array_comes_back_bit_for_bit(array: np.ndarray, compress: bool) -> None:
    out = np.ones(array.shape, array.dtype)
    decode_into(encode(array, compress), out, compress)
    assert out.tobytes() == array.tobytes()


@given(ARRAYS)
def test_a_view_with_gaps_is_encoded_in_order(array: np.ndarray) -> None:
    turned = array.T[::2] if array.ndim else array
    out = np.empty(turned.shape, turned.dtype)
    decode_into(encode(turned, True), out, True)
    assert out.tobytes() == np.ascontiguousarray(turned).tobytes()


@pytest.mark.parametrize("compress", [False, True])
def test_the_bytes_are_those_of_the_codecs_that_a_reader_of_zarr_is_told(compress: bool) -> None:
    array = np.arange(100, dtype=np.int32).reshape(4, 25)
    data = encode(array, compress)
    body, checksum = data[:-4], data[-4:]
    assert checksum == google_crc32c.value(body).to_bytes(4, "little")
    assert (zstd.decompress(body) if compress else body) == array.astype("<i4").tobytes()


@pytest.mark.parametrize("compress", [False, True])
def test_every_flipped_byte_and_every_truncation_is_detected(compress: bool) -> None:
    array = np.random.default_rng(0).integers(0, 4, (3, 5, 9)).astype(np.uint8)
    data, out = encode(array, compress), np.empty_like(array)
    for position in range(len(data)):
        for flip in (1, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[position] ^= flip
            with pytest.raises(DamagedChunk):
                decode_into(bytes(damaged), out, compress)
        with pytest.raises(DamagedChunk):
            decode_into(data[:position], out, compress)


@settings(max_examples=300)
@given(st.binary(max_size=200), st.booleans())
def test_arbitrary_bytes_with_a_right_checksum_are_refused_by_name(content: bytes, compress: bool) -> None:
    out = np.empty(300, np.uint8)
    with pytest.raises(DamagedChunk):
        decode_into(sealed(content), out, compress)


@given(st.data())
def test_a_damaged_frame_under_a_right_checksum_is_refused_or_fills_the_array(data: st.DataObject) -> None:
    array = np.arange(400, dtype=np.uint16) // 7
    frame = bytearray(encode(array, True)[:-4])
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    out = np.empty_like(array)
    with contextlib.suppress(DamagedChunk):
        decode_into(sealed(bytes(frame)), out, True)
        assert content_size(bytes(frame)) == array.nbytes


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65791, 65792, 1 << 20])
def test_the_declared_size_is_read_from_the_frame(size: int) -> None:
    assert content_size(zstd.compress(bytes(size), 1)) == size


def test_a_frame_that_declares_more_than_the_array_is_refused_before_it_is_opened() -> None:
    bomb = sealed(zstd.compress(bytes(64 << 20), 1))
    assert len(bomb) < 10_000
    with pytest.raises(DamagedChunk, match="declares a content of 67108864 bytes instead of 16"):
        decode_into(bomb, np.empty(16, np.uint8), True)


def test_a_frame_that_declares_nothing_is_refused() -> None:
    unknown = b"\x28\xb5\x2f\xfd\x00\x58" + b"\x81\x00\x00" + bytes(16)  # no content size, one raw block
    with pytest.raises(DamagedChunk, match="declares a content of None bytes instead of 16"):
        decode_into(sealed(unknown), np.empty(16, np.uint8), True)


def test_a_second_frame_behind_the_first_is_refused() -> None:
    frame = zstd.compress(bytes(range(100)), 1)
    with pytest.raises(DamagedChunk, match="cannot be decompressed"):
        decode_into(sealed(frame + frame), np.empty(100, np.uint8), True)


BOTH = pytest.mark.parametrize("decompress", [zstd_calls.decompress, zstd_calls.portable_decompress])


@BOTH
def test_decompressing_fills_the_memory_and_nothing_beside_it(decompress: zstd_calls.Decompress) -> None:
    frame = zstd.compress(bytes(range(200)), 1)
    out = np.full(260, 255, np.uint8)
    decompress(frame + b"rest", len(frame), out.data[30:230])
    assert out.tobytes() == bytes([255] * 30) + bytes(range(200)) + bytes([255] * 30)


@BOTH
@given(data=st.data())
def test_what_cannot_be_decompressed_is_an_error_and_writes_nothing_beside(
    decompress: zstd_calls.Decompress, data: st.DataObject
) -> None:
    frame = bytearray(zstd.compress(bytes(i * i % 7 for i in range(100)), 1))
    if data.draw(st.booleans()):
        frame[data.draw(st.integers(4, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    out = np.full(200, 255, np.uint8)
    with contextlib.suppress(RuntimeError):
        decompress(bytes(frame), len(frame), out.data[40:139])
        assert content_size(bytes(frame)) != 100
    assert (out[:40] == 255).all()
    assert (out[139:] == 255).all()


def test_the_fast_way_is_there_and_a_library_without_zstd_is_no_way() -> None:
    assert zstd_calls.decompress is not zstd_calls.portable_decompress
    assert zstd_calls.make_decompress("no such library") is zstd_calls.portable_decompress
    assert zstd_calls.make_decompress(np._core._multiarray_umath.__file__) is zstd_calls.portable_decompress


def test_each_thread_decompresses_with_a_context_of_its_own() -> None:
    arrays = [np.random.default_rng(i).integers(0, 3, 50_000).astype(np.uint8) for i in range(8)]
    encoded = [encode(array, True) for array in arrays]
    failures: list[int] = []

    def work(mine: int) -> None:
        out = np.empty_like(arrays[0])
        for i in range(200):
            which = (i + mine) % 8
            decode_into(encoded[which], out, True)
            if out.tobytes() != arrays[which].tobytes():
                failures.append(which)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert failures == []


@pytest.mark.parametrize(
    "out", [np.empty((4, 4), np.uint8)[:, ::2], np.empty((4, 2), ">u2"), np.empty((4, 2), np.uint8).T]
)
def test_only_plain_memory_is_decoded_into(out: np.ndarray) -> None:
    with pytest.raises(SpecError, match="contiguous and little-endian"):
        decode_into(encode(np.zeros(8, np.uint8), False), out, False)
