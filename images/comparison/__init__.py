"""Two images side by side, by what is recorded of them: packages, sizes, claims, training steps."""
