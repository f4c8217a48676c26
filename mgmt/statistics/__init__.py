"""Rates and histories, worked out from counts that the broker keeps anyway."""
