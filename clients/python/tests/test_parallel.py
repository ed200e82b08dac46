import threading
import time

import pytest

from rudder_client import parallel_map


def test_results_keep_the_order_of_the_items():
    def slow_first(item):
        time.sleep(0.02 if item % 5 == 0 else 0)
        return item * item

    assert list(parallel_map(slow_first, range(40), concurrency=8)) == [i * i for i in range(40)]
    assert list(parallel_map(slow_first, [])) == []


def test_calls_run_beside_each_other_and_not_more_than_asked():
    together = threading.Barrier(4, timeout=10)  # breaks unless four calls are in it at a time
    lock, running, most = threading.Lock(), 0, 0

    def call(_):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait()
        with lock:
            running -= 1

    list(parallel_map(call, range(8), concurrency=4))
    assert most == 4


def test_items_are_read_as_they_are_needed():
    taken = 0

    def items():
        nonlocal taken
        for i in range(1000):
            taken += 1
            yield i

    results = parallel_map(lambda item: item, items(), concurrency=2)
    assert [next(results) for _ in range(3)] == [0, 1, 2] and taken <= 7
    results.close()
    assert taken <= 7


def test_the_first_error_ends_the_run_and_names_the_item():
    called = []

    def call(item):
        called.append(item)
        if item == 3:
            raise OSError("broken")
        return item

    results = parallel_map(call, range(1000), concurrency=2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="broken") as failed:
        next(results)
    assert failed.value.__notes__ == ["item 3 of the batch"] and len(called) < 10


def test_progress_is_told(capsys):
    seen = []
    list(parallel_map(lambda item: item, range(3), progress=seen.append))
    assert seen == [1, 2, 3]
    list(parallel_map(lambda item: item, range(3), progress=True))
    assert "3/3" in capsys.readouterr().err
    list(parallel_map(lambda item: item, range(3)))
    assert capsys.readouterr().err == ""


def test_no_concurrency_is_refused():
    with pytest.raises(ValueError, match="concurrency"):
        list(parallel_map(str, [1], concurrency=0))
