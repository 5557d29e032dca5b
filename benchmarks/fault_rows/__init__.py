"""The rows of benchmarks/faults.py: each module makes one class of faults and says how every case ended."""
