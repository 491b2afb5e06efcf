"""draftsmith: which draft model makes your LLM fastest on your hardware."""

__version__ = "0.1.0"
