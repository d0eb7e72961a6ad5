"""The embedded engine: transformers computes, kvweave stores. Needs the extra ``hf``."""
