"""Intake: validates requests and commits the commands that they become."""
