"""Static pages from matrix, facts and everything that was judged."""
