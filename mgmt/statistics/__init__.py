"""Rates and histories, computed from counts that the broker keeps anyway."""
