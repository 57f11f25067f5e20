"""Run the examples as users do, and compare what they trained with plain torch."""
