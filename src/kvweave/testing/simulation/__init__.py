"""The protocol under a virtual clock, with everything going wrong that can: a deterministic simulation from a seed."""
