"""Everything that changes weights: masks, surgery, and the training loop. Torch lives here."""
