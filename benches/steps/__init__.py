"""Clip calls timed inside small programs. See __main__.py."""
