"""The benchmark: times, bytes and memory of our images beside the conventional way, on one machine in one run.

`parts/` measures, through the other modules here. stats, accounting, contexts, synthetic and page are pure.
"""
