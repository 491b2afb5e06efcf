"""Data sets: one file each, with a `PLUGIN` that yields prompts from a local folder or from the Hugging Face hub."""
