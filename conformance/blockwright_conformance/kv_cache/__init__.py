"""Part one, the manager that an engine talks to: adapter, actions, scopes, lock-step."""
