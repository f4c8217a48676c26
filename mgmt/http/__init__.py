"""The HTTP side of management: listeners, authentication, and the form of lists and errors."""
