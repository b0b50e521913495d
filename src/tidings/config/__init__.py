"""The settings of a node: what there is, how people write it, and where it comes from."""

from tidings.config.load import ConfigError, Loaded, load, render
from tidings.config.settings import Config

__all__ = ["Config", "ConfigError", "Loaded", "load", "render"]
