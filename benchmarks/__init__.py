"""Benchmarks: times of our images beside the conventional way, on one machine in one run. Not installed.

`python -m benchmarks [--only PART]` measures into results/bench/results.json; `nox -s generate` renews
docs/benchmarks.md and its figure from that file. A part is a module with a function from `Session` to plain data, a row
in `__main__.PARTS`, and a section in page.py. Seconds and bytes throughout; every single value is kept.
"""
