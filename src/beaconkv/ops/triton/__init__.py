"""Triton twins of the reference operations. Nothing here is imported before a kernel is needed.

What is rare (empty tensors, shapes that only broadcast, arguments to be refused) a twin hands to its reference, so
that both answer alike by construction.
"""
