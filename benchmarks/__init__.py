"""What is fast, measured: each module is a command, ``python -m benchmarks.<name>``."""
