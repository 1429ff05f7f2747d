"""Replay serving traces through the manager: how much a prefix cache of a given size saves."""
