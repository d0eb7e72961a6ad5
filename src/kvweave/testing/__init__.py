"""For tests of kvweave and of engines that embed it: the byte oracle, strategies, contract suites, simulation."""
