"""The only code that touches disk: definitions in LMDB today, message storage next."""
