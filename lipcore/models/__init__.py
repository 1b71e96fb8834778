"""From a module of PyTorch or transformers to attention, and to the tokens that enter it."""
