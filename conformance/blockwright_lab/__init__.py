"""How the project checks its own checks: in no wheel, and nothing of the kit imports it."""
