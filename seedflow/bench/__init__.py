"""What is fast, measured: the benchmarks behind ``seedflow bench``.

Every figure is the median of several alternating runs in one call, so that whatever else a machine does hits
all that is compared alike. CPU-seconds and ratios carry over from machine to machine, wall-clock rates do
not. Each benchmark returns plain values: a table for people, one JSON object for programs.
"""
