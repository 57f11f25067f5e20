"""Runs the examples as users do, and holds what they trained against plain torch. An adapter module a framework."""
