"""Configurations as texts, and what is found wrong with them."""

from __future__ import annotations

import pytest

from warren.config import Config
from warren.rabbitmq_conf import ConfigError, parse_config


def config(text: str) -> Config:
    loaded = parse_config(text)
    assert loaded.warnings == []
    return loaded.config


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        parse_config(text)
    assert str(refused.value) == "\n".join(refused.value.problems)
    return refused.value.problems
