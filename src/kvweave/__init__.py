"""kvweave moves a request's KV cache between LLM engines of different shape."""
