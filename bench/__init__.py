"""Benchmarks against other tools, each a ratio of two measurements made in the same run.

`python -m bench` runs them all, `python -m bench startup` one. A figure is the median of interleaved runs;
nothing here asserts anything: a slow machine is not a failed test.
"""
