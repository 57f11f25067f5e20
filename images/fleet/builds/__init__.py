"""Images that workers build: what a worker is told, what it does, and what is made of its answer."""
