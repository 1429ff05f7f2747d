"""Other engines' managers, loaded from their published sources to be measured beside ours."""
