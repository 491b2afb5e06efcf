"""The stages, one thin file each: read records, do one thing, write a record. None imports another."""
