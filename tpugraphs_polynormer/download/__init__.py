"""Fetching the official collections and the benchmarks' files."""
