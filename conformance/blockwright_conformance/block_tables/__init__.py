"""Part two, block tables: adapter, actions, scopes, lock-step."""
