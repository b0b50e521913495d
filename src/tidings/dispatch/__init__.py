"""Dispatch: releases occurrences when they are due, on the lanes that this process owns."""
