"""TpuGraphs npz archives: reading, writing, making them of HLO, looking at one."""
