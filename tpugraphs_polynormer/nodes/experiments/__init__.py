"""The paper's experiments beside the benchmarks: each one function that writes a JSON file and a picture."""
