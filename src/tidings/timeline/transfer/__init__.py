"""Moving everything from one store to another: the protocol, the chunks, and the run."""
