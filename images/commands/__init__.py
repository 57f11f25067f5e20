"""The verbs: each reads its arguments, calls the part that does the work, and prints."""
