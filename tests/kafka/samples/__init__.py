"""Examples from the pages of other systems, word for word, and what runs them."""
