"""`audit`: an image or environment that nobody here built, held to claims written from what is installed."""
