"""The wire formats: bytes in, bytes out. Nothing here waits, and nothing knows of pools, sockets or Quart.

`sse`, `body` and `splice` are tools; each other module is one dialect, read and written by an `Exchange`.
"""
