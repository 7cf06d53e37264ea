"""What a user's program waits for: clip calls timed inside small programs. See __main__.py."""
