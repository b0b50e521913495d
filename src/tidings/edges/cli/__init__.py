"""The command line: a client of a running node over HTTP, with one module for each group of commands."""
