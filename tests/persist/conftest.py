"""The way to the modules the tests of this folder share."""

from __future__ import annotations
