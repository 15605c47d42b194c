"""The fast path in plain torch operations, found by :mod:`kdalab_kernels.dispatch`."""
