EQUIVALENT: dict[str, str] = {}
