"""What every store must do; the tests of each inherit from here."""

from __future__ import annotations

import abc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from seedflow.checkpoints import Store
from seedflow.errors import CheckpointConflict, CheckpointDamaged, CheckpointError

OUTSIDE = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../a",
    "a/../../b",
    "a//b",
    "a/",
    ".a",
    "a/.tmp-1",
    "-a",
    "a\0b",
    "a\nb",
    "é",
]


class StoreConformance(abc.ABC):
    @abc.abstractmethod
    @pytest.fixture
    def store(self, *args: object) -> Store:
        """An empty store."""

    def test_what_is_written_is_read(self, store: Store) -> None:
        store.write_new("data/one.bin", [b"ab", b"", b"cdef"])
        assert store.read("data/one.bin") == b"abcdef"
        assert store.read("data/one.bin", 2) == b"cdef"
        assert store.read("data/one.bin", 1, 3) == b"bcd"
        assert store.read("data/one.bin", 6, 0) == b""
        assert store.size("data/one.bin") == 6

    def test_an_empty_file_is_a_file(self, store: Store) -> None:
        store.write_new("data/none", [])
        assert store.read("data/none") == b""
        assert store.size("data/none") == 0
        assert store.paths() == ["data/none"]

    def test_large_blocks_arrive_whole(self, store: Store) -> None:
        blocks = [bytes([n]) * 700_001 for n in range(5)]
        store.write_new("large", iter(blocks))
        assert store.read("large") == b"".join(blocks)
        assert store.read("large", 700_000, 2) == b"\0\1"

    def test_a_file_is_never_overwritten(self, store: Store) -> None:
        store.write_new("data/one", [b"first"])
        with pytest.raises(CheckpointConflict, match=r"data/one exists already"):
            store.write_new("data/one", [b"second"])
        assert store.read("data/one") == b"first"
        assert store.paths() == ["data/one"]

    @pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, CheckpointError])
    def test_a_write_that_fails_leaves_nothing(self, store: Store, failure: type[BaseException]) -> None:
        def blocks() -> Iterator[bytes]:
            yield b"some" * 1000
            raise failure("on the way")

        with pytest.raises(failure, match="on the way"):
            store.write_new("data/one", blocks())
        assert store.paths() == []
        store.write_new("data/one", [b"again"])
        assert store.read("data/one") == b"again"

    def test_reading_beyond_the_end_is_damage(self, store: Store) -> None:
        store.write_new("data/one", [b"abc"])
        with pytest.raises(CheckpointDamaged, match="data/one"):
            store.read("data/one", 1, 3)
        with pytest.raises(CheckpointDamaged, match="data/one"):
            store.read("data/one", 10, 1)

    def test_a_missing_file_is_damage(self, store: Store) -> None:
        with pytest.raises(CheckpointDamaged, match=r"data/none cannot be read: it is missing"):
            store.read("data/none")
        with pytest.raises(CheckpointDamaged, match=r"data/none cannot be read: it is missing"):
            store.size("data/none")

    def test_paths_are_those_of_a_directory_and_below(self, store: Store) -> None:
        for path in ("b/2", "b/1/x", "a", "b/1/a", "bb/1"):
            store.write_new(path, [b""])
        assert store.paths() == ["a", "b/1/a", "b/1/x", "b/2", "bb/1"]
        assert store.paths("b") == ["b/1/a", "b/1/x", "b/2"]
        assert store.paths("b/1") == ["b/1/a", "b/1/x"]
        assert store.paths("c") == []

    def test_deleting_is_repeatable(self, store: Store) -> None:
        store.write_new("b/1/x", [b"x"])
        store.write_new("b/2", [b"x"])
        store.delete("b/1/x")
        store.delete("b/1/x")
        store.delete("never/there")
        assert store.paths() == ["b/2"]
        store.write_new("b/1/x", [b"y"])
        assert store.read("b/1/x") == b"y"

    def test_cleaning_keeps_every_file(self, store: Store) -> None:
        store.clean()
        store.write_new("b/1", [b"x"])
        store.clean()
        assert store.paths() == ["b/1"]

    @pytest.mark.parametrize("path", OUTSIDE)
    def test_a_path_that_leads_elsewhere_is_refused(self, store: Store, path: str) -> None:
        for use in (store.read, store.size, store.delete, lambda p: store.write_new(p, [b""])):
            with pytest.raises(CheckpointError, match="no path inside a checkpoint"):
                use(path)

    def test_any_bytes_in_any_pieces(self, store: Store) -> None:
        @given(st.lists(st.binary(max_size=300), max_size=6), st.data())
        @settings(max_examples=20)
        def check(blocks: list[bytes], data: st.DataObject) -> None:
            content = b"".join(blocks)
            store.delete("any")
            store.write_new("any", blocks)
            offset = data.draw(st.integers(0, len(content)))
            size = data.draw(st.integers(0, len(content) - offset))
            assert store.read("any", offset, size) == content[offset : offset + size]

        check()

    def test_it_behaves_like_a_dictionary_that_is_written_once(self, store: Store) -> None:
        names = st.sampled_from(["a", "b/1", "b/2", "c/d/e", "c/d/f"])

        class Comparison(RuleBasedStateMachine):
            def __init__(self) -> None:
                super().__init__()
                for path in store.paths():
                    store.delete(path)
                self.model: dict[str, bytes] = {}

            @rule(path=names, content=st.binary(max_size=50))
            def write(self, path: str, content: bytes) -> None:
                if path in self.model:
                    with pytest.raises(CheckpointConflict):
                        store.write_new(path, [content])
                else:
                    store.write_new(path, [content])
                    self.model[path] = content

            @rule(path=names)
            def delete(self, path: str) -> None:
                store.delete(path)
                self.model.pop(path, None)

            @rule()
            def clean(self) -> None:
                store.clean()

            @rule(path=names)
            def read(self, path: str) -> None:
                if path in self.model:
                    assert store.read(path) == self.model[path]
                else:
                    with pytest.raises(CheckpointDamaged):
                        store.read(path)

            @invariant()
            def same_paths(self) -> None:
                assert store.paths() == sorted(self.model)

        run_state_machine_as_test(
            Comparison, settings=settings(max_examples=10, stateful_step_count=15, deadline=None)
        )
