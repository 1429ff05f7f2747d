"""Requests and the keys of their blocks: what a block holds, as a number that names it."""
