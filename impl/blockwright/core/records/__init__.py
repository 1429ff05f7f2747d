"""What happened: a journal of facts, the listeners that calls tell, and why a hit is as long as it is."""
