"""What providers tell us later: who really sent it, and what it says. Pure: a request in, receipts out."""
