"""Each failed claim says what to do now, once."""
