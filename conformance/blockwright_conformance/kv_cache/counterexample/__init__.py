"""What is printed of a violation: the calls that lead to it, and what they break."""
