"""The HTTP side of management: listeners, who is asking, how lists and errors are answered."""
