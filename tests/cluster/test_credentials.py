"""The certificates of a worker, as its role gets them."""

from __future__ import annotations

from pathlib import Path

import pytest
from distributed.security import Security

from seedflow.cluster.credentials import tls_of
from seedflow.errors import PlacementError
from tests.rpc.certificates import authority


def security(paths: dict[str, str]) -> Security:
    return Security(
        tls_ca_file=paths["authority"],
        tls_worker_cert=paths["certificate"],
        tls_worker_key=paths["key"],
        require_encryption=True,
    )


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"alternative": "workers.example"}, "workers.example"),
        ({"common": "node 7"}, "node 7"),
        ({"alternative": "workers.example", "common": "node 7"}, "workers.example"),
    ],
)
def test_the_name_is_that_of_the_certificate(names: dict[str, str], expected: str, tmp_path: Path) -> None:
    paths = authority("cluster").files(tmp_path, **names)
    tls = tls_of(security(paths))
    assert tls.name == expected
    assert tls.authority == authority("cluster").pem
    assert tls.key == Path(paths["key"]).read_text()


def test_credentials_in_memory_are_taken_as_they_are() -> None:
    temporary = Security.temporary()
    tls = tls_of(temporary)
    assert (tls.key, tls.name) == (temporary.tls_worker_key, "dask-internal")


def test_a_certificate_that_names_nobody_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PlacementError, match=r"names nobody.*subject alternative name"):
        tls_of(security(authority("cluster").files(tmp_path)))


@pytest.mark.parametrize(
    ("missing", "words"), [("key", "TLS key"), ("authority", "TLS certificate authority")]
)
def test_a_file_that_cannot_be_read_is_named(missing: str, words: str, tmp_path: Path) -> None:
    paths = authority("cluster").files(tmp_path, common="node")
    made = security(paths)
    Path(paths[missing]).unlink()
    with pytest.raises(PlacementError, match=rf"{words} {paths[missing]} cannot be read"):
        tls_of(made)


def test_a_file_that_holds_no_certificate_is_named(tmp_path: Path) -> None:
    paths = authority("cluster").files(tmp_path, common="node")
    Path(paths["certificate"]).write_text("hello\n")
    with pytest.raises(PlacementError, match="is no PEM certificate"):
        tls_of(security(paths))
