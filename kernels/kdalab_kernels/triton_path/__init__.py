"""Triton kernels, forward only: plain pointers and masks, so that they compile and interpret."""
