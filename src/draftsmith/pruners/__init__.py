"""Pruners: which parts of a source stay. One file each."""
