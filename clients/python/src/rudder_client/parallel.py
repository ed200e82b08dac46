"""Many requests at a time, results in order, with progress."""

from __future__ import annotations

import collections
import concurrent.futures
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TypeVar

from tqdm.auto import tqdm

Item = TypeVar("Item")
Result = TypeVar("Result")
# True: a bar on standard error or in the notebook. A function is called with the number of finished items after each.
Progress = bool | Callable[[int], None]


def parallel_map(function: Callable[[Item], Result], items: Iterable[Item], *, concurrency: int = 16,
                 progress: Progress = False) -> Iterator[Result]:
    """Yields function(item) in the order of the items, with at most `concurrency` calls at a time.

    Items are read as they are needed, and at most twice `concurrency` results wait to be taken, so a data set need not fit
    into memory. The first exception ends the run: calls that wait are cancelled, and it is raised with the item's number
    as a note.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency {concurrency}: at least 1 is needed")
    pending: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
    source = iter(items)
    total = len(items) if isinstance(items, Sized) else None
    done = 0
    with (tqdm(total=total, disable=progress is not True) as bar,
          concurrent.futures.ThreadPoolExecutor(concurrency) as pool):
        try:
            while True:
                while len(pending) < 2 * concurrency:
                    try:
                        pending.append(pool.submit(function, next(source)))
                    except StopIteration:
                        break
                if not pending:
                    return
                try:
                    result = pending.popleft().result()
                except Exception as error:
                    error.add_note(f"item {done} of the batch")
                    raise
                done += 1
                bar.update()
                if callable(progress):
                    progress(done)
                yield result
        finally:
            for call in pending:
                call.cancel()
