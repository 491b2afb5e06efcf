"""Every figure this project claims, one file each: `python -m benchmarks.NAME [--quick]`."""
