"""Model classes of ours. `import draftsmith.architectures.trimmed` makes transformers' Auto classes know them; vLLM gets to
know them through the entry point `vllm.general_plugins`."""
