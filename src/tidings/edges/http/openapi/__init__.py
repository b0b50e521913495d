"""The description of the API: paths by hand, schemas from the shapes."""
