"""Engines that kvweave brings along: a model library computes, kvweave's paged memory keeps the cache."""
