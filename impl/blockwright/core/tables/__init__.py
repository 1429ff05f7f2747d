"""The block tables of running requests, and what each kind of layer keeps in them."""
