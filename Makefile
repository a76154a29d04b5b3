# `make train` from a fresh checkout trains CartPole and checks the result; `make check` is what CI runs.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALLED := .venv/.installed
SEED ?= 1

export OMP_NUM_THREADS ?= 1

.PHONY: venv train test test-slow test-hosts test-kernels test-kernels-sim test-kernels-compile test-kernels-gpu test-gpu lint check proto clean

venv: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[atari,test,test-cuda]'
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

# The kernels alone. `make test` has the CPU twins and the compiled code among its tests; the simulator needs a process
# of its own.
test-kernels: venv
	$(BIN)/python -m pytest tests/kernels

test-kernels-sim: venv
	NUMBA_ENABLE_CUDASIM=1 $(BIN)/python -m pytest tests/kernels -k simulator -m "not slow and not large"

test-kernels-compile: venv
	$(BIN)/python -m pytest tests/kernels/cuda/test_machine_code.py

# For a machine with a GPU: it needs torch, numba-cuda and pytest, and no installed seedflow.
GPU_PYTHON ?= $(shell test -x $(BIN)/python && echo $(BIN)/python || echo python3)
test-kernels-gpu:
	$(GPU_PYTHON) -m pytest -c tests/kernels/gpu/pytest.ini --rootdir=. --confcutdir=tests/kernels/gpu tests/kernels/gpu

# The same for the learner, which needs an installed seedflow.
test-gpu: venv
	$(BIN)/python -m pytest tests/gpu

# Needs root: they become another user, mount a /dev/shm of their own, and start a Slurm whose hosts are namespaces
# (on Debian, whose packages they install where they are missing).
test-hosts: venv
	$(BIN)/python -m pytest -m hosts

# The import contracts are checked by tests/test_architecture.py.
lint: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test test-kernels-sim

proto: venv
	$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. --grpc_python_out=. seedflow/rpc/seedflow.proto

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find seedflow tests -name __pycache__ -type d -exec rm -rf {} +
