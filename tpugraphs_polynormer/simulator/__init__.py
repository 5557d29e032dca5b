"""The simulated TPU: programs, candidates and an analytic cost model, written as official archives."""
