"""Measurements of the block tables of `blockwright.paging`."""
