"""Timelines: the stores that hold what is pending."""
