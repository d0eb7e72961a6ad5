"""Benchmarks: every figure beside the machine's own limit and beside the incumbent's way, in one run."""
