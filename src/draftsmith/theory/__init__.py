"""The mathematics, numpy only: acceptance from a trace, and what follows from it."""
