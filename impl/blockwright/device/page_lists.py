"""The pages of a step's requests in one line, as FlashInfer reads them."""

from __future__ import annotations

from typing import NamedTuple

import torch


class PagedKV(NamedTuple):
    """The pages of each request of a step in one group: compressed rows (CSR), in memory that stays where it is.

    Attributes:
        indptr: int32 (R + 1,): the pages of row i are ``indices[indptr[i] : indptr[i + 1]]``.
        indices: int32 (pages,): block ids, 0 where nothing is held and nothing is read.
        last_page_len: int32 (R,): tokens in the last page, 1 to `block_size`; 0 for a row without tokens.
        indptr_host, last_page_len_host: the same in the host's memory, where no GPU is waited for.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    last_page_len: torch.Tensor
    indptr_host: torch.Tensor
    last_page_len_host: torch.Tensor


class PageLists:
    """Makes `PagedKV` of one group, on one device, by operators that write to memory taken once."""

    def __init__(self, table: torch.Tensor, block_size: int, scratch: torch.Tensor) -> None:
        """Take the memory, for a (rows, width) table. `scratch`: int32 (3, its entries), the first counting from 0."""
        rows, self._width = table.shape
        self._table, self._block_size, self._scratch = table.view(-1), block_size, scratch
        self._counts = torch.zeros((3, rows + 1), dtype=torch.int32, device=table.device)
        self._indices = torch.zeros(rows * self._width, dtype=torch.int32, device=table.device)

    def lengths(self, lens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `indptr` and `last_page_len` of requests with these lengths. O(requests)."""
        count, size = len(lens), self._block_size
        pages, last, indptr = self._counts[0, :count], self._counts[1, :count], self._counts[2, : count + 1]
        torch.add(lens, size - 1, out=pages).floor_divide_(size)
        torch.cumsum(pages, 0, dtype=torch.int32, out=indptr[1:])
        torch.sub(pages, 1, out=last).mul_(-size).add_(lens)
        # A request without tokens has no page, for which the line above gives a full one.
        torch.minimum(last, lens, out=last)
        return indptr, last

    def indices(self, indptr: torch.Tensor, total: int) -> torch.Tensor:
        """Return the pages of all requests, `total` of them. O(total)."""
        place, row, entry = self._scratch[:, :total]
        # The request that each page is of, and then the page's place in that request's row of the table.
        torch.searchsorted(indptr[1:], place, right=True, out_int32=True, out=row)
        torch.index_select(indptr, 0, row, out=entry)
        torch.sub(place, entry, out=entry).add_(row, alpha=self._width)
        return torch.index_select(self._table, 0, entry, out=self._indices[:total])
