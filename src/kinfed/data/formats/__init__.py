"""Forms of data on disk, on the hub and in memory."""
