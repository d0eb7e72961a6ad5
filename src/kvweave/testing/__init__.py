"""For tests of kvweave and of engines that embed it: the byte oracle, strategies and contract suites."""
