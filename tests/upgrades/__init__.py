"""Stores that earlier versions made, opened by this one."""
