"""The real TPU compiler, an optional extra: it compiles programs for TPUs on a machine without one."""
