"""Numeric routines along edges, in formulations for CPU, GPU and XLA."""
