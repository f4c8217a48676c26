"""The broker itself: virtual hosts, exchanges, queues, consumers, policies, access."""
