"""Blockwright inside engines that exist: adapters over their own interfaces. Nothing of an engine is imported here."""
