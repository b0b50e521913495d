"""Dispatch: releases what falls due, at its moment."""
