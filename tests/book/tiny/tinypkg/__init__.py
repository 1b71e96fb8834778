"""A stand-in for the package."""

from tinypkg.numbers import VALUE as VALUE
