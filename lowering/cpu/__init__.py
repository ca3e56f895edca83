"""The `cpu` target: lowerings that call the compiled kernels of this machine."""
