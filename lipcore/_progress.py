"""A progress bar where one is wanted: tqdm is needed only then."""

from __future__ import annotations


def bar(iterable=None, *, show: bool, **options):
    """``tqdm(iterable, **options)``, silent unless ``show``; without tqdm, a bar that is wanted is refused."""
    try:
        from tqdm import tqdm
    except ImportError as error:
        if show:
            raise ImportError(
                "progress: a bar needs tqdm: pip install tqdm, or pass progress=False"
            ) from error
        return _Silent(iterable)
    return tqdm(iterable, disable=not show, **options)


class _Silent:
    """What is used of tqdm, without a bar."""

    def __init__(self, iterable) -> None:
        self._iterable = iterable

    def __iter__(self):
        return iter(self._iterable)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        pass

    def update(self) -> None:
        pass
