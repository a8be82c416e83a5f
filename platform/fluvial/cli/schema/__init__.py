"""Commands on schemas and the registry."""
