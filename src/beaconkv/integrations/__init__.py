"""One subpackage for each host; only it uses the host's API."""
