"""Servers over real sockets that ask of a client what each provider's documentation demands."""
