"""Requests, and the keys that name the contents of their blocks."""
