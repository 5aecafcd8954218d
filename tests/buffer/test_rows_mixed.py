"""Batches of mixed sizes stay few chunks too."""

from tests.buffer.test_rows import _cost


def test_small_operations_of_mixed_sizes_stay_few_chunks() -> None:
    for sizes in ([1, 16], [1, 17], [1, 256], [3, 40]):
        ratio, chunks = _cost(sizes, 40_000)
        assert ratio <= 2 and chunks <= 200, (sizes, ratio, chunks)
