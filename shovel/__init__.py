"""Moves messages."""
