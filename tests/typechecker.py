"""Shapes and types in signatures are checked while the tests run; an int counts as a float."""

from beartype import BeartypeConf, beartype

tower = beartype(conf=BeartypeConf(is_pep484_tower=True))
