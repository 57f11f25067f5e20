"""The verb `audit`: hold an image that nobody here built to claims about what is installed."""
