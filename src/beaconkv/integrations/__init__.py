"""One module for each host; only it knows the host's API."""
