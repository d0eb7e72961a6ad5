"""The vLLM connector: translates between vLLM's connector interface and kvweave, and decides nothing itself."""
