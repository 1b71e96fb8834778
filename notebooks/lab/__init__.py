"""The book's laboratory: what only its chapters need, to measure, search, attack and draw."""
