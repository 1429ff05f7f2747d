"""The calls of an engine, a module a chapter of the specification: check, count, act."""
