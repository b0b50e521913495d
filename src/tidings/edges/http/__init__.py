"""The HTTP API: requests in, answers and streams out."""
