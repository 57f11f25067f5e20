"""What we are measured by: times, bytes and memory, ours beside the usual way, on one machine in one run.

`parts.py` measures, through the other modules here. stats, accounting, synthetic and page are pure.
"""
