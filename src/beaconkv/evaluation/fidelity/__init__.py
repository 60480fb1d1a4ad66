"""Fidelity: the distance of a bounded cache to the full cache on given texts."""
