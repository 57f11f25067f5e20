"""What each claim expects and what its probe yields: a pair of TypedDicts a claim, for writer, probe and judge."""
