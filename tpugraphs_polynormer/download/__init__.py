"""Downloads of the official collections and of the benchmarks' files."""
