"""The settings of a node: their declaration, their written form, and loading them from file, environment and flags."""

from tidings.config.load import ConfigError, Loaded, load, render
from tidings.config.settings import Config

__all__ = ["Config", "ConfigError", "Loaded", "load", "render"]
