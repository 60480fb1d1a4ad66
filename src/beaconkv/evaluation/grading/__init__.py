"""Right or wrong: an output against the known answer."""
