"""What is done to a store. A package of its own, because `kstore.restore` and `kstore.commit` are functions."""
