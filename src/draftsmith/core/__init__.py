"""What everything else is made of: records, configs, the store, the registry, errors. No torch below this line."""
