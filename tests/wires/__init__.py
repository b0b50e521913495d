"""Tests of the wires: foreign formats to requests and back."""
