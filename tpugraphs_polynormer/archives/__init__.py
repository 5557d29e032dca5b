"""TpuGraphs npz archives: reader, writer, conversion from HLO, measurement noise, inspection."""
