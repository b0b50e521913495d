"""Moving everything from one store to another: the protocol between two stores, and the run."""
