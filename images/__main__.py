"""`python -m images VERB`: what the nox sessions call."""

from images.cli import main

if __name__ == "__main__":
    main()
