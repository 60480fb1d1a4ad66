"""Answers: a model writes them in batches, and they are graded."""
