"""The control socket's directory: private, short, and gone afterwards."""

import os
import socket
import stat
from pathlib import Path

import pytest

from seedflow.errors import TransportError
from seedflow.rpc.listener import MAX_PATH, Listener


def connected(listener: Listener) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(str(listener.path))
    return sock


def test_only_the_user_can_reach_the_socket_and_nothing_is_left_behind(tmp_path: Path) -> None:
    listener = Listener(tmp_path)
    assert stat.S_IMODE(listener.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(listener.path.stat().st_mode) == 0o600
    assert listener.path.owner() == tmp_path.owner()
    listener.close()
    listener.close()
    assert list(tmp_path.iterdir()) == []


def test_a_path_too_long_for_a_socket_is_refused_with_its_length(tmp_path: Path) -> None:
    parent = tmp_path / ("long" * 25)
    parent.mkdir()
    with pytest.raises(TransportError, match=rf"bytes, at most {MAX_PATH}.*set TMPDIR"):
        Listener(parent)
    assert list(parent.iterdir()) == []


def test_a_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(TransportError, match="missing: No such file"):
        Listener(tmp_path / "missing")


def test_the_runtime_directory_is_preferred_and_a_stale_one_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    listener = Listener()
    assert listener.path.parent.parent == tmp_path
    listener.close()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "logged-out"))
    listener = Listener()
    assert listener.path.exists()
    listener.close()


def test_connections_are_accepted_without_blocking(tmp_path: Path) -> None:
    listener = Listener(tmp_path)
    assert listener.accept(8) == ([], False)
    with connected(listener), connected(listener), connected(listener):
        first, _ = listener.accept(2)
        rest, _ = listener.accept(2)
        assert (len(first), len(rest)) == (2, 1)
        for sock in first + rest:
            assert not sock.getblocking()
            sock.close()
    listener.close()


def test_a_connection_of_another_user_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 123456)
    with connected(listener) as sock:
        assert listener.accept(8) == ([], False)
        sock.settimeout(10)
        assert sock.recv(10) == b""
    listener.close()


def test_running_out_of_file_descriptors_is_reported_not_raised(tmp_path: Path) -> None:
    import resource

    listener = Listener(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with connected(listener):
        probe = os.dup(0)
        os.close(probe)
        resource.setrlimit(resource.RLIMIT_NOFILE, (probe, limits[1]))
        try:
            assert listener.accept(8) == ([], True)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        accepted, exhausted = listener.accept(8)
        assert (len(accepted), exhausted) == (1, False)
        accepted[0].close()
    listener.close()
