"""Joins protocol and transport; the only home of threads, clocks and sockets."""
