"""The book's own laboratory: what its chapters measure, search, attack and draw."""
