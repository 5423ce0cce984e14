"""What the author of a client class imports, and what serves the classes."""
