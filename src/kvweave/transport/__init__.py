"""Moving bytes: one small interface and its implementations, in memory and over NIXL."""
