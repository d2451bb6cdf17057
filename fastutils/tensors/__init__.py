"""Copies between host and device tensors, and the bytes of a tensor."""
