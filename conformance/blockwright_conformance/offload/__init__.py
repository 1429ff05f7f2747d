"""Part three, offload: tiers and chains of tiers, their adapters, actions, scopes, lock-step."""
