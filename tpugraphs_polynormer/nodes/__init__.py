"""Node classification on the thirteen benchmarks of the Polynormer paper."""
