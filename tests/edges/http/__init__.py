"""Tests of the HTTP edge, over real sockets."""
