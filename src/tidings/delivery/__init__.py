"""From a released notification to a provider: what it says, who may be told, what became of it."""
