"""How fast this machine moves caches: every figure beside the machine's limit and the incumbent's way, in one run."""
