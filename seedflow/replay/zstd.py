"""Decompressing zstd frames into given memory, without the GIL and without a new context each time.

numcodecs makes and frees a decompression context at every call. For a chunk of small frames that takes as
long as to decompress it, as the memory comes fresh from the kernel. Its shared library shows the functions
of zstd itself; these are called with one context a thread. Where it shows none, numcodecs' own function is
used: the same result, slower.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from numcodecs import zstd

Decompress = Callable[[bytes, int, memoryview], None]


def portable_decompress(data: bytes, length: int, out: memoryview) -> None:
    """Decompress the first `length` bytes of `data`, one frame, into `out`, which has the size it declares.

    Raises
    ------
    RuntimeError
        When they are no such frame; nothing is written outside of `out`.
    """
    try:
        zstd.decompress(memoryview(data)[:length], out)
    except ValueError as error:
        raise RuntimeError(str(error)) from error


def make_decompress(library: str = zstd.__file__) -> Decompress:
    """Return `portable_decompress`, or what is faster and does the same.

    Parameters
    ----------
    library
        Path of a shared library that may have the functions of zstd.
    """
    try:
        functions = ctypes.CDLL(library)
        create, free = functions.ZSTD_createDCtx, functions.ZSTD_freeDCtx
        decompress = functions.ZSTD_decompressDCtx
        is_error, error_name = functions.ZSTD_isError, functions.ZSTD_getErrorName
    except (OSError, AttributeError):
        return portable_decompress
    address, size = ctypes.c_void_p, ctypes.c_size_t
    create.argtypes, create.restype = (), address
    free.argtypes, free.restype = (address,), size
    decompress.argtypes, decompress.restype = (address, address, size, ctypes.c_char_p, size), size
    is_error.argtypes, is_error.restype = (size,), ctypes.c_uint
    error_name.argtypes, error_name.restype = (size,), ctypes.c_char_p

    class Context:
        """A decompression context; freed with the thread that holds it."""

        def __init__(self) -> None:
            self.handle = create()
            if not self.handle:
                raise MemoryError("zstd cannot make a decompression context")

        def __del__(self) -> None:
            free(self.handle)

    kept = threading.local()
    byte, reference = ctypes.c_char.from_buffer, ctypes.byref

    def fast_decompress(data: bytes, length: int, out: memoryview) -> None:
        try:
            context = kept.context
        except AttributeError:
            context = kept.context = Context()
        count = len(out)
        written = decompress(context.handle, reference(byte(out)), count, data, length)
        if written != count:
            if is_error(written):
                raise RuntimeError(error_name(written).decode())
            raise RuntimeError(f"{written} bytes of content instead of {count}")

    return fast_decompress


decompress = make_decompress()
