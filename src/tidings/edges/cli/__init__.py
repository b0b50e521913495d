"""The command line: one small file a group of commands; it talks to a running node over HTTP."""
