# `make train` from a fresh checkout trains CartPole and checks the result; `make check` is what CI runs.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALLED := .venv/.installed
SEED ?= 1

export OMP_NUM_THREADS ?= 1

.PHONY: venv train test test-slow test-hosts lint check proto clean

venv: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[atari,test]'
	touch $@

# Trains to the end of the configuration, then fails if 100 episodes return less than 475 on average.
train: venv
	run=runs/cartpole_vtrace-seed$(SEED)-$$(date +%Y%m%d-%H%M%S) && \
	$(BIN)/seedflow train cartpole_vtrace seed=$(SEED) --run-dir $$run && \
	$(BIN)/seedflow eval $$run --episodes 100 --require 475

test: venv
	$(BIN)/python -m pytest

test-slow: venv
	$(BIN)/python -m pytest -m slow

# Needs root: they become another user, and mount a /dev/shm of their own.
test-hosts: venv
	$(BIN)/python -m pytest -m hosts

# The import contracts are checked by tests/test_architecture.py.
lint: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test

proto: venv
	$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. --grpc_python_out=. seedflow/rpc/seedflow.proto

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find seedflow tests -name __pycache__ -type d -exec rm -rf {} +
