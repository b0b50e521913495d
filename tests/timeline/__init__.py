"""The stores, where they are more than the contract."""
