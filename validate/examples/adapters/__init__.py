"""What each framework's examples leave, in neutral terms: `read(run) -> Trained`."""
