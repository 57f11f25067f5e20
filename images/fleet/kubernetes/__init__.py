"""Kubernetes: Jobs as manifests that a person applies, and the verdict on what they logged. No cluster is asked."""
